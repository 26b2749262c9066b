"""ApiVersions, Metadata, FindCoordinator and InitProducerId: one server, which has everything.

A client is sent to the address by which it has reached this server, unless the settings advertise another one.
"""

from typing import Final

from segmentstore.codec.kafka_protocol.api_table import APIS, ApiKey
from segmentstore.codec.kafka_protocol.cluster import (
    ApiVersionRange,
    ApiVersionsResponse,
    FindCoordinatorResponse,
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
)
from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.kafka_protocol.produce import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.kafka.settings import KafkaSettings
from segmentstore.topics.producer_ids import ProducerIds
from segmentstore.topics.topics import Topics

_ALL_RANGES: Final = tuple(
    ApiVersionRange(api_key=api.key, min_version=api.oldest, max_version=api.newest)
    for api in APIS.values()
)
_VERSIONS: Final = APIS[ApiKey.API_VERSIONS]

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


class ClusterRequests:
    """What the server says of itself."""

    def __init__(
        self,
        *,
        topics: Topics,
        producer_ids: ProducerIds,
        cluster_id: str,
        settings: KafkaSettings,
    ) -> None:
        self._topics = topics
        self._producer_ids = producer_ids
        self._cluster_id = cluster_id
        self._settings = settings

    def metadata(
        self, request: MetadataRequest, *, version: int, reached_at: tuple[str, int]
    ) -> MetadataResponse:
        """Raises TopicError if the topics cannot be told."""
        host, port = self._address(reached_at)
        wants_all = request.topics is None or (version == 0 and not request.topics)
        names = self._topics.names() if wants_all else [each.name for each in request.topics or ()]
        node_id = self._settings.node_id
        return MetadataResponse(
            brokers=(MetadataBroker(node_id=node_id, host=host, port=port),),
            cluster_id=self._cluster_id,
            controller_id=node_id,
            topics=tuple(self._topic(name) for name in names),
        )

    def _topic(self, name: str) -> MetadataTopic:
        found = self._topics.describe(name)
        if found is None:
            return MetadataTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name, partitions=()
            )
        nodes = (self._settings.node_id,)
        return MetadataTopic(
            error_code=ErrorCode.NONE,
            name=name,
            partitions=tuple(
                MetadataPartition(
                    error_code=ErrorCode.NONE,
                    partition_index=index,
                    leader_id=self._settings.node_id,
                    replica_nodes=nodes,
                    isr_nodes=nodes,
                )
                for index in range(found.partitions)
            ),
        )

    def coordinator(self, *, reached_at: tuple[str, int]) -> FindCoordinatorResponse:
        """This server, of every group. Of transactions too: what asks with a transactional id is refused a step later,
        with a code that no client repeats."""
        host, port = self._address(reached_at)
        return FindCoordinatorResponse(
            error_code=ErrorCode.NONE, node_id=self._settings.node_id, host=host, port=port
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

    def _address(self, reached_at: tuple[str, int]) -> tuple[str, int]:
        return self._settings.advertised_address or reached_at


def _no_producer_id(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
