"""Goal: a segment of no stream that was deleted and made again is not taken for the one before it."""

from dataclasses import replace

import pytest

from segmentstore.contracts.identifiers import SegmentId
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.spark.jvm.block_locations import RangeResolver, ResolvedBlockCache
from segmentstore.spark.options import SourceOptions, parse_options
from segmentstore.spark.scan import range_reader, scan_planner
from segmentstore.spark.scan.data_loss import DataLossError, DataLossPolicy
from segmentstore.spark.scan.scan_planner import NO_BOUNDS, plan_scan
from segmentstore.spark.streaming import micro_batches
from segmentstore.spark.streaming.micro_batches import (
    BatchLimits,
    MicroBatchPlanner,
    TriggerSettings,
)
from segmentstore.spark.streaming.stream_reader import StreamingQuerySource
from segmentstore.spark.streams.stream_source import StreamSource
from tests.spark.event_segment import EventSegment, event_segment, reading, rows_of

NAME = "logs/today"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that sees less than a position says waits for volumes that are late; here nothing is late."""
    monkeypatch.setattr(micro_batches, "OPEN_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(scan_planner, "OPEN_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(range_reader, "OPEN_PAUSE_SECONDS", 0.0)


def options_of(**words: str) -> SourceOptions:
    return parse_options({"tier2": "here", "segment": NAME, **words})


async def source_of(segment: EventSegment, options: SourceOptions) -> StreamSource:
    return StreamSource(options=options, view=await segment.view(), store=None, served=None)


async def batches_of(segment: EventSegment, *, fails: bool, **words: str) -> MicroBatchPlanner:
    source = await source_of(segment, options_of(**words))
    return MicroBatchPlanner(
        source=StreamingQuerySource(source, wall_clock=SystemWallClock()),
        limits=BatchLimits(),
        trigger=TriggerSettings(),
        losses=DataLossPolicy(fail_on_data_loss=fails),
    )


async def begun(count: int) -> EventSegment:
    segment = await event_segment(name=NAME)
    await segment.append([b"%d" % number for number in range(count)])
    return segment


async def make_again(segment: EventSegment, count: int) -> None:
    await segment.remove()
    segment.record = replace(segment.record, segment_id=SegmentId(2), length=0)
    segment.events.clear()
    segment.offsets.clear()
    await segment.append([b"new %d" % number for number in range(count)])


async def parts_of(
    batches: MicroBatchPlanner, start: dict[int, int], end: dict[int, int]
) -> list[tuple[int, int]]:
    found = await batches.stretches({NAME: start}, {NAME: end})
    return [(each.start, each.end) for each in found]


@pytest.mark.parametrize("count", [5, 30])
@pytest.mark.parametrize("frozen", [False, True])
async def test_a_segment_that_was_made_again_is_loss_and_then_read_from_its_beginning(
    count: int, frozen: bool
) -> None:
    segment = await begun(20)
    strict, lenient = [await batches_of(segment, fails=fails) for fails in (True, False)]
    reached = dict((await strict.next_end({NAME: {0: 0}}))[NAME])
    assert list(reached.values()) == [segment.record.length]
    await make_again(segment, count)
    for batches in (strict, lenient):
        if frozen:
            await batches.freeze()
    with pytest.raises(DataLossError, match="data is lost"):
        await strict.next_end({NAME: reached})
    end = dict((await lenient.next_end({NAME: reached}))[NAME])
    assert list(end.values()) == [segment.record.length]
    assert await parts_of(lenient, reached, end) == [(0, segment.record.length)]
    # The batch is planned once more, by a query that accepts no loss.
    with pytest.raises(DataLossError, match="data is lost"):
        await parts_of(strict, reached, end)


async def test_a_batch_of_a_segment_that_was_made_again_since_it_was_planned_is_loss() -> None:
    segment = await begun(20)
    strict, lenient = [await batches_of(segment, fails=fails) for fails in (True, False)]
    start = dict((await strict.first())[NAME])
    await segment.append([b"more"])
    end = dict((await strict.next_end({NAME: start}))[NAME])
    assert len(await parts_of(strict, start, end)) == 1
    await make_again(segment, 40)
    with pytest.raises(DataLossError, match="data is lost"):
        await parts_of(strict, start, end)
    assert await parts_of(lenient, start, end) == []


async def test_a_range_of_a_segment_that_was_made_again_since_it_was_planned_is_loss() -> None:
    segment = await begun(20)
    options = options_of()
    (part,) = await plan_scan(await source_of(segment, options), options, NO_BOUNDS)
    assert len(await rows_of(reading(part, await segment.view()))) == 20
    await make_again(segment, 40)
    view = await segment.view()
    with pytest.raises(DataLossError, match="head=0 tail=0"):
        await rows_of(reading(part, view))
    assert await rows_of(reading(part, view, fail_on_data_loss=False)) == []
    for fails in (True, False):
        resolver = RangeResolver(
            view,
            asks_service=False,
            fail_on_data_loss=fails,
            executor=None,
            placed=ResolvedBlockCache(),
        )
        if fails:
            with pytest.raises(DataLossError, match="head=0 tail=0"):
                await resolver.place(part)
        else:
            assert await resolver.place(part) is None


async def test_a_checkpoint_that_names_the_segment_by_0_goes_on() -> None:
    segment = await begun(20)
    length = segment.record.length
    batches = await batches_of(segment, fails=True)
    end = dict((await batches.next_end({NAME: {0: segment.offsets[5]}}))[NAME])
    assert list(end.values()) == [length]
    for behind in (end, {0: length}):
        assert await parts_of(batches, {0: segment.offsets[5]}, behind) == [
            (segment.offsets[5], length)
        ]
    with pytest.raises(DataLossError, match=f"tail={length}"):
        await batches.next_end({NAME: {0: length + 1}})


@pytest.mark.parametrize("number", [0, 1])
async def test_a_user_names_the_segment_by_0_or_by_its_id(number: int) -> None:
    segment = await begun(20)
    low, high = segment.offsets[3], segment.offsets[9]
    words = {
        "startingOffsets": f'{{"{number}": {low}}}',
        "endingOffsets": f'{{"{number}": {high}}}',
    }

    async def planned() -> list[tuple[int, int]]:
        options = options_of(**words)
        source = await source_of(segment, options)
        found = await plan_scan(source, options, NO_BOUNDS)
        return [(each.start, each.end) for each in found]

    assert await planned() == [(low, high)]
    batches = await batches_of(segment, fails=True, **words)
    first = dict((await batches.first())[NAME])
    end = dict((await batches.next_end({NAME: first}))[NAME])
    assert (list(first.values()), list(end.values())) == ([low], [high])
    await make_again(segment, 40)
    if number:
        with pytest.raises(DataLossError, match="segment_id=1"):
            await planned()
    else:
        assert await planned() == [(low, high)]
