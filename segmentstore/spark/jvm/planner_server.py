"""Answers the questions of the Java reader: what columns, what ranges, where a range lies by now, bytes of the tail.

It runs as a process of its own, `python -m segmentstore.spark.jvm.planner_server`, started by the JVM that plans or
reads, and ends when its input does or after it was idle for long. Standard output is kept for answers alone.
The interpreter is that of the option `python`, of `spark.segmentstore.python`, of Spark's own settings, or of
`PYSPARK_DRIVER_PYTHON` or `PYSPARK_PYTHON`.

    question    u32 length, JSON
    answer      u32 length, JSON; u32 length, bytes              (lengths big-endian)

    {"verb": "schema", "options": {}}                          {"schema": "offset bigint, ..."}
    {"verb": "plan", "options": {}, "filters": []}             {"places": [], "ranges": []}
    {"verb": "resolve", "options": {}, "range": {}}            {"places": [], "ranges": []}, of one range or none
    {"verb": "tail", "options": {}, "range": {}, "wanted": 0}  {}, and the bytes [start, end) of the segment
                                                               {"error": "sentence"} instead of any of these

`options` are those of the data source. A filter is [column, comparison, [number, ...]]: segment_id, offset, or
timestamp in microseconds; =, <, <=, >, >= or in. A place is one of block_locations.py, or "service:". What lies before
`wanted` is only walked over by the reader that asks for a tail: it is no loss. A range:

    scope, stream, segment_id    null for a segment that is no stream's
    own_id                       of such a segment, in its container: another one of its name is not read for it
    segment                      its qualified name
    content                      raw, record or bytes
    start, end                   the events that begin in [start, end) are asked for
    walk_from                    where an event begins, at or before `start`
    blocks                       null: ask `resolve`; otherwise nine numbers for each block, one behind the other:
                                   number of its place, position there, stored length, compression, offset in the
                                   segment, uncompressed length, offset of the first event that begins in it (or null),
                                   its number (or null), lower bound of append times in Unix microseconds (or null)

Invariant: whatever is asked may be asked again, of this process or of another one: what it remembers is true for ever.
"""

import json
import os
import select
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, BinaryIO, Final, TypeAlias, cast

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from segmentstore.contracts.errors import (
    InvalidRequestError,
    SegmentNotFoundError,
    SegmentStoreError,
    SegmentTruncatedError,
)
from segmentstore.spark.jvm.block_locations import RangeResolver, ResolvedBlockCache
from segmentstore.spark.options import SourceOptions, parse_options
from segmentstore.spark.python_worker import InlineExecutor, LoopRunner, freeze_imports
from segmentstore.spark.scan.data_loss import DataLossError, pass_over
from segmentstore.spark.scan.partitions import BlockRange, SegmentRange
from segmentstore.spark.scan.scan_planner import bounds_of, plan_scan
from segmentstore.spark.schema import spark_schema
from segmentstore.spark.service_connection import connect_service
from segmentstore.spark.streams.stream_source import StreamSource, open_stream_source, place_of
from segmentstore.spark.tier2_access import is_bucket, locate_objects
from tier2.outside_access import ObjectLocation

if TYPE_CHECKING:
    # Only queries that ask the service need its client library.
    from segmentstore.client.byte_segment import ByteSegment

IDLE_SECONDS_MAX: Final = 600.0
PLACED_OBJECTS_MAX: Final = 1000
"""Objects whose indexes are read for a plan; those of further ranges are left to the tasks that read them."""
PLACED_REMOTE_OBJECTS_MAX: Final = 64
"""The same where every look is a request."""
SERVICE: Final = "service:"
_LENGTH: Final = struct.Struct(">I")
_TAIL_READ_BYTES: Final = 4 << 20
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROS_MAX: Final = 250_000_000_000_000_000
"""In the year 9892."""

Fields: TypeAlias = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question, parsed."""

    verb: str
    options: Mapping[str, str]
    filters: Sequence[tuple[str, str, Sequence[int]]] = ()
    range: SegmentRange | None = None
    wanted: int = 0


def answer(
    question: Question, runner: LoopRunner, placed: ResolvedBlockCache
) -> tuple[Fields, bytes]:
    """JSON and bytes. Raises SegmentStoreError, OSError."""
    options = parse_options(question.options)
    if options.metadata:
        raise InvalidRequestError(
            "segmentstore-jvm reads data; metadata tables are those of the format segmentstore"
        )
    match question.verb:
        case "schema":
            return {"schema": spark_schema(options.columns)}, b""
        case "plan":
            return _plan(options, question.filters, runner, placed), b""
        case "resolve" if question.range is not None:
            return _resolve(options, question.range, runner, placed), b""
        case "tail" if question.range is not None:
            return {}, runner.run(_tail(options, question.range, question.wanted))
        case _:
            raise InvalidRequestError(f"unknown question verb={question.verb!r}")


def _plan(
    options: SourceOptions,
    filters: Sequence[tuple[str, str, Sequence[int]]],
    runner: LoopRunner,
    placed: ResolvedBlockCache,
) -> Fields:
    bounds = bounds_of(_filter(*each) for each in filters if _can_be_said(*each))

    async def work() -> Sequence[SegmentRange]:
        async with open_stream_source(options, executor=runner.executor) as source:
            ranges = await plan_scan(source, options, bounds)
            return await _place(source, options, ranges, runner, placed)

    return _exported(options, runner.run(work()))


def _resolve(
    options: SourceOptions, part: SegmentRange, runner: LoopRunner, placed: ResolvedBlockCache
) -> Fields:
    async def work() -> Sequence[SegmentRange]:
        async with open_stream_source(options, executor=runner.executor) as source:
            # It is asked because a reader did not find what it was told of, or was told of nothing.
            return await _place(source, options, [part], runner, placed, asks_now=True)

    return _exported(options, runner.run(work()))


async def _place(
    source: StreamSource,
    options: SourceOptions,
    ranges: Sequence[SegmentRange],
    runner: LoopRunner,
    placed: ResolvedBlockCache,
    *,
    asks_now: bool = False,
) -> Sequence[SegmentRange]:
    store = source.store if asks_now else None
    placer = RangeResolver(
        source.view,
        asks_service=options.uses_service,
        fail_on_data_loss=options.fail_on_data_loss,
        executor=runner.executor,
        placed=placed,
        served=None if store is None else lambda name: store.segment(name).info(),
    )
    place = place_of(options)
    remote = place is not None and is_bucket(place)
    objects_max = PLACED_REMOTE_OBJECTS_MAX if remote else PLACED_OBJECTS_MAX
    whole: list[SegmentRange] = []
    objects: set[str] = set()
    for each in ranges:
        found = await placer.place(each) if len(objects) < objects_max else each
        if found is not None:
            whole.append(found)
            objects.update(_object_keys(found))
    return whole


async def _tail(options: SourceOptions, part: SegmentRange, wanted: int) -> bytes:
    if not options.uses_service:
        return b""
    async with connect_service(options) as store:
        segment = store.segment(part.segment_name)
        return await read_tail(segment, part, wanted, fail_on_data_loss=options.fail_on_data_loss)


async def read_tail(
    segment: "ByteSegment", part: SegmentRange, wanted: int, *, fail_on_data_loss: bool
) -> bytes:
    """What the service has of it, which may end before the range does.

    Raises DataLossError if bytes from `wanted` on are gone and `fail_on_data_loss` is set.
    """
    content = bytearray()
    try:
        while len(content) < part.length:
            size = min(part.length - len(content), _TAIL_READ_BYTES)
            piece = await segment.read(part.start + len(content), size)
            if not piece:
                break
            content += piece
    except (SegmentNotFoundError, SegmentTruncatedError) as error:
        # A reader that gets fewer bytes than it was told of asks for the range anew.
        head = error.start_offset if isinstance(error, SegmentTruncatedError) else 0
        if not 0 < head <= wanted:
            loss = DataLossError(
                part.segment_name, start=part.start, end=part.end, head=head, tail=head
            )
            pass_over(loss, fail=fail_on_data_loss)
    return bytes(content)


def _exported(options: SourceOptions, ranges: Sequence[SegmentRange]) -> Fields:
    keys = sorted({key for each in ranges for key in _object_keys(each)})
    place = place_of(options)
    found: Mapping[str, ObjectLocation] = {}
    if place is not None and keys:
        found = locate_objects(place, keys)
    numbers: dict[str, int] = {SERVICE: 0}
    return {
        "ranges": [_exported_range(each, found, numbers) for each in ranges],
        "places": list(numbers),
    }


def _object_keys(part: SegmentRange) -> Iterable[str]:
    blocks = part.blocks if isinstance(part, BlockRange) else ()
    return (block.object_key for block in blocks if block.object_key)


def _exported_range(
    part: SegmentRange, found: Mapping[str, ObjectLocation], numbers: dict[str, int]
) -> Fields:
    blocks: list[int | None] | None = None
    if isinstance(part, BlockRange) and part.blocks:
        blocks = []
        for block in part.blocks:
            # An object that is gone by now has a place all the same: nothing is found there, and it is asked again.
            place = found.get(block.object_key) or ObjectLocation("data:")
            name = place.name if block.object_key else SERVICE
            blocks += [
                numbers.setdefault(name, len(numbers)),
                place.position + block.position if block.object_key else block.position,
                block.stored_length,
                block.compression,
                block.offset,
                block.length,
                block.first_event_offset,
                block.event_number if block.event_number >= 0 else None,
                block.lowest_time_ms * 1000 if block.lowest_time_ms else None,
            ]
    return {
        "scope": part.scope,
        "stream": part.stream,
        "segment_id": part.segment_id,
        "own_id": part.own_id,
        "segment": part.segment_name,
        "content": part.content,
        "start": part.start,
        "end": part.end,
        "walk_from": part.walk_start,
        "container_id": part.container_id,
        "blocks": blocks,
    }


def _can_be_said(column: str, _comparison: str, numbers: Sequence[int]) -> bool:
    """Spark's calendar is longer than Python's; what lies beyond leaves out nothing here."""
    return column != "timestamp" or all(0 <= number < _MICROS_MAX for number in numbers)


def _filter(column: str, comparison: str, numbers: Sequence[int]) -> Filter:
    values: list[object] = list(numbers)
    if column == "timestamp":
        values = [_EPOCH + timedelta(microseconds=number) for number in numbers]
    if comparison == "in":
        return In((column,), tuple(values))
    kind = {
        "=": EqualTo,
        "<": LessThan,
        "<=": LessThanOrEqual,
        ">": GreaterThan,
        ">=": GreaterThanOrEqual,
    }[comparison]
    return kind((column,), values[0])


def parse_question(content: bytes) -> Question:
    """Raises ValueError, KeyError or TypeError for what is no question."""
    fields = json.loads(content)
    part = fields.get("range")
    return Question(
        verb=fields["verb"],
        options=fields["options"],
        filters=[tuple(each) for each in fields.get("filters", ())],
        range=None if part is None else SegmentRange(**part),
        wanted=fields.get("wanted", 0),
    )


def serve(questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer until the questions end, or none came for long."""
    # One question after the other, with nothing to do meanwhile: threads would only hand it to and fro.
    placed = ResolvedBlockCache()
    with LoopRunner(executor=InlineExecutor()) as runner:
        while select.select([questions], [], [], IDLE_SECONDS_MAX)[0]:
            head = _read(questions, _LENGTH.size)
            if len(head) < _LENGTH.size:
                return
            question = parse_question(_read(questions, _LENGTH.unpack(head)[0]))
            try:
                fields, content = answer(question, runner, placed)
            except (SegmentStoreError, OSError) as error:
                fields, content = {"error": str(error)}, b""
            encoded = json.dumps(fields).encode()
            answers.write(_LENGTH.pack(len(encoded)) + encoded + _LENGTH.pack(len(content)))
            answers.write(content)
            answers.flush()
            freeze_imports()


def _read(questions: BinaryIO, size: int) -> bytes:
    """So many bytes, or fewer at the end. No buffer is used: one would hide a waiting question from `select`."""
    content = bytearray()
    while len(content) < size and (piece := questions.read(size - len(content))):
        content += piece
    return bytes(content)


def main() -> None:
    """Serve standard input. What anything prints goes to standard error, never between the answers."""
    questions = cast(BinaryIO, os.fdopen(0, "rb", buffering=0))  # a raw file, which reads as one
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(sys.stderr.fileno(), 1)
    serve(questions, answers)


if __name__ == "__main__":
    main()
