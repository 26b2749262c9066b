"""ApiVersions, Metadata, FindCoordinator, InitProducerId and DescribeAcls: what there is, and which broker has it.

| asked for | answer |
|---|---|
| leader of a partition | the broker that has the container of its segment; -1 with code 5 while none has |
| controller | the broker that has the catalogue's container. Every broker makes changes of topics: it is a hint |
| coordinator, of any group | the broker that has the container of the offsets; code 15 while none has |

A client of the one server of a store is sent to the address by which it came, unless the settings advertise another.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final
from uuid import UUID

from segmentstore.codec.kafka_protocol.administration import DescribeAclsResponse
from segmentstore.codec.kafka_protocol.api_table import APIS, ApiKey
from segmentstore.codec.kafka_protocol.cluster import (
    GROUP_COORDINATOR,
    METADATA_WITHOUT_NAMES_SINCE,
    TRANSACTION_COORDINATOR,
    ApiVersionRange,
    ApiVersionsResponse,
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
)
from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.kafka_protocol.fields import NO_UUID
from segmentstore.codec.kafka_protocol.produce import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.kafka.settings import ITEMS_PER_TURN, KafkaSettings
from segmentstore.runtime.waiting import give_way
from segmentstore.topics.brokers import Broker, Brokers
from segmentstore.topics.catalogue import TopicKey
from segmentstore.topics.errors import TopicsUnavailableError
from segmentstore.topics.groups.committed_offsets import OFFSETS_TABLE
from segmentstore.topics.producer_ids import ProducerIds
from segmentstore.topics.topic_records import CATALOGUE_TABLE
from segmentstore.topics.topics import Topics

_ALL_RANGES: Final = tuple(
    ApiVersionRange(api_key=api.key, min_version=api.oldest, max_version=api.newest)
    for api in APIS.values()
)
_VERSIONS: Final = APIS[ApiKey.API_VERSIONS]
_NO_BROKER: Final = -1

SPOKEN_VERSIONS: Final = ApiVersionsResponse(error_code=ErrorCode.NONE, api_keys=_ALL_RANGES)
VERSION_TOO_NEW: Final = ApiVersionsResponse(
    error_code=ErrorCode.UNSUPPORTED_VERSION,
    api_keys=(
        ApiVersionRange(
            api_key=_VERSIONS.key, min_version=_VERSIONS.oldest, max_version=_VERSIONS.newest
        ),
    ),
)
"""For a client whose ApiVersions is newer than ours: in version 0, which it asks with again."""

NO_ACLS: Final = DescribeAclsResponse(
    error_code=ErrorCode.SECURITY_DISABLED,
    error_message="there are no ACLs here: every client may do everything",
)
"""As Kafka answers without an authorizer. Programs that carry settings from one cluster to another then do so without
ACLs; that the server does not know the question is a failure to them."""


class ClusterRequests:
    """What is told of brokers."""

    def __init__(
        self,
        *,
        topics: Topics,
        producer_ids: ProducerIds,
        brokers: Brokers,
        cluster_id: str,
        settings: KafkaSettings,
    ) -> None:
        self._topics = topics
        self._producer_ids = producer_ids
        self._brokers = brokers
        self._cluster_id = cluster_id
        self._settings = settings

    async def metadata(
        self, request: MetadataRequest, *, version: int, reached_at: tuple[str, int]
    ) -> MetadataResponse:
        wants_all = request.topics is None or (version == 0 and not request.topics)
        # Each once, however often it is asked for: a short name may have an answer of thousands of partitions.
        keys = list(
            dict.fromkeys(
                each.topic_id if each.name is None or each.topic_id != NO_UUID else each.name
                for each in request.topics or ()
            )
        )
        if wants_all or any(self._topics.describe(key) is None for key in keys):
            with suppress(TopicsUnavailableError, TimeoutError):
                async with asyncio.timeout(self._settings.catalogue_seconds):
                    await self._topics.refresh()
        leaders: dict[int, Broker] = {}
        topics = await self._told_of(
            self._topics.names() if wants_all else keys, leaders, version=version
        )
        controller = self._brokers.leader_of(CATALOGUE_TABLE)
        brokers = self._brokers.all()
        # One that leads a partition may have gone since that was told: clients look for it among the brokers.
        gone = leaders.keys() - {each.broker_id for each in brokers}
        return MetadataResponse(
            brokers=tuple(
                _row(each, reached_at)
                for each in (*brokers, *(leaders[number] for number in sorted(gone)))
            ),
            cluster_id=self._cluster_id,
            controller_id=_NO_BROKER if controller is None else controller.broker_id,
            topics=topics,
        )

    async def _told_of(
        self, keys: Sequence[TopicKey], leaders: dict[int, Broker], *, version: int
    ) -> tuple[MetadataTopic, ...]:
        """`leaders`: those of the partitions are added, by their ids."""
        topics: list[MetadataTopic] = []
        told = 1
        for key in keys:
            topic = await self._topic(key, told, leaders, version=version)
            topics.append(topic)
            told += 1 + len(topic.partitions)
        return tuple(topics)

    async def _topic(
        self, key: TopicKey, told: int, leaders: dict[int, Broker], *, version: int
    ) -> MetadataTopic:
        """`told`: topics and partitions of this answer, with this topic."""
        await give_way(told, every=ITEMS_PER_TURN)
        found = self._topics.describe(key)
        if found is None and isinstance(key, UUID):
            return MetadataTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID,
                name=None if version >= METADATA_WITHOUT_NAMES_SINCE else "",
                topic_id=key,
                partitions=(),
            )
        if found is None:
            return MetadataTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=str(key), partitions=()
            )
        partitions: list[MetadataPartition] = []
        for index in range(found.partitions):
            leader = self._topics.leader_of(found, index)
            if leader is not None:
                leaders[leader.broker_id] = leader
            partitions.append(_partition(index, leader))
            await give_way(told + len(partitions), every=ITEMS_PER_TURN)
        return MetadataTopic(
            error_code=ErrorCode.NONE,
            name=found.name,
            topic_id=found.topic_id,
            partitions=tuple(partitions),
        )

    async def coordinator(
        self, request: FindCoordinatorRequest, *, reached_at: tuple[str, int]
    ) -> FindCoordinatorResponse:
        """Of transactions too: what asks with a transactional id is refused a step later, with a code that no client
        repeats. Share groups have none."""
        code, node_id, host, port = ErrorCode.COORDINATOR_NOT_AVAILABLE, _NO_BROKER, "", -1
        if request.key_type not in (GROUP_COORDINATOR, TRANSACTION_COORDINATOR):
            code = ErrorCode.INVALID_REQUEST
        elif (broker := self._brokers.leader_of(OFFSETS_TABLE)) is not None:
            row = _row(broker, reached_at)
            code, node_id, host, port = ErrorCode.NONE, row.node_id, row.host, row.port
        coordinators: list[Coordinator] = []
        # Each once: an empty key would have an answer of many times its length.
        for key in dict.fromkeys(request.coordinator_keys):
            coordinators.append(
                Coordinator(key=key, node_id=node_id, host=host, port=port, error_code=code)
            )
            await give_way(len(coordinators), every=ITEMS_PER_TURN)
        return FindCoordinatorResponse(
            error_code=code,
            node_id=node_id,
            host=host,
            port=port,
            coordinators=tuple(coordinators),
        )

    async def init_producer_id(self, request: InitProducerIdRequest) -> InitProducerIdResponse:
        """An id that was never given out before; none for transactions, which there are none of."""
        if request.transactional_id is not None:
            return _no_producer_id(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        try:
            producer_id = await self._producer_ids.next()
        except SegmentStoreError:
            return _no_producer_id(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return InitProducerIdResponse(
            error_code=ErrorCode.NONE, producer_id=producer_id, producer_epoch=0
        )


def _row(broker: Broker, reached_at: tuple[str, int]) -> MetadataBroker:
    host, port = broker.address or reached_at
    return MetadataBroker(node_id=broker.broker_id, host=host, port=port)


def _partition(index: int, leader: Broker | None) -> MetadataPartition:
    nodes = () if leader is None else (leader.broker_id,)
    return MetadataPartition(
        error_code=ErrorCode.LEADER_NOT_AVAILABLE if leader is None else ErrorCode.NONE,
        partition_index=index,
        leader_id=_NO_BROKER if leader is None else leader.broker_id,
        replica_nodes=nodes,
        isr_nodes=nodes,
    )


def _no_producer_id(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
