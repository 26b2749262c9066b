"""Goal: a segment of no stream that was deleted and made again is not taken for the one before it."""

from dataclasses import replace
from random import Random

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
from segmentstore.spark.streams.offsets import encode_offset, lag_bytes
from segmentstore.spark.streams.stream_source import StreamSource
from segmentstore.spark.tier2_access import Tier2Reader
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


async def late_source_of(
    segment: EventSegment, options: SourceOptions, monkeypatch: pytest.MonkeyPatch, *, looks: int
) -> StreamSource:
    """Of a process that sees for so many looks what is there now."""
    source = await source_of(segment, options)
    assert source.view is not None
    refresh, left = source.view.refresh, looks

    async def refresh_late() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            await refresh()

    monkeypatch.setattr(source.view, "refresh", refresh_late)
    await source.selected_streams()
    return source


async def batches_of(segment: EventSegment, *, fails: bool, **words: str) -> MicroBatchPlanner:
    return batches_from(await source_of(segment, options_of(**words)), fails=fails)


def batches_from(
    source: StreamSource, *, fails: bool, bytes_max: int | None = None
) -> MicroBatchPlanner:
    return MicroBatchPlanner(
        source=StreamingQuerySource(source, wall_clock=SystemWallClock()),
        limits=BatchLimits(bytes_max=bytes_max),
        trigger=TriggerSettings(),
        losses=DataLossPolicy(fail_on_data_loss=fails),
    )


def resolver_of(view: Tier2Reader, *, fails: bool) -> RangeResolver:
    return RangeResolver(
        view,
        asks_service=False,
        fail_on_data_loss=fails,
        executor=None,
        placed=ResolvedBlockCache(),
    )


async def begun(count: int) -> EventSegment:
    segment = await event_segment(name=NAME)
    await segment.append([b"%d" % number for number in range(count)])
    return segment


async def make_again(segment: EventSegment, count: int) -> None:
    await segment.remove()
    own_id = SegmentId(segment.record.segment_id + 1)
    segment.record = replace(segment.record, segment_id=own_id, start_offset=0, length=0)
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
    placed = await resolver_of(await segment.view(), fails=True).place(part)
    assert placed is not None
    # What the Java reader asks by when blocks are not there any more.
    assert placed.own_id == part.own_id == 1
    await make_again(segment, 40)
    view = await segment.view()
    with pytest.raises(DataLossError, match="head=0 tail=0"):
        await rows_of(reading(part, view))
    assert await rows_of(reading(part, view, fail_on_data_loss=False)) == []
    for fails in (True, False):
        resolver = resolver_of(view, fails=fails)
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


@pytest.mark.parametrize("fails", [True, False])
async def test_a_planner_that_sees_the_segment_before_still_waits_for_the_one_that_a_position_names(
    monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    segment = await begun(20)
    late = [
        batches_from(await late_source_of(segment, options_of(), monkeypatch, looks=3), fails=fails)
        for _ in range(2)
    ]
    await make_again(segment, 10)
    middle, end = segment.offsets[4], segment.record.length
    assert await late[0].next_end({NAME: {2: middle}}) == {NAME: {2: end}}
    assert await parts_of(late[1], {2: middle}, {2: end}) == [(middle, end)]


@pytest.mark.parametrize("fails", [True, False])
async def test_a_batch_that_ends_behind_what_a_planner_sees_is_planned_once_that_is_seen(
    monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    segment = await begun(5)
    late = await late_source_of(segment, options_of(), monkeypatch, looks=3)
    await segment.append([b"more"])
    end = segment.record.length
    assert await parts_of(batches_from(late, fails=fails), {1: 0}, {1: end}) == [(0, end)]


async def test_a_batch_read_waits_for_the_segment_that_its_ends_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    segment = await begun(20)
    words = [{"startingOffsets": '{"2": 0}'}, {"endingOffsets": '{"2": -1}'}]
    options = [options_of(**each) for each in words]
    late = [await late_source_of(segment, each, monkeypatch, looks=3) for each in options]
    await make_again(segment, 10)
    for source in late:
        (part,) = await plan_scan(source, source.options, NO_BOUNDS)
        assert (part.own_id, part.start, part.end) == (2, 0, segment.record.length)


async def test_a_batch_that_an_older_version_began_is_one_of_the_segment_that_its_end_names() -> (
    None
):
    segment = await begun(20)
    strict, lenient = [await batches_of(segment, fails=fails) for fails in (True, False)]
    start = {0: segment.offsets[5]}
    end = dict((await strict.next_end({NAME: start}))[NAME])
    assert list(end) == [1]
    await make_again(segment, 40)
    with pytest.raises(DataLossError, match=f"{NAME} segment_id=1"):
        await parts_of(strict, start, end)
    assert await parts_of(lenient, start, end) == []


async def test_what_is_before_a_query_is_counted_by_the_name_that_its_position_has() -> None:
    segment = await begun(20)
    batches = await batches_of(segment, fails=True)
    reached, length = segment.offsets[5], segment.record.length
    for number in (0, 1):
        position = {NAME: {number: reached}}
        await batches.next_end(position)
        lag = lag_bytes(
            end_offset=encode_offset(position, single=NAME),
            latest_offset=encode_offset(batches.latest(position), single=NAME),
        )
        assert lag == length - reached


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
        with pytest.raises(DataLossError, match=f"{NAME} segment_id=1"):
            await planned()
    else:
        assert await planned() == [(low, high)]


@pytest.mark.parametrize("seed", range(40))
async def test_whatever_becomes_of_a_segment_a_query_reads_once_what_is_there(seed: int) -> None:
    """Goal: over appends, truncations and segments made again no batch holds an event twice, or one that is not there,
    and what is there at the end was read. With failOnDataLoss there is an error where some of it is gone, only there.

    Batches are limited, other processes go on with them, and the first position is one of an older version.
    """
    random = Random(seed)
    options = options_of()
    segment = await begun(random.randrange(8))
    position: dict[int, int] = {0: 0}
    read: set[tuple[int, int]] = set()
    batches = batches_from(await source_of(segment, options), fails=False, bytes_max=60)
    for step in range(24):
        match random.randrange(6) if step < 16 else 5:
            case 0:
                await segment.append([b"%d" % step] * random.randint(1, 4))
            case 1:
                left = [each for each in segment.offsets if each > segment.record.start_offset]
                if left:
                    await segment.truncate(random.choice([*left, segment.record.length]))
            case 2 if segment.record.segment_id < 8:
                await make_again(segment, random.randrange(6))
            case 3:
                batches = batches_from(await source_of(segment, options), fails=False, bytes_max=60)
            case _:
                now = segment.record
                own_id, offset = next(iter(position.items()))
                strict = batches_from(await source_of(segment, options), fails=True, bytes_max=60)
                is_other = own_id not in (0, now.segment_id)
                if is_other or not now.start_offset <= offset <= now.length:
                    with pytest.raises(DataLossError):
                        await strict.next_end({NAME: position})
                else:
                    planned = await strict.next_end({NAME: position})
                    assert planned == await batches.next_end({NAME: position})
                    some_left = await strict.stretches({NAME: position}, planned)
                    assert some_left or planned == {NAME: position}
                end = dict((await batches.next_end({NAME: position}))[NAME])
                for start, stop in await parts_of(batches, position, end):
                    assert now.start_offset <= start < stop <= now.length
                    some = {each for each in segment.offsets if start <= each < stop}
                    assert {start} <= some
                    events = {(now.segment_id, each) for each in some}
                    assert not events & read, "an event twice"
                    read |= events
                position = end
    for _ in range(40):
        end = dict((await batches.next_end({NAME: position}))[NAME])
        for start, stop in await parts_of(batches, position, end):
            read |= {
                (segment.record.segment_id, each)
                for each in segment.offsets
                if start <= each < stop
            }
        position = end
    here = [each for each in segment.offsets if each >= segment.record.start_offset]
    assert {(segment.record.segment_id, each) for each in here} <= read
