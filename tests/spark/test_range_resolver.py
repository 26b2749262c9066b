"""The blocks that the Java reader is told to read: all that hold an event of the range; what is lost is told."""

from dataclasses import replace

import pytest

from segmentstore.contracts.identifiers import EVENT_COUNT
from segmentstore.spark.jvm import block_locations
from segmentstore.spark.jvm.block_locations import RangeResolver, ResolvedBlockCache
from segmentstore.spark.scan.data_loss import DataLossError
from segmentstore.spark.scan.partitions import BlockRange
from segmentstore.spark.tier2_access import Tier2Reader
from tests.spark.event_segment import NAME, START_MS, EventSegment, event_segment
from tests.spark.stream_history import MovingStore, begin_history


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_locations, "OPEN_PAUSE_SECONDS", 0.0)


def whole(segment: EventSegment) -> BlockRange:
    return BlockRange(
        scope="s",
        stream="t",
        segment_id=0,
        segment_name=NAME,
        container_id=0,
        start=0,
        end=segment.record.length,
    )


def resolver(view: Tier2Reader, *, fails: bool = True) -> RangeResolver:
    return RangeResolver(
        view,
        asks_service=False,
        fail_on_data_loss=fails,
        executor=None,
        placed=ResolvedBlockCache(),
    )


async def test_blocks_behind_a_newer_one_are_named_if_a_merge_brought_older_events() -> None:
    segment = await event_segment()
    await segment.append([b"direct"], at_ms=START_MS + 500)
    await segment.append([b"newer"], at_ms=START_MS + 9000)
    await segment.merge([b"of a transaction"] * 3)
    part = replace(whole(segment), highest_time_ms=START_MS + 2000)
    found = await resolver(await segment.view()).place(part)
    assert found is not None
    assert [block.event_number for block in found.blocks] == [0, 1, 2]
    assert found.end == segment.record.length


async def test_blocks_on_both_sides_that_are_too_old_or_too_new_are_left_out() -> None:
    segment = await event_segment()
    for second in (0, 5, 9, 6, 9):
        await segment.append([b"x" * 100], at_ms=START_MS + 1000 * second)
    part = replace(whole(segment), lowest_time_ms=START_MS + 4000, highest_time_ms=START_MS + 7000)
    found = await resolver(await segment.view()).place(part)
    assert found is not None
    assert [block.event_number for block in found.blocks] == [1, 2, 3]
    assert (found.start, found.end) == (108, 4 * 108)


@pytest.mark.parametrize("kept", [1, 0], ids=["a part", "all"])
async def test_a_range_that_was_truncated_away_since_it_was_planned_is_lost(kept: int) -> None:
    segment = await event_segment()
    await segment.append([b"%d" % number for number in range(10)])
    part = whole(segment)
    head = segment.offsets[9] if kept else segment.record.length
    await segment.truncate(head)
    with pytest.raises(DataLossError, match=f"head={head}"):
        await resolver(await segment.view()).place(part)
    left = await resolver(await segment.view(), fails=False).place(part)
    assert (left is not None) == bool(kept)
    if left is not None:
        assert (left.start, left.end) == (head, segment.record.length)


@pytest.mark.parametrize(("content", "described"), [("raw", True), ("raw", False), ("bytes", True)])
async def test_a_segment_that_is_removed_while_its_blocks_are_looked_up_is_lost(
    content: str, described: bool
) -> None:
    # Where no index knows a number the events of the three chunks are counted.
    for reads in range(3 if described else 6):
        for fails in (True, False):
            segment = (await begin_history()).segment
            for number in range(4):
                await segment.append([b"%d" % number * 50], described=described)
            segment.record = replace(segment.record, core_attributes={EVENT_COUNT: 4})
            await segment.truncate(segment.offsets[1])
            part = replace(whole(segment), start=segment.offsets[1], content=content)
            view = await segment.view()
            assert isinstance(segment.store, MovingStore)
            segment.store.reads_left, segment.store.before_read = reads, segment.remove
            if fails:
                with pytest.raises(DataLossError, match="head=0 tail=0"):
                    await resolver(view).place(part)
            else:
                assert await resolver(view, fails=False).place(part) is None, reads
