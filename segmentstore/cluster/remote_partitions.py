"""Partitions that other processes of the store lead, for what asks for records here: HTTP, gRPC, Spark's sink.

A partition is asked in Kafka's protocol at the address of its leader. Which process leads is known from where
containers are, as every node knows it; a client, which knows no containers, asks servers (client/kafka_servers.py).

    produce, offsets, trims   over one connection to each leader, in the order of the calls
    fetches, which may wait   over connections that each has for itself meanwhile

Invariants:

- An outcome that is not known is told as such (`stored=None`); nothing that may have been done is sent again.
- Connections to a leader, and what waits on each, are bounded (RemotePartitionSettings).
- An attempt to connect that fails has failed for all that waited for it: none waits for more than one.
- A leader that owes an answer and is silent is given up; there is one task, run().
"""

import asyncio
from asyncio import Future
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from segmentstore.client.errors import ConnectionLostError
from segmentstore.client.kafka_connection import KafkaConnection, open_kafka_connection
from segmentstore.codec.kafka_protocol.administration import (
    DeletedRecordsPartition,
    DeleteRecordsResponse,
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
from segmentstore.codec.kafka_protocol.one_partition import (
    delete_records_request,
    deleted_records,
    fetch_request,
    fetched,
    listed,
    offsets_request,
    produce_request,
    produced,
    was_given_up,
)
from segmentstore.codec.kafka_protocol.produce import ProduceResponse
from segmentstore.codec.record_batch import BatchError, BatchProblem
from segmentstore.contracts.cluster import ContainerLocations
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.runtime.cancellation import await_shielded
from segmentstore.runtime.waiting import sleep_and_tell_lateness
from segmentstore.topics.brokers import Broker
from segmentstore.topics.consume import first_not_older_between
from segmentstore.topics.errors import (
    InvalidRecordError,
    InvalidTimestampError,
    NotLeaderError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    PartitionUnavailableError,
    ProducerFencedError,
    RecordBatchTooLargeError,
    TopicError,
    UnknownPartitionError,
)
from segmentstore.topics.partition_log import Appended

_UNKNOWN: Final = -1
_LOOK_BYTES: Final = 1 << 20
"""Looked at together for a time."""
_WAIT_BYTES: Final = 1 << 20
"""That a wait at the end may bring at once; one batch may be longer."""

_BATCH_PROBLEMS: Final[Mapping[int, BatchProblem]] = {
    ErrorCode.CORRUPT_MESSAGE: BatchProblem.CORRUPT,
    ErrorCode.INVALID_RECORD: BatchProblem.INVALID,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: BatchProblem.OLD_FORMAT,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: BatchProblem.UNKNOWN_COMPRESSION,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePartitionSettings:
    """Limits of what is asked of other processes."""

    connect_seconds: float = 3.0
    silence_seconds: float = 20.0
    """A leader that owes an answer for so long is given up. Above what a server takes to read from Tier 2."""
    look_seconds: float = 0.5
    wait_ms: int = 500
    """Of one fetch at the end of a partition, before it is asked again."""
    requests_max: int = 1_000
    bytes_max: int = 64 << 20
    """Of requests to one leader that wait for their answers."""
    fetches_at_once_max: int = 256
    """To one leader; a further one waits until one of them has ended."""
    idle_connections_max: int = 8
    """Kept for the next fetches."""


class _LeaderMovedError(PartitionUnavailableError):
    """Another process leads it by now. Nothing was done."""


class _Leader:
    """The connections to one broker."""

    def __init__(
        self,
        address: tuple[str, int],
        settings: RemotePartitionSettings,
        opened: dict[KafkaConnection, None],
    ) -> None:
        """`opened`: what it opens is put there."""
        self._address = address
        self._settings = settings
        self._opened = opened
        self._connecting = asyncio.Lock()
        self._failures = 0
        """Attempts to connect, for requests in their order, that have failed."""
        self._why = ""
        """The last one failed."""
        self._ordered: KafkaConnection | None = None
        self._idle: list[KafkaConnection] = []
        self._busy: dict[KafkaConnection, None] = {}
        self._fetches = asyncio.Semaphore(settings.fetches_at_once_max)

    async def ordered(self) -> KafkaConnection:
        """For requests in their order. Raises ConnectionLostError."""
        failures_before = self._failures
        async with self._connecting:
            if self._ordered is not None and self._ordered.is_open:
                return self._ordered
            if self._failures > failures_before:
                raise ConnectionLostError(self._why)
            try:
                self._ordered = await self._open()
            except ConnectionLostError as error:
                self._failures += 1
                self._why = str(error)
                raise
            return self._ordered

    @asynccontextmanager
    async def own(self) -> AsyncIterator[KafkaConnection]:
        """For one request, which may wait. Raises ConnectionLostError."""
        async with self._fetches:
            connection = None
            while self._idle and connection is None:
                connection = self._idle.pop()
                connection = connection if connection.is_open else None
            if connection is None:
                connection = await self._open()
            self._busy[connection] = None
            try:
                yield connection
            finally:
                del self._busy[connection]
                if not connection.is_idle or len(self._idle) >= self._settings.idle_connections_max:
                    connection.abort()
                elif connection.is_open:
                    self._idle.append(connection)

    async def _open(self) -> KafkaConnection:
        settings = self._settings
        connection = await open_kafka_connection(
            *self._address,
            requests_max=settings.requests_max,
            bytes_max=settings.bytes_max,
            connect_seconds=settings.connect_seconds,
        )
        self._opened[connection] = None
        return connection

    @property
    def has_connections(self) -> bool:
        ordered = [] if self._ordered is None else [self._ordered]
        return any(each.is_open for each in (*ordered, *self._idle, *self._busy))


class RemotePartitions:
    """Implements RemotePartitions of `topics/served_partition.py`. run() may follow a close()."""

    def __init__(
        self,
        *,
        locations: ContainerLocations,
        settings: RemotePartitionSettings | None = None,
    ) -> None:
        """`locations` are refreshed when what they say proves wrong."""
        self._locations = locations
        self._settings = settings or RemotePartitionSettings()
        self._leaders: dict[tuple[str, int], _Leader] = {}
        self._opened: dict[KafkaConnection, None] = {}
        """All that may be open, also of a leader that was forgotten while it was connected to."""
        self._is_closed = False

    async def open(self, topic: str, index: int, leader: Broker) -> "RemotePartition":
        assert leader.address is not None, "another process has an address"
        if self._is_closed:
            raise PartitionUnavailableError("the process ends")
        connections = self._leaders.get(leader.address)
        if connections is None:
            connections = _Leader(leader.address, self._settings, self._opened)
            self._leaders[leader.address] = connections
        try:
            ordered = await connections.ordered()
            partition = RemotePartition(
                topic, index, ordered=ordered, leader=connections, settings=self._settings
            )
            await partition.look()
        except _LeaderMovedError as error:
            raise NotLeaderError(topic, index) from error
        except ConnectionLostError as error:
            await self.look_again()
            raise PartitionUnavailableError(
                f"its leader does not answer topic={topic!r} partition={index}: {error}"
            ) from error
        except PartitionUnavailableError:
            await self.look_again()
            raise
        return partition

    async def look_again(self) -> None:
        # If the store of locations does not answer, what is known of them is asked again later.
        with suppress(SegmentStoreError):
            await self._locations.refresh()

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        self._is_closed = False
        while True:
            late = await sleep_and_tell_lateness(self._settings.look_seconds)
            for connection in list(self._opened):
                if not connection.is_open:
                    del self._opened[connection]
                    continue
                connection.look(
                    loop.time(),
                    silence_seconds=self._settings.silence_seconds,
                    stood_still_seconds=late,
                )
            for address, leader in list(self._leaders.items()):
                if not leader.has_connections:
                    del self._leaders[address]

    async def close(self) -> None:
        """Connections end. Callers that wait hear of it in the loop's next turn. Closing twice is fine."""
        self._is_closed = True
        for connection in self._opened:
            connection.abort()


class RemotePartition:
    """Implements ServedPartition."""

    def __init__(
        self,
        topic: str,
        index: int,
        *,
        ordered: KafkaConnection,
        leader: _Leader,
        settings: RemotePartitionSettings,
    ) -> None:
        self._topic = topic
        self._index = index
        self._ordered = ordered
        self._leader = leader
        self._settings = settings
        self._log_start_offset = 0
        self._high_watermark = 0
        self._ahead: tuple[int, bytes] | None = None
        """What a wait at the end has brought: the offset that was asked for, and whole batches."""

    @property
    def is_open(self) -> bool:
        return self._ordered.is_open

    @property
    def log_start_offset(self) -> int:
        return self._log_start_offset

    @property
    def high_watermark(self) -> int:
        return self._high_watermark

    async def confirm_ends(self) -> None:
        """They are what the leader said when this was opened, for one request, or later."""

    async def look(self) -> None:
        """Both ends, as the leader has them now. Raises ConnectionLostError (nothing was sent), and as _error()."""
        first, end = await self._listed(EARLIEST, LATEST)
        self._log_start_offset, self._high_watermark = first.offset, end.offset

    # --- records in ------------------------------------------------------------------------------

    def produce(self, batch: bytes | bytearray | memoryview) -> "Future[Appended]":
        request = produce_request(self._topic, self._index, bytes(batch))
        size = len(batch)

        def appended(answer: ProduceResponse) -> Appended:
            one = produced(answer)
            self._require(one.error_code, batch_size=size)
            return Appended(one.base_offset, one.log_append_time_ms, one.log_start_offset)

        try:
            return self._ordered.submit(request, ProduceResponse, appended, self._unknown)
        except ConnectionLostError as error:
            refused: Future[Appended] = asyncio.get_running_loop().create_future()
            refused.set_exception(PartitionUnavailableError(f"its leader is not there: {error}"))
            return refused

    async def delete_records(self, before: int) -> int:
        request = delete_records_request(self._topic, self._index, before)

        def deleted(answer: DeleteRecordsResponse) -> DeletedRecordsPartition:
            one = deleted_records(answer)
            self._require(one.error_code, offset=before)
            return one

        with self._not_sent():
            done = await await_shielded(
                self._ordered.submit(request, DeleteRecordsResponse, deleted, self._unknown)
            )
        self._log_start_offset = max(self._log_start_offset, done.low_watermark)
        return self._log_start_offset

    # --- records out -----------------------------------------------------------------------------

    async def fetch(self, offset: int, max_bytes: int) -> bytes:
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == offset and len(ahead[1]) <= max_bytes:
            return ahead[1]
        return await self._fetch(offset, max_bytes, wait_ms=0)

    async def _fetch(self, offset: int, max_bytes: int, *, wait_ms: int) -> bytes:
        request = fetch_request(
            self._topic, self._index, offset=offset, bytes_max=max_bytes, wait_ms=wait_ms
        )

        def took(answer: FetchResponse) -> FetchedPartition:
            one = fetched(answer)
            if one.log_start_offset > self._log_start_offset:
                self._log_start_offset = one.log_start_offset
            self._require(one.error_code, offset=offset)
            if was_given_up(one):
                what = f"topic={self._topic!r} partition={self._index} offset={offset}"
                raise PartitionUnavailableError(f"its leader gave the read up {what}")
            return one

        with self._not_sent():
            async with self._leader.own() as connection:
                found = await connection.submit(request, FetchResponse, took, self._gone)
        self._high_watermark = max(self._high_watermark, found.high_watermark)
        return bytes(found.records or b"")

    async def wait_behind(self, offset: int) -> None:
        while True:  # the leader waits
            try:
                content = await self._fetch(offset, _WAIT_BYTES, wait_ms=self._settings.wait_ms)
            except TopicError:
                return  # its next fetch says why
            if content:
                self._ahead = (offset, content)
                return

    async def offset_at_time(self, time_ms: int) -> tuple[int, int] | None:
        with self._not_sent():
            # One before 1970 would be a word of the protocol: the end, say.
            words = (EARLIEST, LATEST) if time_ms < 0 else ()
            found, *ends = await self._listed(max(0, time_ms), *words)
        is_there = found.offset != _UNKNOWN
        if ends:
            first, end = ends
            until = found.offset if is_there else end.offset
            try:
                before = await first_not_older_between(
                    first.offset, until, time_ms, lambda offset: self.fetch(offset, _LOOK_BYTES)
                )
            except BatchError as error:
                raise PartitionUnavailableError(
                    f"its leader gave no batch topic={self._topic!r} partition={self._index}: {error}"
                ) from error
            if before is not None:
                return before
        return (found.offset, found.timestamp) if is_there else None

    async def _listed(self, *timestamps: int) -> Sequence[ListedOffset]:
        request = offsets_request(self._topic, [self._index], timestamps)

        def took(answer: ListOffsetsResponse) -> Sequence[ListedOffset]:
            found = listed(answer)
            for each in found:
                self._require(each.error_code)
            return found

        return await await_shielded(
            self._ordered.submit(request, ListOffsetsResponse, took, self._gone)
        )

    # --- refusals --------------------------------------------------------------------------------

    def _require(self, code: int, *, offset: int = _UNKNOWN, batch_size: int = 0) -> None:
        """Raises what the code tells of."""
        if code == ErrorCode.NONE:
            return
        what = f"topic={self._topic!r} partition={self._index}"
        match code:
            case ErrorCode.NOT_LEADER_OR_FOLLOWER:
                raise _LeaderMovedError(f"its leader has changed {what}")
            case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise UnknownPartitionError(self._topic, self._index)
            case ErrorCode.OFFSET_OUT_OF_RANGE:
                raise OffsetOutOfRangeError(
                    offset, log_start=self._log_start_offset, next_offset=self._high_watermark
                )
            case ErrorCode.MESSAGE_TOO_LARGE:
                raise RecordBatchTooLargeError(size=batch_size, size_max=None)
            case ErrorCode.INVALID_TIMESTAMP:
                raise InvalidTimestampError(f"a record's time is too far from now {what}")
            case ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                raise OutOfOrderSequenceError(producer_id=None, expected=None, given=None)
            case ErrorCode.INVALID_PRODUCER_EPOCH:
                raise ProducerFencedError(producer_id=None, current=None, given=None)
        problem = _BATCH_PROBLEMS.get(code)
        if problem is not None:
            raise InvalidRecordError(problem, f"the leader refuses the batch code={code} {what}")
        stored = None if code == ErrorCode.REQUEST_TIMED_OUT else False
        raise PartitionUnavailableError(f"the leader refuses it code={code} {what}", stored=stored)

    def _unknown(self, error: ConnectionLostError) -> TopicError:
        return PartitionUnavailableError(f"its leader did not answer: {error}", stored=None)

    def _gone(self, error: ConnectionLostError) -> TopicError:
        return PartitionUnavailableError(f"its leader did not answer: {error}")

    @contextmanager
    def _not_sent(self) -> Iterator[None]:
        try:
            yield
        except ConnectionLostError as error:
            raise PartitionUnavailableError(f"its leader is not there: {error}") from error
