"""Record topics and consumer groups, by Kafka's protocol: what the command line needs, and small programs.

    async with connected_topics("127.0.0.1:9092") as topics:
        await topics.create("logs", partitions=6)
        await topics.produce("logs", 0, [NewRecord(value=b"hello")])
        page = await topics.fetch("logs", 0, offset=0)

In a store of several servers a request goes to the one that has what it is about (`kafka_servers.py`). Nothing else is
repeated: an error says by its kind whether to ask again. It joins no group. For more any client of Kafka will do.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from segmentstore.client.errors import ClientError, OutcomeUnknownError
from segmentstore.client.kafka_servers import (
    ELSEWHERE,
    SILENCE_SECONDS,
    CataloguePlace,
    GroupPlace,
    KafkaServers,
    PartitionPlace,
    parse_addresses,
)
from segmentstore.codec.kafka_protocol.administration import (
    DELETE,
    SET,
    TOPIC_ID_CONFIG,
    TOPIC_RESOURCE,
    AlterableConfig,
    AlterConfigsResource,
    CreatableConfig,
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    GrowingTopic,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from segmentstore.codec.kafka_protocol.cluster import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataTopic,
)
from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.kafka_protocol.fetch import (
    EARLIEST,
    LATEST,
    FetchedPartition,
    FetchResponse,
    ListedOffset,
    ListOffsetsResponse,
)
from segmentstore.codec.kafka_protocol.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from segmentstore.codec.kafka_protocol.one_partition import (
    fetch_request,
    fetched,
    listed,
    offsets_request,
    produce_request,
    produced,
    was_given_up,
)
from segmentstore.codec.kafka_protocol.produce import ProduceResponse
from segmentstore.codec.kafka_protocol.structure import Structure
from segmentstore.codec.record_batch import (
    BatchError,
    Compression,
    Record,
    decode_batches,
    encode_batch,
)
from segmentstore.codec.record_columns import RecordColumns, columns_of_batches
from segmentstore.contracts.errors import CorruptedDataError, ErrorKind, InvalidRequestError
from segmentstore.runtime.clock import SystemWallClock, WallClock
from segmentstore.topics.consume import first_not_older_between

_Response = TypeVar("_Response", bound=Structure)

_TIMEOUT_MS: Final = 30_000
"""Told to the server, which answers when it is done."""
_FETCH_BYTES: Final = 1 << 20
_DEAD: Final = "Dead"

_KINDS: Final[Mapping[int, ErrorKind]] = {
    ErrorCode.OFFSET_OUT_OF_RANGE: ErrorKind.CONFLICT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorKind.NOT_FOUND,
    ErrorCode.GROUP_ID_NOT_FOUND: ErrorKind.NOT_FOUND,
    ErrorCode.TOPIC_ALREADY_EXISTS: ErrorKind.CONFLICT,
    ErrorCode.NON_EMPTY_GROUP: ErrorKind.CONFLICT,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: ErrorKind.CONFLICT,
    ErrorCode.INVALID_PRODUCER_EPOCH: ErrorKind.CONFLICT,
    ErrorCode.UNSUPPORTED_VERSION: ErrorKind.INVALID,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorKind.TOO_LARGE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorKind.FULL,
    ErrorCode.INVALID_TOPIC_EXCEPTION: ErrorKind.INVALID,
    ErrorCode.INVALID_PARTITIONS: ErrorKind.INVALID,
    ErrorCode.INVALID_CONFIG: ErrorKind.INVALID,
    ErrorCode.INVALID_REQUEST: ErrorKind.INVALID,
    ErrorCode.INVALID_TIMESTAMP: ErrorKind.INVALID,
    ErrorCode.INVALID_RECORD: ErrorKind.INVALID,
    ErrorCode.INVALID_GROUP_ID: ErrorKind.INVALID,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: ErrorKind.INVALID,
}
_UNKNOWN_OUTCOMES: Final = (
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
)


class TopicRequestError(ClientError):
    """A server refused a request; `code` is Kafka's, and the kind says what to do."""

    def __init__(self, what: str, code: int, message: str | None = None) -> None:
        names = [each.name for each in ErrorCode if each == code]
        super().__init__(f"{message or 'refused'} {what} code={names[0] if names else code}")
        self.code = code
        self.kind = _KINDS.get(code, ErrorKind.UNAVAILABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecord:
    """A record to be written. None as a value, under a key: the key has no value any more."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None
    """None: now."""


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """Of one partition."""

    partition: int
    first: int
    """Of the first record there is."""
    end: int
    """Of the next record that is written."""


@dataclass(frozen=True, slots=True)
class FetchedRecords:
    """Records from the offset that was asked for, and where to go on."""

    records: Sequence[Record]
    next_offset: int
    end: int
    """Behind the last record that can be read now."""


@dataclass(frozen=True, slots=True)
class FetchedBatches:
    """Whole batches as they are stored, one behind the other; the first contains the offset that was asked for."""

    content: bytes
    end: int
    """Behind the last record that can be read now."""


@dataclass(frozen=True, slots=True)
class FetchedColumns:
    """Records from the offset that was asked for as columns, and where to go on."""

    columns: RecordColumns
    next_offset: int
    end: int
    """Behind the last record that can be read now."""


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """How far a group is in one partition."""

    topic: str
    partition: int
    offset: int
    metadata: str | None


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group."""

    member_id: str
    client_id: str
    client_host: str


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: Sequence[GroupMember]


class Topics:
    """Made by `connected_topics`. Every method raises TopicRequestError, ConnectionLostError, OutcomeUnknownError, and
    ClosedError behind the end."""

    def __init__(self, servers: KafkaServers, *, wall_clock: WallClock) -> None:
        self._servers = servers
        self._wall_clock = wall_clock

    # --- topics -----------------------------------------------------------------------------------

    async def create(
        self, name: str, *, partitions: int, config: Mapping[str, str] | None = None
    ) -> None:
        """`config` has Kafka's words, as `retention.ms`."""
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=-1,
            configs=tuple(
                CreatableConfig(name=each, value=value) for each, value in (config or {}).items()
            ),
        )
        await self._change(
            name,
            CreateTopicsRequest(topics=(topic,), timeout_ms=_TIMEOUT_MS),
            CreateTopicsResponse,
            lambda answer: [(each.error_code, each.error_message) for each in answer.topics],
        )

    async def alter(
        self,
        name: str,
        *,
        partitions: int | None = None,
        config: Mapping[str, str | None] | None = None,
    ) -> None:
        """Sets words of its configuration, or back to the default with None; then its partitions, which only grow."""
        if config:
            changes = tuple(
                AlterableConfig(
                    name=word, config_operation=DELETE if value is None else SET, value=value
                )
                for word, value in config.items()
            )
            resource = AlterConfigsResource(
                resource_type=TOPIC_RESOURCE, resource_name=name, configs=changes
            )
            await self._change(
                name,
                IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False),
                IncrementalAlterConfigsResponse,
                lambda answer: [(each.error_code, each.error_message) for each in answer.responses],
            )
        if partitions is not None:
            topic = GrowingTopic(name=name, count=partitions, assignments=None)
            await self._change(
                name,
                CreatePartitionsRequest(
                    topics=(topic,), timeout_ms=_TIMEOUT_MS, validate_only=False
                ),
                CreatePartitionsResponse,
                lambda answer: [(each.error_code, each.error_message) for each in answer.results],
            )

    async def delete(self, name: str) -> None:
        """For good, with all records."""
        await self._change(
            name,
            # As versions of names and those of ids want it.
            DeleteTopicsRequest(
                topics=(DeletableTopic(name=name),), topic_names=(name,), timeout_ms=_TIMEOUT_MS
            ),
            DeleteTopicsResponse,
            lambda answer: [(each.error_code, each.error_message) for each in answer.responses],
        )

    async def _change(
        self,
        name: str,
        request: Structure,
        kind: type[_Response],
        outcomes: Callable[[_Response], Sequence[tuple[int, str | None]]],
    ) -> None:
        """At the server that has the catalogue. `outcomes`: codes and messages of an answer."""
        answer = await self._servers.ask_at(
            CataloguePlace(), request, kind, lambda answer: (code for code, _ in outcomes(answer))
        )
        for code, message in outcomes(answer):
            _require(code, f"topic={name!r}", message)

    async def partition_counts(self) -> Mapping[str, int]:
        """All topics in order of name, and how many partitions each has."""
        answer = await self._metadata(None)
        counts = {each.name: len(each.partitions) for each in answer if each.name is not None}
        return dict(sorted(counts.items()))

    async def partition_count(self, name: str) -> int:
        """Of one topic."""
        for topic in await self._metadata(name):
            _require(topic.error_code, f"topic={name!r}")
            return len(topic.partitions)
        raise TopicRequestError(f"topic={name!r}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    async def config(self, name: str) -> Mapping[str, str]:
        """What is set of a topic, the defaults among it, in order of name."""
        return await self._config(name, None)

    async def topic_id(self, name: str) -> str:
        """32 hex digits; a topic that is deleted and made again has another one."""
        found = await self._config(name, (TOPIC_ID_CONFIG,))
        if TOPIC_ID_CONFIG not in found:
            raise TopicRequestError(f"topic={name!r}", ErrorCode.UNSUPPORTED_VERSION)
        return found[TOPIC_ID_CONFIG]

    async def _config(self, name: str, keys: tuple[str, ...] | None) -> Mapping[str, str]:
        resource = DescribeConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=keys
        )
        answer = await self._servers.ask(
            DescribeConfigsRequest(resources=(resource,)), DescribeConfigsResponse
        )
        found: dict[str, str] = {}
        for result in answer.results:
            _require(result.error_code, f"topic={name!r}", result.error_message)
            found |= {each.name: each.value or "" for each in result.configs}
        return dict(sorted(found.items()))

    async def offsets(self, name: str) -> Sequence[PartitionOffsets]:
        """Of every partition, in order."""
        count = await self.partition_count(name)
        first = await self._offsets_at(name, count, EARLIEST)
        end = await self._offsets_at(name, count, LATEST)
        return [PartitionOffsets(each, first[each], end[each]) for each in range(count)]

    async def offsets_at_time(self, name: str, time_ms: int) -> Mapping[int, int]:
        """By partition the first offset whose record is not older; partitions without one are left out.

        A time before 1970 costs a look at every record before the first one from 1970 on. Also raises as fetch().
        """
        count = await self.partition_count(name)
        # To a server a negative number is no time: -1 is the end, -2 the beginning.
        found = dict(await self._offsets_at(name, count, max(0, time_ms)))
        if time_ms < 0:
            for each in await self.offsets(name):
                end = found[each.partition] if found[each.partition] >= 0 else each.end
                with _read_as_batches(name, each.partition):
                    before = await first_not_older_between(
                        each.first, end, time_ms, partial(self._content, name, each.partition)
                    )
                found[each.partition] = found[each.partition] if before is None else before[0]
        return {each: offset for each, offset in found.items() if offset >= 0}

    async def _content(self, name: str, partition: int, offset: int) -> bytes:
        return (await self.fetch_batches(name, partition, offset=offset)).content

    # --- records ----------------------------------------------------------------------------------

    async def produce(
        self,
        name: str,
        partition: int,
        records: Sequence[NewRecord],
        *,
        compression: Compression = Compression.NONE,
    ) -> int:
        """Write the records as one batch; the offset of the first, when all are durable.

        Also raises InvalidRequestError: no records, or what no batch can hold.
        """
        now = self._wall_clock.now_ms()
        try:
            batch = encode_batch(
                [
                    Record(
                        offset=0,
                        timestamp_ms=now if each.timestamp_ms is None else each.timestamp_ms,
                        key=each.key,
                        value=each.value,
                        headers=each.headers,
                    )
                    for each in records
                ],
                compression=compression,
            )
        except ValueError as error:
            raise InvalidRequestError(
                f"no batch holds these records topic={name!r}: {error}"
            ) from error
        return await self.produce_batch(name, partition, batch)

    async def produce_batch(self, name: str, partition: int, batch: bytes) -> int:
        """Write one batch of version 2 as it is; the offset of its first record, when all are durable.

        A batch that its producer's id and sequence show to be stored already has the offset that it has there.
        """
        answer = await self._servers.ask_at(
            PartitionPlace(name, partition),
            produce_request(name, partition, batch),
            ProduceResponse,
            lambda answer: (produced(answer).error_code,),
        )
        one = produced(answer)
        what = f"topic={name!r} partition={partition}"
        if one.error_code in _UNKNOWN_OUTCOMES:
            raise OutcomeUnknownError(f"records may be stored {what}")
        _require(one.error_code, what)
        return one.base_offset

    async def fetch(
        self,
        name: str,
        partition: int,
        *,
        offset: int,
        wait_ms: int = 0,
        bytes_max: int = _FETCH_BYTES,
    ) -> FetchedRecords:
        """Records from `offset` on: those of one batch at least, if there are any within `wait_ms`.

        Also raises CorruptedDataError, and TopicRequestError with REQUEST_TIMED_OUT if the server's storage is too slow
        for it. Batches that the server cuts at the end of its answer are not expected: ours are whole.
        """
        found = await self._fetched(name, partition, offset, wait_ms, bytes_max)
        with _read_as_batches(name, partition):
            records, following = decode_batches(found.records or b"", offset)
        return FetchedRecords(records, following, found.high_watermark)

    async def fetch_batches(
        self,
        name: str,
        partition: int,
        *,
        offset: int,
        wait_ms: int = 0,
        bytes_max: int = _FETCH_BYTES,
    ) -> FetchedBatches:
        """As fetch(), without a look at what is in the batches."""
        found = await self._fetched(name, partition, offset, wait_ms, bytes_max)
        return FetchedBatches(bytes(found.records or b""), found.high_watermark)

    async def fetch_columns(
        self,
        name: str,
        partition: int,
        *,
        offset: int,
        wait_ms: int = 0,
        bytes_max: int = _FETCH_BYTES,
    ) -> FetchedColumns:
        """As fetch(), without an object per record: for programs that look at millions of them."""
        found = await self._fetched(name, partition, offset, wait_ms, bytes_max)
        with _read_as_batches(name, partition):
            columns, following = columns_of_batches(found.records or b"", offset)
        return FetchedColumns(columns, following, found.high_watermark)

    # --- groups -----------------------------------------------------------------------------------

    async def groups(self) -> Sequence[str]:
        """All consumer groups, in order of name."""
        found: set[str] = set()
        for answer in await self._servers.ask_all(ListGroupsRequest(), ListGroupsResponse):
            _require(answer.error_code, "groups")
            found |= {each.group_id for each in answer.groups}
        return sorted(found)

    async def group(self, group_id: str) -> GroupInfo:
        """One group and its members."""
        answer = await self._servers.ask_at(
            GroupPlace(group_id),
            DescribeGroupsRequest(groups=(group_id,)),
            DescribeGroupsResponse,
            lambda answer: (each.error_code for each in answer.groups),
        )
        (found,) = answer.groups
        what = f"group={group_id!r}"
        _require(found.error_code, what)
        if found.group_state == _DEAD:
            raise TopicRequestError(what, ErrorCode.GROUP_ID_NOT_FOUND)
        return GroupInfo(
            group_id=group_id,
            state=found.group_state,
            protocol_type=found.protocol_type,
            protocol=found.protocol_data,
            members=[
                GroupMember(each.member_id, each.client_id, each.client_host)
                for each in found.members
            ],
        )

    async def group_offsets(self, group_id: str) -> Sequence[GroupOffset]:
        """How far a group is, in order of topic and partition; empty for a group that does not exist."""
        answer = await self._servers.ask_at(
            GroupPlace(group_id),
            # As versions of one group and versions of several want it.
            OffsetFetchRequest(
                group_id=group_id,
                topics=None,
                groups=(OffsetFetchGroup(group_id=group_id, topics=None),),
            ),
            OffsetFetchResponse,
            lambda answer: (answer.error_code, *(each.error_code for each in answer.groups)),
        )
        what = f"group={group_id!r}"
        _require(answer.error_code, what)
        for group in answer.groups:
            _require(group.error_code, what)
        found: list[GroupOffset] = []
        for topic in (*answer.topics, *(each for group in answer.groups for each in group.topics)):
            for each in topic.partitions:
                _require(each.error_code, what)
                found.append(
                    GroupOffset(
                        topic.name, each.partition_index, each.committed_offset, each.metadata
                    )
                )
        return sorted(found, key=lambda each: (each.topic, each.partition))

    async def delete_group(self, group_id: str) -> None:
        """Forget a group without members, and how far it was."""
        answer = await self._servers.ask_at(
            GroupPlace(group_id),
            DeleteGroupsRequest(group_ids=(group_id,)),
            DeleteGroupsResponse,
            lambda answer: (each.error_code for each in answer.results),
        )
        for deleted in answer.results:
            _require(deleted.error_code, f"group={group_id!r}")

    # --- steps ------------------------------------------------------------------------------------

    async def _fetched(
        self, name: str, partition: int, offset: int, wait_ms: int, bytes_max: int
    ) -> FetchedPartition:
        answer = await self._servers.ask_at(
            PartitionPlace(name, partition),
            fetch_request(name, partition, offset=offset, bytes_max=bytes_max, wait_ms=wait_ms),
            FetchResponse,
            lambda answer: (fetched(answer).error_code,),
            wait_seconds=wait_ms / 1000,
        )
        found = fetched(answer)
        what = f"topic={name!r} partition={partition} offset={offset}"
        _require(found.error_code, what)
        if was_given_up(found):
            raise TopicRequestError(
                what, ErrorCode.REQUEST_TIMED_OUT, "the server gave the read up"
            )
        return found

    async def _metadata(self, name: str | None) -> Sequence[MetadataTopic]:
        topics = None if name is None else (MetadataRequestTopic(name=name),)
        answer = await self._servers.ask(
            MetadataRequest(topics=topics, allow_auto_topic_creation=False), MetadataResponse
        )
        return answer.topics

    async def _offsets_at(self, name: str, count: int, timestamp: int) -> Mapping[int, int]:
        answer = await self._servers.ask(
            offsets_request(name, range(count), [timestamp]), ListOffsetsResponse
        )
        found: dict[int, int] = {}
        for each in listed(answer):
            one = each
            if one.error_code in ELSEWHERE:
                one = await self._offset_at(name, each.partition_index, timestamp)
            _require(one.error_code, f"topic={name!r} partition={one.partition_index}")
            found[one.partition_index] = one.offset
        return found

    async def _offset_at(self, name: str, partition: int, timestamp: int) -> ListedOffset:
        """Of one partition, by its leader."""
        answer = await self._servers.ask_at(
            PartitionPlace(name, partition),
            offsets_request(name, [partition], [timestamp]),
            ListOffsetsResponse,
            lambda answer: (each.error_code for each in listed(answer)),
        )
        (one,) = listed(answer)
        return one


@asynccontextmanager
async def connected_topics(
    address: str, *, wall_clock: WallClock | None = None, silence_seconds: float = SILENCE_SECONDS
) -> AsyncIterator[Topics]:
    """Of the server at HOST:PORT, or of several with commas between, of which one has to be there.

    A server that owes an answer and says nothing for `silence_seconds` is left. Raises ConnectionLostError,
    InvalidRequestError (an address of another form).
    """
    servers = KafkaServers(parse_addresses(address), silence_seconds=silence_seconds)
    try:
        await servers.connect()
        yield Topics(servers, wall_clock=wall_clock or SystemWallClock())
    finally:
        await servers.close()


@contextmanager
def _read_as_batches(name: str, partition: int) -> Iterator[None]:
    try:
        yield
    except BatchError as error:
        raise CorruptedDataError(
            f"records do not read topic={name!r} partition={partition}: {error}"
        ) from error


def _require(code: int, what: str, message: str | None = None) -> None:
    if code != ErrorCode.NONE:
        raise TopicRequestError(what, code, message)
