"""The gRPC server of topics: the calls of `codec/topics_api/topics.proto`, on plain HTTP/2.

| error | status |
|---|---|
| no such topic or partition | NOT_FOUND |
| a topic of that name is there | ALREADY_EXISTS |
| an offset that does not exist | OUT_OF_RANGE, with both ends in the words |
| a sequence that does not follow, a newer epoch of the producer | FAILED_PRECONDITION |
| storage away, a container on its way, and surely nothing was stored | UNAVAILABLE |
| the same, and it may have been stored; some partitions stored and others not | ABORTED |
| a batch too large, a name, a setting, a record that is none | INVALID_ARGUMENT |
| damaged bytes | DATA_LOSS |

Invariants:

- A stream of produces is answered in the order of its requests, and a client that waits for each answer gets it.
- At most `stream_requests_max` requests of one stream wait for the log; a further one is read when the first of them is
  answered, so a client that sends without end is slowed.
- What all calls have received and the log has not settled is `request_bytes_max` at most; a stream whose request has no
  room is not read further.
- The first request of a stream that fails ends it, behind the answers of those before it. Those behind it in the same
  moment may have been stored; a producer with sequences sends them again and they are stored once.
- Records become batches, and batches records, in a thread, unless they are few. A request has OBJECTS_MAX records and
  headers at most (request_objects.py), and of those that may have many `large_requests_max` are objects at a time.
- A client that has gone without a word leaves the places of its calls within two minutes.
- A fault of ours is logged here with its traceback, and reaches the client as INTERNAL without it.
"""

import asyncio
import logging
from asyncio import Future
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, NoReturn, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from segmentstore.codec.record_batch import (
    BatchError,
    Record,
    encode_batch,
    parse_header,
)
from segmentstore.codec.topics_api import topics_pb2 as api
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.runtime.cancellation import retrieve_exception, run_blocking
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.grpc_listening import listening_server, words_of
from segmentstore.runtime.grpc_request_bytes import RequestBytes
from segmentstore.runtime.shared_room import Room
from segmentstore.runtime.waiting import give_way
from segmentstore.topics.api.request_objects import OBJECTS_MAX, MalformedError, has_few_objects
from segmentstore.topics.consume import is_short, next_offset_of, told_records
from segmentstore.topics.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    PartitionUnavailableError,
    ProducerFencedError,
    RecordBatchTooLargeError,
    TopicError,
    TopicExistsError,
    TopicNotFoundError,
    TopicsUnavailableError,
    UnknownPartitionError,
)
from segmentstore.topics.partition_log import Appended
from segmentstore.topics.produce import (
    Batches,
    PartlyStoredError,
    append_batches,
    batches_of,
    compression_of,
)
from segmentstore.topics.producer_ids import ProducerIds
from segmentstore.topics.served_partition import ServedPartition
from segmentstore.topics.topics import TopicDescription, Topics

_LOG = logging.getLogger(__name__)

SERVICE: Final = "segmentstore.topics.v1.Topics"
_FETCH_BYTES: Final = 1 << 20
_NO_OFFSET: Final = -1
_UNKNOWN: Final = -1
"""In the place of an end of a partition: it cannot be known now."""
_INLINE_RECORDS_MAX: Final = 256
_INLINE_BYTES_MAX: Final = 64 << 10
"""Of a request whose records become batches on the loop."""
_PARTITIONS_PER_TURN: Final = 16
"""Of those that are shown: one that is open here waits for nothing."""
_OTHER_BYTES_MAX: Final = 256 << 10
"""Of a request without records, which is parsed on the loop. Names and settings of a topic have less."""

Status = grpc.StatusCode
Context = grpc.aio.ServicerContext[bytes, bytes]
Request = TypeVar("Request", bound=Message)
_Result = TypeVar("_Result")

_STATUS: Final[Mapping[type[TopicError], grpc.StatusCode]] = {
    TopicNotFoundError: Status.NOT_FOUND,
    UnknownPartitionError: Status.NOT_FOUND,
    TopicExistsError: Status.ALREADY_EXISTS,
    OffsetOutOfRangeError: Status.OUT_OF_RANGE,
    OutOfOrderSequenceError: Status.FAILED_PRECONDITION,
    ProducerFencedError: Status.FAILED_PRECONDITION,
    TopicsUnavailableError: Status.ABORTED,
    InvalidTopicError: Status.INVALID_ARGUMENT,
    InvalidConfigError: Status.INVALID_ARGUMENT,
    InvalidPartitionsError: Status.INVALID_ARGUMENT,
    InvalidRecordError: Status.INVALID_ARGUMENT,
    InvalidTimestampError: Status.INVALID_ARGUMENT,
    RecordBatchTooLargeError: Status.INVALID_ARGUMENT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicServerSettings:
    """Where and how to listen."""

    address: str = "127.0.0.1"
    port: int = 9094
    """0: any free one."""
    calls_at_once_max: int = 2_000
    message_bytes_max: int = 16 << 20
    """Of one request; above it a client gets RESOURCE_EXHAUSTED."""
    request_bytes_max: int = 256 << 20
    """Of the requests of all calls; a further one is received when there is room for the longest there may be."""
    message_seconds_max: float = 60.0
    """A request that takes longer to arrive ends its call; one of a stream may take as long as it likes."""
    produce_streams_max: int = 64
    """A further one gets RESOURCE_EXHAUSTED: each may have one request on its way, whatever its length."""
    stream_requests_max: int = 64
    large_requests_max: int = 4
    """Of more than 64 KiB whose records are objects in memory at a time, some 100 MB at most; others wait as bytes."""
    fetch_bytes_max: int = 8 << 20
    wait_seconds_max: float = 30.0
    """Of one fetch at the end of a partition."""
    silence_seconds: float = 60.0
    """A client of which nothing came for so long is asked whether it is there; it has `answer_seconds` to say so."""
    answer_seconds: float = 60.0
    close_grace_seconds: float = 2.0


class TopicServer:
    """start(), then close()."""

    def __init__(
        self,
        *,
        topics: Callable[[], Topics | None],
        producer_ids: ProducerIds,
        wall_clock: WallClock,
        random: Random,
        settings: TopicServerSettings,
    ) -> None:
        """`topics` gives None while they do not answer: calls are UNAVAILABLE then."""
        self._wall_clock = wall_clock
        self._random = random
        self._settings = settings
        self._topics = topics
        self._producer_ids = producer_ids
        self._requests = RequestBytes(
            bytes_max=settings.request_bytes_max,
            message_bytes_max=settings.message_bytes_max,
            message_seconds_max=settings.message_seconds_max,
            streams_max=settings.produce_streams_max,
        )
        self._large = asyncio.Semaphore(settings.large_requests_max)
        self._server: grpc.aio.Server | None = None
        self._port = 0

    @property
    def port(self) -> int:
        """The port in use, once started."""
        return self._port

    async def start(self) -> None:
        """Listen. Raises InvalidRequestError if the address cannot be bound."""
        settings = self._settings
        self._server, self._port = await listening_server(
            "topics",
            address=settings.address,
            port=settings.port,
            calls_at_once_max=settings.calls_at_once_max,
            handlers=[self._handlers()],
            requests=self._requests,
            silence_seconds=settings.silence_seconds,
            answer_seconds=settings.answer_seconds,
        )

    async def close(self) -> None:
        """Stop listening and end what is under way; closing twice is fine."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(self._settings.close_grace_seconds)

    def _handlers(self) -> "grpc.GenericRpcHandler[bytes, bytes]":
        unary: Mapping[str, Callable[[bytes], Awaitable[Message]]] = {
            "CreateTopic": self._create,
            "DescribeTopic": self._describe,
            "ListTopics": self._list,
            "DeleteTopic": self._delete,
            "OpenProducer": self._open_producer,
            "Produce": self._produce,
            "Fetch": self._fetch,
            "FindOffset": self._find_offset,
        }
        methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            name: grpc.unary_unary_rpc_method_handler(_answering(call))
            for name, call in unary.items()
        }
        methods["ProduceStream"] = grpc.stream_stream_rpc_method_handler(
            _streaming(self._produce_stream)
        )
        methods["Follow"] = grpc.unary_stream_rpc_method_handler(_streaming(self._follow))
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _present(self) -> Topics:
        topics = self._topics()
        if topics is None:
            raise _StatusError(Status.UNAVAILABLE, "topics do not answer now; come again")
        return topics

    # --- topics ----------------------------------------------------------------------------------

    async def _create(self, data: bytes) -> Message:
        request = _parsed(api.CreateTopicRequest, data)
        topics = self._present()
        await topics.create(request.name, request.partitions or 1, dict(request.config))
        return await _shown(topics, await _described(topics, request.name))

    async def _describe(self, data: bytes) -> Message:
        topics = self._present()
        return await _shown(topics, await _described(topics, _parsed(api.TopicName, data).name))

    async def _list(self, data: bytes) -> Message:
        _parsed(api.ListTopicsRequest, data)
        topics = self._present()
        await topics.refresh()
        return api.TopicList(names=topics.names())

    async def _delete(self, data: bytes) -> Message:
        await self._present().delete(_parsed(api.TopicName, data).name)
        return api.DeleteTopicResponse()

    async def _open_producer(self, data: bytes) -> Message:
        _parsed(api.OpenProducerRequest, data)
        self._present()
        return api.Producer(producer_id=await self._producer_ids.next(), epoch=0)

    # --- records in ------------------------------------------------------------------------------

    async def _produce(self, data: bytes) -> Message:
        made = await self._made(data)
        if isinstance(made, _ByKey):
            return await self._appended_by_key(made)
        partition = await self._present().partition(made.topic, made.partition)
        return await self._answer(_submitted(partition, made))

    async def _made(self, data: bytes) -> "_ToPartition | _ByKey":
        """The batches of a request. Raises _StatusError, TopicError."""
        if len(data) <= _INLINE_BYTES_MAX:
            return await self._made_of(_parsed(api.ProduceRequest, data), len(data))
        while True:
            async with self._large:
                request = await run_blocking(None, _parsed_if_few, data)
                name = request.topic
                if self._present().describe(name) is not None:
                    return await self._made_of(request, len(data))
                del request
            # The catalogue may take long to answer, and others go on meanwhile.
            await _described(self._present(), name)

    async def _made_of(
        self, request: api.ProduceRequest, byte_count: int
    ) -> "_ToPartition | _ByKey":
        description = await _described(self._present(), request.topic)
        if request.HasField("partition"):
            batch, count = await self._batch_of(description, request, byte_count)
            is_buffered = request.durability == api.BUFFERED
            return _ToPartition(request.topic, request.partition, batch, count, is_buffered)
        if request.WhichOneof("payload") != "records":
            raise _refused("a batch needs a partition")
        if request.HasField("producer"):
            raise _refused("a producer's sequences need a partition")
        if request.durability == api.BUFFERED:
            raise _refused("buffered records need a partition")
        drawn = self._random.randrange(description.partitions)
        batches = await _beside_the_loop(
            request,
            byte_count,
            lambda: batches_of(
                self._records_of(request),
                partition=None,
                drawn=drawn,
                partition_count=description.partitions,
                compression=compression_of(description),
            ),
        )
        return _ByKey(request.topic, batches)

    async def _appended_by_key(self, made: "_ByKey") -> api.ProduceResponse:
        appended = await append_batches(self._present(), made.topic, made.batches)
        return api.ProduceResponse(
            partitions=[
                _appended(index, there, made.batches.counts[index])
                for index, there in appended.items()
            ]
        )

    async def _produce_stream(self, arriving: AsyncIterator[bytes]) -> AsyncIterator[Message]:
        """Requests are submitted as they come, and answered in their order as they are done."""
        waiting: asyncio.Queue[_Pending] = asyncio.Queue(self._settings.stream_requests_max)
        reading = asyncio.create_task(self._submit_all(arriving, waiting))
        try:
            while True:
                match await waiting.get():
                    case None:
                        return
                    case Exception() as error:
                        raise error
                    case _Submitted() as submitted:
                        yield await self._answer(submitted)
                    case api.ProduceResponse() as response:
                        yield response
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _submit_all(
        self, arriving: AsyncIterator[bytes], waiting: "asyncio.Queue[_Pending]"
    ) -> None:
        """Puts what each request comes to, in their order; then None, or the error that refuses one of them."""
        partitions: dict[tuple[str, int], ServedPartition] = {}
        try:
            async for data in arriving:
                room = await self._requests.take(len(data))
                begun = await self._begun(data, room, partitions)
                # The next one may be long in coming.
                del data
                await waiting.put(begun)
        except Exception as error:  # noqa: BLE001 (it is raised behind the answers before it)
            await waiting.put(error)
        else:
            await waiting.put(None)

    async def _begun(
        self, data: bytes, room: Room, partitions: dict[tuple[str, int], ServedPartition]
    ) -> "_Submitted | api.ProduceResponse":
        """A request of a stream: its room is given back when the log has settled it."""
        try:
            made = await self._made(data)
            if isinstance(made, _ByKey):
                response = await self._appended_by_key(made)
                room.give_back()
                return response
            key = (made.topic, made.partition)
            partition = partitions.get(key)
            if partition is None or not partition.is_open:
                partition = partitions[key] = await self._present().partition(*key)
            submitted = _submitted(partition, made)
        except BaseException:
            room.give_back()
            raise
        submitted.append.add_done_callback(lambda _: room.give_back())
        return submitted

    async def _batch_of(
        self, description: TopicDescription, request: api.ProduceRequest, byte_count: int
    ) -> tuple[bytes, int]:
        """The batch of a request to one partition, and its records. Raises _StatusError, InvalidRecordError."""
        if request.WhichOneof("payload") == "batch":
            try:
                return request.batch, parse_header(request.batch).record_count
            except BatchError as error:
                raise InvalidRecordError(error.problem, str(error)) from error
        producer = request.producer if request.HasField("producer") else None
        try:
            batch = await _beside_the_loop(
                request,
                byte_count,
                lambda: encode_batch(
                    self._records_of(request),
                    compression=compression_of(description),
                    producer_id=-1 if producer is None else producer.producer_id,
                    producer_epoch=-1 if producer is None else producer.epoch,
                    base_sequence=-1 if producer is None else request.base_sequence,
                ),
            )
        except ValueError as error:
            raise _refused(str(error)) from error
        return batch, len(request.records.records)

    async def _answer(self, submitted: "_Submitted") -> api.ProduceResponse:
        if submitted.is_buffered and not submitted.append.done():
            buffered = api.Appended(
                partition=submitted.partition,
                base_offset=_NO_OFFSET,
                record_count=submitted.count,
            )
            return api.ProduceResponse(partitions=[buffered])
        appended = await asyncio.shield(submitted.append)
        return api.ProduceResponse(
            partitions=[_appended(submitted.partition, appended, submitted.count)]
        )

    def _records_of(self, request: api.ProduceRequest) -> Sequence[Record]:
        if not request.records.records:
            raise _refused("there are no records in the request")
        now_ms = self._wall_clock.now_ms()
        return [
            Record(
                offset=0,
                timestamp_ms=each.timestamp_ms if each.HasField("timestamp_ms") else now_ms,
                key=each.key if each.HasField("key") else None,
                value=each.value if each.HasField("value") else None,
                headers=tuple(
                    [(h.name, h.value if h.HasField("value") else None) for h in each.headers]
                ),
            )
            for each in request.records.records
        ]

    # --- records out -----------------------------------------------------------------------------

    async def _fetch(self, data: bytes) -> Message:
        request = _parsed(api.FetchRequest, data)
        partition = await self._present().partition(request.topic, request.partition)
        content = await self._content(
            partition, request, request.offset, min(request.max_wait_ms / 1000, self._wait_max)
        )
        return await _fetched(partition, request, request.offset, content)

    @property
    def _wait_max(self) -> float:
        return self._settings.wait_seconds_max

    async def _follow(self, arriving: bytes) -> AsyncIterator[Message]:
        request = _parsed(api.FetchRequest, arriving)
        offset = request.offset
        while True:
            partition = await self._present().partition(request.topic, request.partition)
            content = await self._content(partition, request, offset, self._wait_max)
            if content:
                response = await _fetched(partition, request, offset, content)
                offset = response.next_offset
                yield response

    async def _content(
        self,
        partition: ServedPartition,
        request: api.FetchRequest,
        offset: int,
        wait_seconds: float,
    ) -> bytes:
        bytes_max = min(request.max_bytes or _FETCH_BYTES, self._settings.fetch_bytes_max)
        content = await partition.fetch(offset, bytes_max)
        if not content and wait_seconds > 0:
            try:
                async with asyncio.timeout(wait_seconds):
                    await partition.wait_behind(offset)
            except TimeoutError:
                return b""
            content = await partition.fetch(offset, bytes_max)
        return content

    async def _find_offset(self, data: bytes) -> Message:
        request = _parsed(api.FindOffsetRequest, data)
        partition = await self._present().partition(request.topic, request.partition)
        found = await partition.offset_at_time(request.timestamp_ms)
        if found is None:
            return api.FindOffsetResponse()
        return api.FindOffsetResponse(offset=found[0], timestamp_ms=found[1])


@dataclass(frozen=True, slots=True)
class _ToPartition:
    """What a request to one partition comes to."""

    topic: str
    partition: int
    batch: bytes
    count: int
    is_buffered: bool


@dataclass(frozen=True, slots=True)
class _ByKey:
    """What a request without a partition comes to."""

    topic: str
    batches: Batches


@dataclass(frozen=True, slots=True)
class _Submitted:
    """One batch on its way to the log, without its bytes."""

    append: "Future[Appended]"
    count: int
    partition: int
    is_buffered: bool


_Pending = _Submitted | api.ProduceResponse | Exception | None
"""A request that was submitted, one that is answered, the error that ends the stream, or its end."""


class _StatusError(Exception):
    """A call ends with this status."""

    def __init__(self, code: grpc.StatusCode, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def _submitted(partition: ServedPartition, made: _ToPartition) -> _Submitted:
    """In the order of the calls. Raises TopicError."""
    append = partition.produce(made.batch)
    # A stream that ends on an earlier failure asks for no outcome of this one.
    append.add_done_callback(retrieve_exception)
    return _Submitted(append, made.count, made.partition, made.is_buffered)


async def _beside_the_loop(
    request: api.ProduceRequest, byte_count: int, encode: Callable[[], _Result]
) -> _Result:
    """A byte or two of a request may be a record, which takes some microseconds."""
    if len(request.records.records) <= _INLINE_RECORDS_MAX and byte_count <= _INLINE_BYTES_MAX:
        return encode()
    return await run_blocking(None, encode)


def _refused(sentence: str) -> _StatusError:
    return _StatusError(Status.INVALID_ARGUMENT, sentence)


def _parsed(kind: type[Request], data: bytes) -> Request:
    if kind is not api.ProduceRequest and len(data) > _OTHER_BYTES_MAX:
        raise _refused(f"the request is too long bytes={len(data)} bytes_max={_OTHER_BYTES_MAX}")
    request = kind()
    try:
        request.ParseFromString(data)
    except DecodeError as error:
        raise _refused(f"the request is no {kind.DESCRIPTOR.name}") from error
    return request


def _parsed_if_few(data: bytes) -> api.ProduceRequest:
    """In a thread, though in one step of the parser: so they are counted first. Raises _StatusError."""
    try:
        if not has_few_objects(data):
            raise _refused(f"a request has too many records and headers count_max={OBJECTS_MAX}")
    except MalformedError as error:
        raise _refused("the request is no ProduceRequest") from error
    return _parsed(api.ProduceRequest, data)


async def _described(topics: Topics, name: str) -> TopicDescription:
    description = await topics.find(name)
    if description is None:
        raise TopicNotFoundError(name)
    return description


async def _shown(topics: Topics, description: TopicDescription) -> api.Topic:
    partitions: list[api.Partition] = []
    for index in range(description.partitions):
        partitions.append(await _shown_partition(topics, description.name, index))
        await give_way(len(partitions), every=_PARTITIONS_PER_TURN)
    return api.Topic(
        name=description.name,
        topic_id=description.topic_id.bytes,
        config=dict(description.config),
        partitions=partitions,
    )


async def _shown_partition(topics: Topics, name: str, index: int) -> api.Partition:
    """Its offsets are _UNKNOWN, and it is said why, while they cannot be known."""
    try:
        partition = await topics.partition(name, index)
        await partition.confirm_ends()
    except PartitionUnavailableError as error:
        return api.Partition(
            partition=index,
            log_start_offset=_UNKNOWN,
            high_watermark=_UNKNOWN,
            unavailable=words_of(error),
        )
    return api.Partition(
        partition=index,
        log_start_offset=partition.log_start_offset,
        high_watermark=partition.high_watermark,
    )


def _appended(index: int, appended: Appended, count: int) -> api.Appended:
    return api.Appended(
        partition=index,
        base_offset=appended.base_offset,
        record_count=count,
        was_duplicate=appended.duplicate,
    )


async def _fetched(
    partition: ServedPartition, request: api.FetchRequest, offset: int, content: bytes
) -> api.FetchResponse:
    response = api.FetchResponse(
        high_watermark=partition.high_watermark, log_start_offset=partition.log_start_offset
    )
    if request.as_batches:
        response.next_offset = next_offset_of(content, offset)
        response.batches = content
    elif is_short(content):
        _add_records(response, content, offset)
    else:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, _add_records, response, content, offset)
    return response


def _add_records(response: api.FetchResponse, content: bytes, offset: int) -> None:
    records, response.next_offset = told_records(content, offset)
    response.records.SetInParent()
    for record in records:
        shown = response.records.records.add(timestamp_ms=record.timestamp_ms, offset=record.offset)
        if record.key is not None:
            shown.key = record.key
        if record.value is not None:
            shown.value = record.value
        for name, value in record.headers:
            header = shown.headers.add(name=name)
            if value is not None:
                header.value = value


def _answering(
    call: Callable[[bytes], Awaitable[Message]],
) -> Callable[[bytes, Context], Awaitable[bytes]]:
    async def handle(request: bytes, context: Context) -> bytes:
        try:
            return (await call(request)).SerializeToString()
        except Exception as error:  # noqa: BLE001 (the top of a call: each error has a status)
            await _abort(context, error)

    return handle


def _streaming(
    call: Callable[[Any], AsyncIterator[Message]],
) -> Callable[[Any, Context], AsyncIterator[bytes]]:
    async def handle(request: Any, context: Context) -> AsyncIterator[bytes]:
        try:
            async for response in call(request):
                yield response.SerializeToString()
        except Exception as error:  # noqa: BLE001 (the top of a call: each error has a status)
            await _abort(context, error)

    return handle


async def _abort(context: Context, error: Exception) -> NoReturn:
    match error:
        case _StatusError():
            await context.abort(error.code, words_of(error))
        case BatchError():
            _LOG.error("a stored batch is damaged: %s", error)
            await context.abort(Status.DATA_LOSS, words_of(error))
        case PartitionUnavailableError():
            code = Status.UNAVAILABLE if error.stored is False else Status.ABORTED
            await context.abort(code, words_of(error))
        case TopicsUnavailableError():
            await context.abort(_STATUS[TopicsUnavailableError], words_of(error))
        case PartlyStoredError():
            await context.abort(Status.ABORTED, words_of(error))
        case TopicError():
            await context.abort(_STATUS[type(error)], words_of(error))
        case SegmentStoreError():
            # Of the store under topics; what was to be stored had its own error.
            await context.abort(Status.UNAVAILABLE, words_of(error))
        case _:
            _LOG.error("a call failed by a fault of ours", exc_info=error)
            await context.abort(Status.INTERNAL, "internal error")
    raise AssertionError("abort returned")
