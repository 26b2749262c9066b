"""Topics over HTTP: what there is of them, records in, records out.

    GET     /v1/topics                                    {"topics": [names]}
    GET     /v1/topics/{topic}                            {"topic", "topic_id", "partitions": [{"partition",
                                                           "log_start_offset", "high_watermark"}], "config"};
                                                          both null, with "unavailable", while they are not known
    PUT     /v1/topics/{topic}                            {"partitions": 6, "config": {"retention.ms": "86400000"}}
    PATCH   /v1/topics/{topic}                            the same: more partitions, other settings (null: its default)
    DELETE  /v1/topics/{topic}                            204
    POST    /v1/topics/{topic}/records                    by key, or all in one partition that is drawn
    POST    /v1/topics/{topic}/partitions/{n}/records     into this one
            application/json, application/x-ndjson        records as topic_records.py has them
            application/vnd.segmentstore.batch            one batch of version 2, as codec/record_batch.py has it, of
                                                          262,144 records at most
            -> {"records": [{"partition", "offset"}]}, in the order of the body
    GET     /v1/topics/{topic}/partitions/{n}/records     ?offset= &max_bytes= &wait_seconds=
            offset                                        earliest (default), latest, a number, time:MILLISECONDS
            Accept: application/json                      {"records", "next_offset", "high_watermark",
                                                           "log_start_offset"}
                    application/x-ndjson                  a record a line
                    text/event-stream                     an event a record, its id the offset; Last-Event-ID goes on.
                                                          At `latest` or a time first an id alone: of the record before
                                                          it, or -1
                    application/vnd.segmentstore.batch    batches as they are stored

- 200 to a POST means durable. Records of one request and one partition are one batch: all of them, or none.
- If some partitions of a request took their records and another did not, the answer is the error of the other one, and
  says in words which partitions have theirs.
- A read gives whole batches, from `offset` on: at least one, and then as many as `max_bytes` allow. 416 says that the
  offset does not exist (any more), with both ends in the sentence.
- A read at the end waits `wait_seconds` (0 by default), and is counted among the waits of the server.
- Bytes become JSON, and JSON bytes, in a thread, unless it is certain that a turn of the loop has the time for it.
"""

import asyncio
import json
from collections.abc import (
    AsyncGenerator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Executor
from contextlib import aclosing
from functools import partial
from itertools import repeat
from random import Random
from typing import Final, TypeVar

from aiohttp import web

from segmentstore.codec.record_batch import (
    BatchError,
    Compression,
    parse_header,
)
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.http.cross_origin import CrossOrigin
from segmentstore.http.requests import BodyReader, json_number, name_of_path, parse_count
from segmentstore.http.responses import (
    SECURITY_HEADERS,
    Refusal,
    bad_request,
    begun,
    busy,
    change_begun,
    json_bytes_response,
    json_response,
    method_not_allowed,
    not_found,
)
from segmentstore.http.settings import HttpSettings
from segmentstore.http.stream_read import Waiters
from segmentstore.http.topic_records import parse_records, record_as_json
from segmentstore.runtime.waiting import give_way
from segmentstore.topics.consume import is_short, told_records
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
from segmentstore.topics.produce import (
    Batches,
    PartlyStoredError,
    append_batches,
    batches_of,
    compression_of,
)
from segmentstore.topics.served_partition import ServedPartition
from segmentstore.topics.topics import TopicDescription, Topics

BATCH_TYPE: Final = "application/vnd.segmentstore.batch"
LINES_TYPE: Final = "application/x-ndjson"
EVENTS_TYPE: Final = "text/event-stream"
_TIME_PREFIX: Final = "time:"
_NO_RECORD_ID: Final = "-1"
"""As an event's id: the end was before the first record."""
_compact: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_PARTITIONS_PER_TURN: Final = 16
"""Of those that are shown: one that is open here waits for nothing."""
_INLINE_PLACES_MAX: Final = 256
"""Of a producer's records that are shown on the loop."""
_BATCH_RECORDS_MAX: Final = 1 << 18
"""Of a batch, whose answer has 40 bytes for each: a compressed one names any number of them in 61 bytes. More than the
1 MiB that topics and producers of Kafka have for a batch by default come to, if it is not compressed."""
_STATUS: Final[Mapping[type[TopicError], tuple[int, str]]] = {
    TopicNotFoundError: (404, "not_found"),
    UnknownPartitionError: (404, "not_found"),
    TopicExistsError: (409, "conflict"),
    OutOfOrderSequenceError: (409, "conflict"),
    ProducerFencedError: (409, "conflict"),
    InvalidTopicError: (400, "invalid"),
    InvalidConfigError: (400, "invalid"),
    InvalidPartitionsError: (400, "invalid"),
    InvalidRecordError: (400, "invalid"),
    InvalidTimestampError: (400, "invalid"),
    RecordBatchTooLargeError: (413, "too_large"),
    OffsetOutOfRangeError: (416, "invalid"),
}

Work = Coroutine[None, None, web.StreamResponse]
Result = TypeVar("Result")


class TopicVerbs:
    """Answers /v1/topics and everything under it."""

    def __init__(
        self,
        *,
        topics: Callable[[], Topics | None],
        bodies: BodyReader,
        waiters: Waiters,
        cross_origin: CrossOrigin,
        now_ms: Callable[[], int],
        random: Random,
        settings: HttpSettings,
        executor: Executor | None,
    ) -> None:
        """`topics` gives None while their container recovers.

        `executor` encodes and decodes large bodies (None: the loop's own).
        """
        self._executor = executor
        self._source = topics
        self._bodies = bodies
        self._waiters = waiters
        self._cross_origin = cross_origin
        self._now_ms = now_ms
        self._random = random
        self._settings = settings

    @property
    def _topics(self) -> Topics:
        topics = self._source()
        if topics is None:
            raise busy("topics are recovering", self._settings.retry_after_seconds)
        return topics

    def route(self, request: web.BaseRequest, rest: str) -> tuple[str, Work]:
        """The verb, as the statistics call it, and its work; `rest` is the raw path behind `/v1/topics/`, or empty."""
        if not rest:
            if request.method not in {"GET", "HEAD"}:
                raise method_not_allowed("the list of topics", ["GET"])
            return "topic_list", self._answered(self._list())
        parts = rest.split("/")
        name = name_of_path(parts[0])
        match parts[1:]:
            case []:
                verb, work = self._route_topic(request, name)
            case ["records"]:
                if request.method != "POST":
                    raise method_not_allowed("the records of a topic", ["POST"])
                verb, work = "topic_produce", self._produce(request, name, None)
            case ["partitions", index, "records"]:
                partition = parse_count(index, "the partition", 0)
                if request.method == "POST":
                    verb, work = "topic_produce", self._produce(request, name, partition)
                elif request.method == "GET":
                    verb, work = "topic_read", self._read(request, name, partition)
                else:
                    raise method_not_allowed("the records of a partition", ["GET", "POST"])
            case _:
                raise not_found(
                    "a topic has /records and /partitions/{n}/records, and nothing else"
                )
        return verb, self._answered(work)

    def _route_topic(self, request: web.BaseRequest, name: str) -> tuple[str, Work]:
        match request.method:
            case "GET" | "HEAD":
                return "topic_info", self._info(name)
            case "PUT":
                return "topic_create", self._create(request, name)
            case "PATCH":
                return "topic_alter", self._alter(request, name)
            case "DELETE":
                return "topic_delete", self._delete(name)
            case _:
                raise method_not_allowed("a topic", ["DELETE", "GET", "PATCH", "PUT"])

    async def _answered(self, work: Work) -> web.StreamResponse:
        try:
            return await work
        except TopicError as error:
            raise self._refusal(error) from error
        except BatchError as error:
            raise Refusal(
                500,
                f"the records of a stored batch cannot be read: {error}; those behind it can, from next_offset on,"
                f" and its bytes with Accept: {BATCH_TYPE}",
                kind="corrupt",
            ) from error
        except PartlyStoredError as error:
            cause = self._refusal(error.cause)
            # 503 would say that nothing was done.
            status = 500 if cause.status == 503 else cause.status
            raise Refusal(status, str(error), kind=cause.kind, headers=cause.headers) from error

    def _refusal(self, error: TopicError) -> Refusal:
        if isinstance(error, PartitionUnavailableError | TopicsUnavailableError):
            # 503 says that nothing was done.
            known = isinstance(error, PartitionUnavailableError) and error.stored is False
            headers = {"Retry-After": str(self._settings.retry_after_seconds)}
            return Refusal(503 if known else 500, str(error), kind="unavailable", headers=headers)
        status, kind = _STATUS[type(error)]
        return Refusal(status, str(error), kind=kind)

    # --- topics ----------------------------------------------------------------------------------

    async def _list(self) -> web.StreamResponse:
        await self._topics.refresh()
        return json_response(200, {"topics": self._topics.names()})

    async def _info(self, name: str) -> web.StreamResponse:
        return json_response(200, await self._shown(await self._described(name)))

    async def _described(self, name: str) -> TopicDescription:
        description = await self._topics.find(name)
        if description is None:
            raise TopicNotFoundError(name)
        return description

    async def _shown(self, description: TopicDescription) -> Mapping[str, object]:
        partitions: list[Mapping[str, object]] = []
        for index in range(description.partitions):
            partitions.append(await self._shown_partition(description.name, index))
            await give_way(len(partitions), every=_PARTITIONS_PER_TURN)
        return {
            "topic": description.name,
            "topic_id": str(description.topic_id),
            "partitions": partitions,
            "config": dict(description.config),
        }

    async def _shown_partition(self, name: str, index: int) -> Mapping[str, object]:
        """Its offsets are null, and it is said why, while they cannot be known."""
        try:
            partition = await self._topics.partition(name, index)
            await partition.confirm_ends()
        except PartitionUnavailableError as error:
            offsets = {"log_start_offset": None, "high_watermark": None, "unavailable": str(error)}
            return {"partition": index, **offsets}
        return {
            "partition": index,
            "log_start_offset": partition.log_start_offset,
            "high_watermark": partition.high_watermark,
        }

    async def _create(self, request: web.BaseRequest, name: str) -> web.StreamResponse:
        fields = await self._bodies.read_json_object(request, optional=("partitions", "config"))
        count = json_number({"partitions": 1, **fields}, "partitions")
        config: dict[str, str] = {}
        for key, value in _config_of(fields).items():
            if value is None:
                raise bad_request(
                    f"config is null, and a new topic has nothing to take back key={key!r}"
                )
            config[key] = value
        await self._topics.create(name, count, config)
        with change_begun(self._settings.retry_after_seconds):
            return json_response(201, await self._shown(await self._described(name)))

    async def _alter(self, request: web.BaseRequest, name: str) -> web.StreamResponse:
        fields = await self._bodies.read_json_object(request, optional=("partitions", "config"))
        present = await self._described(name)
        config = _config_of(fields)
        count = json_number({"partitions": present.partitions, **fields}, "partitions")
        if count != present.partitions:
            # Before the settings are changed: a refusal of one part says that nothing was done.
            self._topics.check_more(name, count)
        if config:
            await self._topics.alter(name, config)
        with change_begun(self._settings.retry_after_seconds):
            if count != present.partitions:
                await self._topics.add_partitions(name, count)
            return json_response(200, await self._shown(await self._described(name)))

    async def _delete(self, name: str) -> web.StreamResponse:
        await self._topics.delete(name)
        return web.Response(status=204, headers=SECURITY_HEADERS)

    # --- records in ------------------------------------------------------------------------------

    async def _produce(
        self, request: web.BaseRequest, name: str, partition: int | None
    ) -> web.StreamResponse:
        description = await self._described(name)
        if partition is not None and partition >= description.partitions:
            # Another process may just have added it: the catalogue is looked at again.
            await self._topics.partition(name, partition)
        content_type = request.content_type
        async with self._bodies.read(request, self._settings.append_bytes_max) as body:
            if content_type == BATCH_TYPE:
                if partition is None:
                    raise bad_request(
                        "a batch goes to /partitions/{n}/records: it has one partition"
                    )
                return await self._produce_batch(name, partition, body)
            if content_type not in {"application/json", LINES_TYPE}:
                raise Refusal(
                    415,
                    f"records are application/json, {LINES_TYPE} or {BATCH_TYPE}"
                    f" content_type={content_type!r}",
                    kind="invalid",
                )
            ask = partial(
                _parsed_batches,
                body,
                lines=content_type == LINES_TYPE,
                now_ms=self._now_ms(),
                partition=partition,
                drawn=self._random.randrange(description.partitions),
                partition_count=description.partitions,
                compression=compression_of(description),
            )
            is_short = len(body) <= self._settings.json_inline_bytes_max
            return await self._produce_records(
                name, await self._in_executor(ask, is_short=is_short)
            )

    async def _in_executor(self, work: Callable[[], Result], *, is_short: bool) -> Result:
        """What takes longer than a turn of the loop may take is done in a thread."""
        if is_short:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def _produce_batch(self, name: str, index: int, body: bytes) -> web.StreamResponse:
        partition = await self._topics.partition(name, index)
        try:
            count = parse_header(body).record_count
        except BatchError as error:
            raise InvalidRecordError(error.problem, str(error)) from error
        if count > _BATCH_RECORDS_MAX:
            raise Refusal(
                413,
                "a batch has too many records to be told the place of each"
                f" record_count={count} record_count_max={_BATCH_RECORDS_MAX}",
                kind="too_large",
            )
        appended = await partition.produce(body)
        return await self._answer_places(repeat(index, count), {index: appended.base_offset}, count)

    async def _produce_records(self, name: str, batches: Batches) -> web.StreamResponse:
        appended = await append_batches(self._topics, name, batches)
        first = {index: there.base_offset for index, there in appended.items()}
        return await self._answer_places(batches.places, first, len(batches.places))

    async def _answer_places(
        self, places: Iterable[int], first: Mapping[int, int], count: int
    ) -> web.StreamResponse:
        """Where `count` records went: the partition of each, and the offset of the first one in each partition."""
        ask = partial(_places_as_json, places, first)
        return json_bytes_response(
            200, await self._in_executor(ask, is_short=count <= _INLINE_PLACES_MAX)
        )

    # --- records out -----------------------------------------------------------------------------

    async def _read(self, request: web.BaseRequest, name: str, index: int) -> web.StreamResponse:
        partition = await self._topics.partition(name, index)
        query = request.query
        settings = self._settings
        bytes_max = min(
            parse_count(query.get("max_bytes"), "max_bytes", settings.read_bytes_max),
            settings.read_bytes_max,
        )
        accept = request.headers.get("Accept", "")
        if EVENTS_TYPE in accept:
            last = request.headers.get("Last-Event-ID")
            if last is not None:
                return await self._send_events(request, partition, _offset_behind(last))
            given = query.get("offset")
            offset = await _offset_of(partition, given)
            # A client that comes again is told of what came meanwhile, also where nothing came before.
            is_moving = given is not None and (given == "latest" or given.startswith(_TIME_PREFIX))
            first = _as_place(offset) if is_moving else b""
            return await self._send_events(request, partition, offset, first=first)
        offset = await _offset_of(partition, query.get("offset"))
        wait_seconds = min(
            float(parse_count(query.get("wait_seconds"), "wait_seconds", 0)),
            settings.long_poll_seconds,
        )
        content = await partition.fetch(offset, bytes_max)
        if not content and wait_seconds > 0:
            try:
                async with self._waiters.wait(wait_seconds):
                    await partition.wait_behind(offset)
            except TimeoutError:
                pass
            content = await partition.fetch(offset, bytes_max)
        headers = {**SECURITY_HEADERS, "Cache-Control": "no-store"}
        if BATCH_TYPE in accept:
            return web.Response(headers={**headers, "Content-Type": BATCH_TYPE}, body=content)
        short = is_short(content)
        if LINES_TYPE in accept:
            lines, next_offset = await self._in_executor(
                partial(_as_lines, content, offset), is_short=short
            )
            return web.Response(
                headers={**headers, "Content-Type": LINES_TYPE, "Next-Offset": str(next_offset)},
                body=lines,
            )
        ends = {
            "high_watermark": partition.high_watermark,
            "log_start_offset": partition.log_start_offset,
        }
        body = await self._in_executor(partial(_as_json, content, offset, ends), is_short=short)
        return json_bytes_response(200, body)

    async def _send_events(
        self,
        request: web.BaseRequest,
        partition: ServedPartition,
        offset: int,
        *,
        first: bytes = b"",
    ) -> web.StreamResponse:
        """An event for each record, behind `first`, until the connection's time is over or the server stops."""
        settings = self._settings
        # What cannot be read is refused before the answer begins.
        content = await partition.fetch(offset, 0)
        await self._in_executor(partial(_as_events, content, offset), is_short=is_short(content))
        async with self._waiters.connection():
            headers = {
                **SECURITY_HEADERS,
                "Content-Type": EVENTS_TYPE,
                "Cache-Control": "no-cache, no-store",
                "X-Accel-Buffering": "no",
            }
            response = web.StreamResponse(status=200, headers=headers)
            self._cross_origin.add_to(request, response)
            async with (
                begun(request, response),
                aclosing(self._events(partition, offset, first)) as events,
            ):
                async for event in events:
                    async with asyncio.timeout(settings.write_seconds_max):
                        await response.write(event)
        return response

    async def _events(
        self, partition: ServedPartition, offset: int, first: bytes
    ) -> AsyncGenerator[bytes, None]:
        settings = self._settings
        loop = asyncio.get_running_loop()
        deadline = loop.time() + settings.sse_seconds
        if first:
            yield first
        while not self._waiters.stopping and (left := deadline - loop.time()) > 0:
            try:
                content = await partition.fetch(offset, settings.window_bytes)
                if not content:
                    try:
                        async with self._waiters.wait(min(left, settings.long_poll_seconds)):
                            await partition.wait_behind(offset)
                    except TimeoutError:
                        yield b":\n\n"  # a comment: proxies see that the connection lives
                    continue
            except (TopicError, SegmentStoreError, Refusal):
                # Deleted, cut, moved: the reader asks again, from behind its last event, and learns why.
                return
            try:
                events, offset = await self._in_executor(
                    partial(_as_events, content, offset), is_short=is_short(content)
                )
            except BatchError:
                return  # as above
            yield events


def _parsed_batches(
    body: bytes,
    *,
    lines: bool,
    now_ms: int,
    partition: int | None,
    drawn: int,
    partition_count: int,
    compression: Compression,
) -> Batches:
    return batches_of(
        parse_records(body, lines=lines, now_ms=now_ms),
        partition=partition,
        drawn=drawn,
        partition_count=partition_count,
        compression=compression,
    )


def _config_of(fields: Mapping[str, object]) -> Mapping[str, str | None]:
    config = fields.get("config", {})
    if not isinstance(config, dict) or not all(
        value is None or isinstance(value, str) for value in config.values()
    ):
        raise bad_request('config is no object of texts, as in {"retention.ms": "86400000"}')
    return config


def _places_as_json(places: Iterable[int], first: Mapping[int, int]) -> bytes:
    rows = (
        f'{{"partition": {partition}, "offset": {offset}}}'
        for partition, offset in _offsets(places, first)
    )
    return f'{{"records": [{", ".join(rows)}]}}'.encode()


def _offsets(places: Iterable[int], first: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    following = dict(first)
    for partition in places:
        yield partition, following[partition]
        following[partition] += 1


async def _offset_of(partition: ServedPartition, given: str | None) -> int:
    """Raises Refusal (400). A time behind the last record is the end."""
    if given in (None, "earliest", "latest"):
        await partition.confirm_ends()
        return partition.high_watermark if given == "latest" else partition.log_start_offset
    assert given is not None, "none of the words"
    if given.startswith(_TIME_PREFIX):
        # The end as of before the look: what comes beside it may be of that time.
        end = partition.high_watermark
        found = await partition.offset_at_time(parse_count(given[len(_TIME_PREFIX) :], "time", 0))
        return max(end, partition.log_start_offset) if found is None else found[0]
    return parse_count(given, "offset", 0)


def _offset_behind(last_event_id: str) -> int:
    """Raises Refusal (400)."""
    if last_event_id == _NO_RECORD_ID:
        return 0
    return parse_count(last_event_id, "Last-Event-ID", 0) + 1


def _as_place(offset: int) -> bytes:
    """No event, as it has no data: what _offset_behind() is told by a client that gets none behind it."""
    return f"id:{offset - 1}\n\n".encode()


def _as_lines(content: bytes, offset: int) -> tuple[bytes, int]:
    shown, next_offset = _shown_from(content, offset)
    return "".join(f"{_compact(each)}\n" for each in shown).encode(), next_offset


def _as_json(content: bytes, offset: int, ends: Mapping[str, int]) -> bytes:
    shown, next_offset = _shown_from(content, offset)
    # One by one: within one call of the encoder no other thread runs.
    records = ", ".join(json.dumps(each) for each in shown)
    facts = json.dumps({"next_offset": next_offset, **ends})
    return f'{{"records": [{records}], {facts[1:]}'.encode()


def _as_events(content: bytes, offset: int) -> tuple[bytes, int]:
    shown, next_offset = _shown_from(content, offset)
    events = "".join(f"id:{each['offset']}\ndata:{_compact(each)}\n\n" for each in shown)
    return events.encode(), next_offset


def _shown_from(content: bytes, offset: int) -> tuple[Sequence[Mapping[str, object]], int]:
    records, next_offset = told_records(content, offset)
    return [record_as_json(record) for record in records], next_offset
