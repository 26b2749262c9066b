from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import cast

import pytest
from pyspark.sql.datasource import Filter, GreaterThanOrEqual

from segmentstore.codec.controller_records.stream_records import SealedSegmentRecord
from segmentstore.spark.options import Content, SourceOptions, parse_options
from segmentstore.spark.scan import scan_planner
from segmentstore.spark.scan.data_loss import DataLossError
from segmentstore.spark.scan.partitions import SegmentRange
from segmentstore.spark.scan.scan_planner import (
    NO_BOUNDS,
    PushedBounds,
    RangeFactory,
    plan_scan,
    planned_ranges,
    split_ranges,
)
from segmentstore.spark.streams import stream_source
from segmentstore.spark.streams.segment_graph import (
    StreamMetadata,
    StreamMissingError,
    StreamSegmentMetadata,
)
from segmentstore.spark.streams.service_catalog import ServiceStreamCatalog
from segmentstore.spark.streams.stream_source import StreamSource, tier2_segment_metadata
from tests.reference.counted_lines import counted_lines
from tests.spark.event_segment import (
    NAME,
    SETTINGS,
    START_MS,
    EventSegment,
    event_segment,
    frame,
    reading,
    rows_of,
)
from tests.spark.jobs.test_exported_rows import OneStream, stream_of
from tests.spark.jobs.test_exported_rows import segment as stream_segment
from tests.spark.stream_history import MovingStore, Reads, begin_history

MANY = 10_000


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that sees less than it is asked for waits for volumes that are late; here nothing is late."""
    monkeypatch.setattr(scan_planner, "OPEN_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(stream_source, "OPEN_PAUSE_SECONDS", 0.0)


async def plan(
    segment: EventSegment,
    words: Mapping[str, str] | None = None,
    bounds: PushedBounds = NO_BOUNDS,
) -> list[SegmentRange]:
    options = parse_options({"tier2": "here", "segment": NAME} | dict(words or {}))
    return await plan_scan(await source_of(segment, options), options, bounds)


async def source_of(segment: EventSegment, options: SourceOptions) -> StreamSource:
    return StreamSource(options=options, view=await segment.view(), store=None, served=None)


async def events_of(segment: EventSegment, parts: Sequence[SegmentRange]) -> list[object]:
    view = await segment.view()
    return [row["value"] for part in parts for row in await rows_of(reading(part, view))]


async def test_ranges_end_where_chunks_meet_and_hold_everything_once() -> None:
    segment = await event_segment()
    for number in range(30):
        await segment.append([b"%d" % number * 5000] * 3)
    parts = await plan(segment, {"maxBytesPerPartition": "128k"})
    assert len(parts) > 5
    assert all(left.end == right.start for left, right in pairwise(parts))
    assert all(part.length <= 128 << 10 for part in parts)
    assert await events_of(segment, parts) == segment.events


async def test_a_chunk_longer_than_a_range_is_cut_where_an_event_begins() -> None:
    segment = await event_segment()
    await segment.append([bytes([number % 256]) * 100_000 for number in range(120)])
    parts = await plan(segment, {"minPartitions": "4"})
    # Blocks have a megabyte, and no range is longer than a quarter of twelve.
    assert 4 <= len(parts) <= 6
    assert all(part.start in segment.offsets for part in parts)
    assert await events_of(segment, parts) == segment.events


async def test_a_segment_of_which_nobody_said_where_events_lie_stays_whole() -> None:
    segment = await event_segment()
    for _ in range(50):
        await segment.append([b"x" * 20_000], described=False)
    (part,) = await plan(segment, {"maxBytesPerPartition": "64k"})
    assert (part.start, part.end) == (0, segment.record.length)
    assert len(await plan(segment, {"maxBytesPerPartition": "128k", "content": "bytes"})) > 4


async def test_ten_thousand_chunks_are_planned_without_a_listing_and_without_a_look_at_them() -> (
    None
):
    segment = await event_segment(replace(SETTINGS, chunk_bytes_max=64))
    await segment.append([b"%05d" % number * 16 for number in range(MANY)])
    options = parse_options({"tier2": "here", "segment": NAME, "maxBytesPerPartition": "64k"})
    source = await source_of(segment, options)
    with counted_lines() as lines:
        parts = await plan_scan(source, options, NO_BOUNDS)
    assert len(parts) == -(-segment.record.length // (64 << 10))
    assert segment.store.listings == 0
    assert segment.store.gets < MANY / 50
    assert lines.count < 500 * MANY


@pytest.mark.parametrize("truncated", [False, True])
async def test_what_retention_takes_away_while_ranges_are_cut_is_left_to_their_readers(
    truncated: bool,
) -> None:
    for reads in range(6):
        segment = await changing_behind(reads, truncated=truncated)
        parts = await plan(segment, {"maxBytesPerPartition": "64k"})
        assert (parts[0].start, parts[-1].end) == (0, segment.record.length), reads
        assert all(left.end == right.start for left, right in pairwise(parts))


@pytest.mark.parametrize("word", ["startingTimestamp", "endingTimestamp"])
async def test_what_retention_takes_away_while_a_time_is_looked_for_is_seen_for_what_it_is(
    word: str,
) -> None:
    for reads in range(4):
        segment = await changing_behind(reads, truncated=True)
        words = {word: str(START_MS + 3000)}
        parts = await plan(segment, words)
        assert parts == await plan(segment, words), reads
        segment = await changing_behind(reads, truncated=False)
        # As a stream that was deleted. A stream of several segments has the others.
        with pytest.raises(StreamMissingError):
            await plan(segment, words)


async def changing_behind(reads: int, *, truncated: bool) -> EventSegment:
    """Five chunks, four of which (or all) are taken away behind so many reads of chunks."""
    segment = (await begin_history()).segment
    for second in range(5):
        await segment.append([b"%d" % second * 50_000] * 2, at_ms=START_MS + 1000 * second)

    async def truncate() -> None:
        await segment.truncate(segment.offsets[8])
        await segment.compact()

    assert isinstance(segment.store, MovingStore)
    segment.store.reads_left = reads
    segment.store.before_read = truncate if truncated else segment.remove
    return segment


async def test_bounds_leave_out_what_no_filter_would_let_through() -> None:
    segment = await event_segment()
    for number in range(20):
        await segment.append([b"%d" % number * 50_000], at_ms=START_MS + number)
    low, high = segment.offsets[5], segment.offsets[8]
    bounds = PushedBounds(lowest_offset=low, highest_offset=high)
    parts = await plan(segment, {"maxBytesPerPartition": "64k"}, bounds)
    assert (parts[0].start, parts[-1].end) == (low, high + 1)
    assert await events_of(segment, parts) == segment.events[5:9]
    assert not await plan(segment, bounds=PushedBounds(segment_ids=frozenset({7})))


async def test_positions_by_offset_time_and_word() -> None:
    segment = await event_segment()
    for number in range(10):
        await segment.append([b"%d" % number] * 3, at_ms=START_MS + 1000 * number)
    ids = {"startingOffsets": f'{{"0": {segment.offsets[4]}}}'}
    assert await events_of(segment, await plan(segment, ids)) == segment.events[4:]
    until = {"endingOffsets": f'{{"0": {segment.offsets[4]}}}'}
    assert await events_of(segment, await plan(segment, until)) == segment.events[:4]
    times = {
        "startingTimestamp": str(START_MS + 3000),
        "endingTimestamp": str(START_MS + 7000),
    }
    assert await events_of(segment, await plan(segment, times)) == segment.events[9:21]
    assert await plan(segment, {"startingOffsets": "latest"}) == []


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ({"startingOffsets": '{"0": 3}'}, r"asked=\[3, 90\) head=27 tail=90"),
        ({"endingOffsets": '{"0": 91}'}, r"asked=\[27, 91\) head=27 tail=90"),
        ({"startingOffsets": '{"4294967299": 5}'}, "segment_id=4294967299"),
    ],
)
async def test_what_is_asked_for_and_not_there_is_an_error_or_is_left_out(
    words: dict[str, str], asked: str
) -> None:
    segment = await event_segment()
    await segment.append([b"%d" % number for number in range(10)])
    await segment.truncate(segment.offsets[3])
    with pytest.raises(DataLossError, match=asked):
        await plan(segment, words)
    parts = await plan(segment, words | {"failOnDataLoss": "false"})
    assert await events_of(segment, parts) == segment.events[3:]


async def test_a_segment_that_is_gone_and_of_which_nothing_is_asked_for_is_no_loss() -> None:
    segment = await event_segment()
    await segment.append([b"%d" % number for number in range(10)])
    for gone in ('"7": 40', '"7": -1', '"7": -2'):
        words = {"startingOffsets": f'{{{gone}, "0": 27}}', "endingOffsets": f'{{{gone}, "0": 81}}'}
        parts = await plan(segment, words)
        assert await events_of(segment, parts) == segment.events[3:9]
    for start, end in ((40, 41), (-2, -1), (-2, 40)):
        words = {"startingOffsets": f'{{"7": {start}}}', "endingOffsets": f'{{"7": {end}}}'}
        with pytest.raises(DataLossError, match="segment_id=7"):
            await plan(segment, words)


GONE = '{"0": 50, "1": 20}'
"""A start at the end of a segment that was removed, and inside of its neighbour."""
CHILD = 1 << 32 | 2


async def plan_behind_gone(
    monkeypatch: pytest.MonkeyPatch,
    *,
    end: SealedSegmentRecord | None,
    child: StreamSegmentMetadata,
    **words: str,
) -> list[tuple[int | None, int, int]]:
    """Of a stream that has lost its first segment, which ended as `end` says."""
    words = {"tier2": "here", "stream": "s/t", "startingOffsets": GONE, **words}
    options = parse_options(words)
    stream = stream_of(stream_segment(1, 0, 90), child)
    source = StreamSource(
        options=options,
        view=None,
        store=None,
        served=cast(ServiceStreamCatalog, OneStream(stream)),
    )

    async def ends_of_gone(
        _scope: str, _stream: str, segment_ids: Sequence[int]
    ) -> Sequence[SealedSegmentRecord | None]:
        return [end for _ in segment_ids]

    monkeypatch.setattr(source, "ends_of_gone", ends_of_gone)
    parts = await plan_scan(source, options, NO_BOUNDS)
    return [(part.segment_id, part.start, part.end) for part in parts]


async def test_a_start_at_the_end_of_a_segment_that_is_gone_is_no_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end = SealedSegmentRecord(replacing_epoch=1, length=50)
    child = stream_segment(CHILD, 0, 30)
    found = await plan_behind_gone(monkeypatch, end=end, child=child)
    assert found == [(1, 20, 90), (CHILD, 0, 30)]


@pytest.mark.parametrize(
    ("end", "child"),
    [
        pytest.param(None, stream_segment(CHILD, 0, 30), id="unknown"),
        pytest.param(SealedSegmentRecord(1), stream_segment(CHILD, 0, 30), id="not sealed"),
        pytest.param(SealedSegmentRecord(1, 51), stream_segment(CHILD, 0, 30), id="longer"),
        pytest.param(SealedSegmentRecord(1, 49), stream_segment(CHILD, 0, 30), id="shorter"),
        pytest.param(SealedSegmentRecord(1, 50), stream_segment(CHILD, 9, 30), id="truncated"),
        pytest.param(
            SealedSegmentRecord(1, 50), stream_segment(2 << 32 | 3, 0, 30), id="one between"
        ),
    ],
)
async def test_a_start_before_what_is_gone_is_loss(
    monkeypatch: pytest.MonkeyPatch, end: SealedSegmentRecord | None, child: StreamSegmentMetadata
) -> None:
    with pytest.raises(DataLossError, match="segment_id=0"):
        await plan_behind_gone(monkeypatch, end=end, child=child)
    found = await plan_behind_gone(monkeypatch, end=end, child=child, failOnDataLoss="false")
    assert found == [(1, 20, 90), (child.segment_id, child.start_offset, 30)]


async def test_an_end_in_a_segment_that_is_gone_is_loss_also_behind_its_last_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end = SealedSegmentRecord(replacing_epoch=1, length=50)
    child = stream_segment(CHILD, 0, 30)
    with pytest.raises(DataLossError, match="segment_id=0"):
        await plan_behind_gone(
            monkeypatch, end=end, child=child, startingOffsets="earliest", endingOffsets=GONE
        )


async def test_what_tier2_does_not_hold_yet_is_a_tail() -> None:
    segment = await event_segment()
    await segment.append([b"x" * 100] * 10)
    view = await segment.view()
    stream = await tier2_segment_metadata(view, NAME)
    (published,) = stream.segments
    longer = replace(stream, segments=[replace(published, end_offset=published.end_offset + 50)])
    stretches = planned_ranges(
        longer,
        starts={0: 0},
        ends={0: published.end_offset + 50},
        fail_on_data_loss=True,
    )
    maker = RangeFactory(scope="s", stream="t", content=Content.RAW)
    parts = await split_ranges(view, maker, stretches, target_bytes=1 << 20)
    assert [(type(part).__name__, part.start, part.end) for part in parts] == [
        ("BlockRange", 0, published.end_offset),
        ("SegmentRange", published.end_offset, published.end_offset + 50),
    ]


@pytest.mark.parametrize("end", ["latest", '{"0": 100}'])
async def test_a_start_behind_the_tail_is_loss_or_has_no_rows(end: str) -> None:
    segment = await event_segment()
    await segment.append([b"%d" % number for number in range(10)])
    words = {"startingOffsets": '{"0": 120}', "endingOffsets": end}
    with pytest.raises(DataLossError, match=r"asked=\[120, .* tail=90"):
        await plan(segment, words)
    assert await plan(segment, words | {"failOnDataLoss": "false"}) == []
    assert await plan(segment, {"startingOffsets": '{"0": 90}'}) == []


async def test_a_position_that_volumes_show_a_little_late_is_no_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    segment = await event_segment()
    await segment.append([b"first"])
    options = parse_options({"tier2": "x", "segment": NAME, "startingOffsets": '{"0": 26}'})
    source = await source_of(segment, options)
    looks = 0

    async def look(name: str) -> StreamMetadata:
        nonlocal looks
        looks += 1
        if looks == 2:
            await segment.append([b"later"] * 2)
        assert source.view is not None
        await source.view.refresh()
        return await tier2_segment_metadata(source.view, name)

    monkeypatch.setattr(source, "segment_metadata_of", look)
    (part,) = await plan_scan(source, options, NO_BOUNDS)
    assert (part.start, part.end) == (26, 39)


async def test_bounds_on_offsets_leave_blocks_of_bytes_as_they_are() -> None:
    segment = await event_segment()
    await segment.append_bytes(b"0123456789" * 10)
    for bounds in (NO_BOUNDS, PushedBounds(lowest_offset=0, highest_offset=0)):
        parts = await plan(segment, {"content": "bytes"}, bounds)
        assert [(part.start, part.end) for part in parts] == [(0, 100)]


INNER = frame(b"FAKE")
"""An event that nobody wrote, inside of one that somebody did."""
EVENTS = [INNER, INNER, b"plain text", b"last"]


@pytest.mark.parametrize("reader", ["python", "java"])
@pytest.mark.parametrize("with_tier2", [True, False], ids=["before a flush", "without Tier 2"])
@pytest.mark.parametrize("least", [28, 41])
async def test_events_that_only_the_service_has_are_found_from_inside_of_an_event(
    reader: str, with_tier2: bool, least: int
) -> None:
    history = await begin_history()
    history.write(EVENTS)
    words = {"content": "raw", "columns": "offset,value"}
    expected = [(start, history.event_at(start)) for start in history.starts if start >= least]
    ways: list[tuple[int | None, list[Filter]]] = [
        (None, [GreaterThanOrEqual(("offset",), least)]),
        (least, []),
    ]
    for start, filters in ways:
        more = {} if start is None else {"startingOffsets": f'{{"0": {start}}}'}
        rows = await Reads(history, words | more, with_tier2=with_tier2).rows(reader, filters)
        assert [(row["offset"], row["value"]) for row in rows] == expected
