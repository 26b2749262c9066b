"""Goal: what one task reads is what its range holds, whatever the owner of the store does meanwhile."""

import gc
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from random import Random
from typing import cast

import pytest

from segmentstore.client.byte_segment import ByteSegment
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import EVENT_COUNT
from segmentstore.contracts.storage import SegmentRecord
from segmentstore.spark.options import SourceOptions
from segmentstore.spark.scan import block_reader, range_reader
from segmentstore.spark.scan.data_loss import DataLossError
from segmentstore.spark.scan.partitions import BlockRange, SegmentRange
from segmentstore.spark.scan.range_reader import RangeReader, read_range
from segmentstore.spark.tier2_access import Tier2Reader
from tests.spark.event_segment import (
    NAME,
    START_MS,
    EventSegment,
    event_segment,
    reading,
    rows_of,
)
from tests.spark.stream_history import History, MovingStore, ServedSegment, begin_history
from tier2.outside_access import ContainerReader


def whole(start: int, end: int, content: str = "raw") -> BlockRange:
    return BlockRange(
        scope="s",
        stream="t",
        segment_id=0,
        segment_name=NAME,
        container_id=0,
        start=start,
        end=end,
        content=content,
    )


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that sees less than its plan waits for volumes that are late; here nothing is late."""
    monkeypatch.setattr(range_reader, "OPEN_PAUSE_SECONDS", 0.0)


async def test_events_come_with_their_offsets_and_numbers() -> None:
    segment = await event_segment()
    for number in range(10):
        await segment.append([b"%d-%d" % (number, each) for each in range(number + 1)])
    view = await segment.view()
    rows = await rows_of(reading(whole(0, segment.record.length), view))
    assert [row["value"] for row in rows] == segment.events
    assert [row["offset"] for row in rows] == segment.offsets
    assert [row["event_number"] for row in rows] == list(range(len(segment.events)))


async def test_h76_numbers_survive_merges_truncation_and_compaction() -> None:
    segment = await event_segment()
    await segment.append([b"before"] * 5)
    await segment.merge([b"of a transaction"] * 4)
    await segment.append([b"behind"] * 5)
    await segment.truncate(segment.offsets[7])
    for compacted in (False, True):
        if compacted:
            await segment.compact()
        view = await segment.view()
        part = whole(segment.offsets[7], segment.record.length)
        rows = await rows_of(reading(part, view))
        assert [row["event_number"] for row in rows] == list(range(7, 14))
        assert [row["value"] for row in rows] == segment.events[7:]


async def test_h76_an_event_of_many_blocks_belongs_to_the_range_in_which_it_begins() -> None:
    segment = await event_segment()
    big = Random(1).randbytes(9 << 20)
    await segment.append([b"first"])
    await segment.append_pieces(big, 1 << 20)
    await segment.append([b"last"])
    view = await segment.view()
    middle = segment.record.length // 2
    begin = await rows_of(reading(whole(0, middle), view))
    end = await rows_of(reading(whole(middle, segment.record.length), view))
    assert [row["value"] for row in begin] == [b"first", big]
    assert [(row["value"], row["event_number"]) for row in end] == [(b"last", 2)]


async def test_h8_chunks_that_compaction_replaced_after_planning_are_found_again() -> None:
    segment = await event_segment()
    for number in range(40):
        await segment.append([b"%d" % number * 100])
    view = await segment.view()
    part = whole(0, segment.record.length)
    # The view holds the old root, and the chunks that it names are deleted.
    before = set(await segment.chunk_keys())
    await segment.compact()
    assert not before & set(await segment.chunk_keys())
    rows = await rows_of(reading(part, view))
    assert [row["value"] for row in rows] == segment.events
    assert [row["event_number"] for row in rows] == list(range(40))


async def test_h8_chunks_that_are_replaced_while_they_are_read_are_found_again() -> None:
    segment = await event_segment()
    events = [bytes([number]) * (1 << 20) for number in range(12)]
    for event in events:
        await segment.append([event])
    view = await segment.view()
    rows: list[object] = []
    async with aclosing(reading(whole(0, segment.record.length), view).batches()) as batches:
        async for batch in batches:
            if not rows:
                await segment.compact()
            rows += batch.column("value").to_pylist()
    assert rows == events


async def test_h8_a_chunk_that_is_replaced_between_two_of_its_blocks_is_found_again() -> None:
    segment = await event_segment()
    for number in range(2):
        # Longer than what one request brings, so the index is known when the object goes.
        await segment.append([bytes([number, each]) * (1 << 18) for each in range(12)])
    view = await segment.view()
    rows: list[object] = []
    async with aclosing(reading(whole(0, segment.record.length), view).batches()) as batches:
        async for batch in batches:
            # The last chunk is begun: nothing but its bytes is still to be read.
            if len(rows) == 12:
                before = set(await segment.chunk_keys())
                await segment.compact()
                assert not before & set(await segment.chunk_keys())
            rows += batch.column("value").to_pylist()
    assert rows == segment.events


async def test_h8_blocks_that_are_joined_while_they_are_read_give_no_event_twice() -> None:
    segment = await event_segment()
    for number in range(60):
        await segment.append([b"%d-%d " % (number, each) * 700 for each in range(30)])
    view = await segment.view()
    # Begun somewhere else, so that the joined blocks end elsewhere than what was read together.
    first = 5 * 30
    part = whole(segment.offsets[first], segment.record.length)
    rows: list[object] = []
    async with aclosing(reading(part, view).batches()) as batches:
        async for batch in batches:
            if not rows:
                await segment.compact()
            rows += zip(
                batch.column("value").to_pylist(),
                batch.column("event_number").to_pylist(),
                strict=True,
            )
    numbers = range(first, len(segment.events))
    assert rows == list(zip(segment.events[first:], numbers, strict=True))


async def test_h8_an_object_that_the_newest_root_names_is_loss_if_it_is_missing() -> None:
    segment = await event_segment()
    await segment.append([b"x" * 100])
    view = await segment.view()
    for key in await segment.chunk_keys():
        await segment.store.delete(key)
    with pytest.raises(CorruptedDataError, match="that the current manifest names is missing"):
        await rows_of(reading(whole(0, segment.record.length), view))


async def test_a_truncated_range_is_an_error_that_names_it_or_is_left_out() -> None:
    segment = await event_segment()
    await segment.append([b"%d" % number for number in range(10)])
    await segment.truncate(segment.offsets[6])
    part = whole(0, segment.record.length)
    with pytest.raises(DataLossError, match=r"asked=\[0, 90\) head=54"):
        await rows_of(reading(part, await segment.view()))
    rows = await rows_of(reading(part, await segment.view(), fail_on_data_loss=False))
    assert [row["value"] for row in rows] == segment.events[6:]


async def test_a_truncation_in_the_middle_of_a_read_changes_no_row_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(block_reader, "JOINED_BYTES_MIN", 1)
    for reads in range(10):
        history = await begin_history()
        for second in range(5):
            history.write([b"%d" % second * 50])
            await history.flush(START_MS + 1000 * second)
        part = whole(0, history.published_end)
        plain = await rows_of(reading(part, await history.segment.view()))
        reader = RangeReader(
            part,
            options=SourceOptions(fail_on_data_loss=False),
            view=await history.segment.view(),
            served=cast(ByteSegment, ServedSegment(history, piece_bytes=1 << 20)),
            executor=None,
        )
        overtake(history, reads)
        rows = await rows_of(reader)
        assert rows[-2:] == plain[3:], reads
        assert all(row in plain for row in rows), reads


def overtake(history: History, reads: int) -> None:
    """Behind so many reads of chunks retention takes away all but the last two events."""

    async def truncate() -> None:
        await history.truncate(history.starts[3])
        await history.segment.compact()

    store = history.segment.store
    assert isinstance(store, MovingStore)
    store.reads_left, store.before_read = reads, truncate


async def test_a_task_that_retention_overtakes_again_and_again_reads_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = await begin_history()
    for second in range(12):
        history.write([b"%d" % second * 50])
        await history.flush(START_MS + 1000 * second)
    heads = iter(history.starts[1:11])

    async def overtaken(
        container: ContainerReader, record: SegmentRecord, offset: int
    ) -> tuple[int, bool]:
        head = next(heads, None)
        if head is not None:
            await history.truncate(head)
            await container.refresh()
        return await block_reader.event_start_before(container, record, offset)

    monkeypatch.setattr(range_reader, "event_start_before", overtaken)
    part = whole(0, history.published_end)
    rows = await rows_of(reading(part, await history.segment.view(), fail_on_data_loss=False))
    assert [row["event_number"] for row in rows] == [10, 11]


async def test_a_segment_that_is_removed_while_it_is_read_is_loss() -> None:
    for reads in range(6):
        for content in ("raw", "bytes"):
            columns = ("offset",)
            segment, part, view = await removed_behind(reads, content)
            with pytest.raises(DataLossError, match=r"head=0 tail=0"):
                await rows_of(reading(part, view, columns=columns))
            segment, part, view = await removed_behind(reads, content)
            found = await rows_of(reading(part, view, columns=columns, fail_on_data_loss=False))
            kept = [row["offset"] for row in found]
            assert kept == segment.offsets[: len(kept)], reads


async def removed_behind(reads: int, content: str) -> tuple[EventSegment, BlockRange, Tier2Reader]:
    """A range of a segment that is removed behind so many reads of its chunks."""
    segment = (await begin_history()).segment
    for number in range(3):
        await segment.append([b"%d" % number * 50])
    view = await segment.view()
    assert isinstance(segment.store, MovingStore)
    segment.store.reads_left, segment.store.before_read = reads, segment.remove
    return segment, whole(0, segment.record.length, content), view


async def test_a_segment_that_is_removed_while_its_events_are_counted_back_is_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(block_reader, "JOINED_BYTES_MIN", 1)
    for reads in range(6):
        part, view = await undescribed_removed_behind(reads)
        with pytest.raises(DataLossError, match=r"head=0 tail=0"):
            await rows_of(reading(part, view))
        part, view = await undescribed_removed_behind(reads)
        rows = await rows_of(reading(part, view, fail_on_data_loss=False))
        assert [row["event_number"] for row in rows] == list(range(1, 1 + len(rows))), reads


async def undescribed_removed_behind(reads: int) -> tuple[BlockRange, Tier2Reader]:
    """As removed_behind, of a segment that begins where no index knows an event's number."""
    segment = (await begin_history()).segment
    for number in range(4):
        await segment.append([b"%d" % number * 50], described=False)
    segment.record = replace(segment.record, core_attributes={EVENT_COUNT: 4})
    await segment.truncate(segment.offsets[1])
    view = await segment.view()
    assert isinstance(segment.store, MovingStore)
    segment.store.reads_left, segment.store.before_read = reads, segment.remove
    return whole(segment.offsets[1], segment.record.length), view


async def test_an_event_whose_segment_is_removed_is_not_completed_from_another_of_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(block_reader, "JOINED_BYTES_MIN", 1)
    for reads in range(6):
        history = await begin_history(joins=False)
        event = b"x" * 300
        await history.append_large(event, [START_MS] * 3)
        view = await history.segment.view()
        reader = RangeReader(
            # The event begins in the range, and ends far behind it.
            whole(0, 20),
            options=SourceOptions(fail_on_data_loss=False),
            view=view,
            served=cast(ByteSegment, ServedSegment(history, piece_bytes=1 << 20)),
            executor=None,
        )
        replace_behind(history, reads)
        rows = await rows_of(reader)
        assert [row["value"] for row in rows] in ([], [event]), reads


def replace_behind(history: History, reads: int) -> None:
    """Behind so many reads of chunks the segment is removed, and the service has another one of its name."""

    async def remove() -> None:
        await history.remove()
        history.content[:] = b"y" * len(history.content)

    store = history.segment.store
    assert isinstance(store, MovingStore)
    store.reads_left, store.before_read = reads, remove


async def test_a_segment_that_is_gone_is_an_error_or_has_no_rows() -> None:
    segment = await event_segment()
    await segment.append([b"of another segment"])
    part = replace(whole(40, 100), segment_name="s/t/7.#epoch.0")
    with pytest.raises(DataLossError, match=r"asked=\[40, 100\) head=0 tail=0"):
        await rows_of(reading(part, await segment.view()))
    assert not await rows_of(reading(part, await segment.view(), fail_on_data_loss=False))


async def test_a_segment_of_which_nobody_said_where_events_lie_is_walked_from_its_start() -> None:
    segment = await event_segment()
    for number in range(6):
        await segment.append([b"%d" % number * 50] * 3, described=False)
    view = await segment.view()
    middle = segment.offsets[9] + 3
    rows = await rows_of(reading(whole(middle, segment.record.length), view))
    assert [row["offset"] for row in rows] == segment.offsets[10:]
    assert [row["event_number"] for row in rows] == list(range(10, 18))


async def test_blocks_outside_the_times_are_not_fetched() -> None:
    segment = await event_segment()
    for number in range(20):
        # Lone chunks, so that each request brings one.
        await segment.append([bytes([number]) * (4 << 20)], at_ms=START_MS + 1000 * number)
    view = await segment.view()
    part = replace(
        whole(0, segment.record.length),
        lowest_time_ms=START_MS + 5000,
        highest_time_ms=START_MS + 7000,
    )
    segment.store.sent_bytes = 0
    rows = await rows_of(reading(part, view, columns=("event_number",)))
    assert [row["event_number"] for row in rows] == [5, 6, 7]
    assert segment.store.sent_bytes < 1 << 20


async def test_a_block_of_unknown_times_is_read_whatever_times_are_asked_for() -> None:
    segment = await event_segment()
    for at_ms in (START_MS, 0, START_MS + 9000):
        await segment.append([b"x" * 100], at_ms=at_ms)
    part = replace(
        whole(0, segment.record.length),
        lowest_time_ms=START_MS + 5000,
        highest_time_ms=START_MS + 7000,
    )
    rows = await rows_of(reading(part, await segment.view(), columns=("event_number",)))
    assert [row["event_number"] for row in rows] == [1]


async def test_bytes_without_events_come_as_they_are() -> None:
    segment = await event_segment()
    content = Random(2).randbytes(100_000)
    for at in range(0, len(content), 7_000):
        await segment.append_bytes(content[at : at + 7_000])
    view = await segment.view()
    part = whole(500, 90_000, "bytes")
    rows = await rows_of(reading(part, view, columns=("offset", "bytes")))
    bounds = [500, *range(7_000, 90_000, 7_000), 90_000]
    assert rows == [
        {"offset": start, "bytes": content[start:end]} for start, end in pairwise(bounds)
    ]


async def test_many_blocks_come_in_one_request() -> None:
    segment = await event_segment()
    await segment.append([Random(number).randbytes(200_000) for number in range(50)])
    view = await segment.view()
    await rows_of(reading(whole(0, segment.record.length), view))
    # Root, run, index, and three stretches of up to four megabytes.
    assert segment.store.gets <= 12
    assert not segment.store.listings


async def test_numbers_are_counted_back_where_an_append_was_truncated_before_it_was_flushed() -> (
    None
):
    segment = await event_segment()
    await segment.append([b"%d" % number for number in range(20)], described=False)
    await segment.truncate(segment.offsets[6])
    part = whole(segment.offsets[6], segment.record.length)
    rows = await rows_of(reading(part, await segment.view()))
    assert {row["event_number"] for row in rows} == {None}
    segment.record = replace(segment.record, core_attributes={EVENT_COUNT: 20})
    await segment.truncate(segment.offsets[7])
    part = whole(segment.offsets[7], segment.record.length)
    rows = await rows_of(reading(part, await segment.view()))
    assert [row["event_number"] for row in rows] == list(range(7, 20))
    await segment.append([b"known"])
    part = whole(segment.offsets[7], segment.record.length)
    rows = await rows_of(reading(part, await segment.view()))
    assert [row["event_number"] for row in rows] == list(range(7, 21))


def test_the_first_read_of_a_process_spares_the_garbage_collector_what_is_imported() -> None:
    nothing = SegmentRange("plant", "readings", 0, "plant/readings/0.#epoch.0", -1, 0, 0)
    assert list(read_range(nothing, SourceOptions(columns=("offset",)))) == []
    assert gc.get_freeze_count() > 10_000


async def test_events_before_blocks_that_are_left_out_come_out() -> None:
    segment = await event_segment()
    # A transaction that was merged behind newer events: what is left out lies between what is asked for.
    for second in (0, 9, 1):
        await segment.append([b"%d" % second * 1000], at_ms=START_MS + 1000 * second)
    part = replace(whole(0, segment.record.length), highest_time_ms=START_MS + 2000)
    rows = await rows_of(reading(part, await segment.view(), columns=("event_number",)))
    assert [row["event_number"] for row in rows] == [0, 2]


async def test_bytes_behind_blocks_that_are_left_out_keep_their_offsets() -> None:
    segment = await event_segment()
    for second in range(4):
        await segment.append([b"%d" % second * 100], at_ms=START_MS + 1000 * second)
    part = replace(whole(0, segment.record.length, "bytes"), lowest_time_ms=START_MS + 2000)
    rows = await rows_of(reading(part, await segment.view(), columns=("offset", "bytes")))
    assert [(row["offset"], bytes(row["bytes"])[8:10]) for row in rows] == [  # type: ignore[call-overload]  # it is bytes
        (216, b"22"),
        (324, b"33"),
    ]


async def test_h8_an_event_of_several_blocks_whose_object_moves_is_whole_under_a_filter_on_times() -> (
    None
):
    event = b"x" * 400
    for reads in range(9):
        history = await begin_history(joins=False)
        await history.append_large(event, [START_MS + 1000 * second for second in range(4)])
        view = await history.segment.view()
        part = replace(whole(0, history.published_end), highest_time_ms=START_MS + 500)
        store = history.segment.store
        assert isinstance(store, MovingStore)
        store.reads_left, store.before_read = reads, history.segment.compact
        rows = await rows_of(reading(part, view, columns=("value",)))
        assert [row["value"] for row in rows] == [event], reads


async def test_an_event_of_several_blocks_has_the_time_of_the_one_in_which_it_begins() -> None:
    history = await begin_history()
    await history.append_large(b"x" * 400, [START_MS, START_MS + 1000, START_MS + 2000])
    view = await history.segment.view()
    with pytest.MonkeyPatch.context() as patch:
        for joined_bytes in (1, 200, 1 << 20):
            patch.setattr(block_reader, "JOINED_BYTES_MIN", joined_bytes)
            (row,) = await rows_of(reading(whole(0, history.published_end), view))
            assert row["timestamp"] == datetime.fromtimestamp(START_MS / 1000, UTC)


async def test_a_block_without_a_time_has_that_of_the_block_before_it_wherever_reading_begins() -> (
    None
):
    history = await begin_history()
    for second in (1, 9):
        history.write([b"%d" % second * 50])
        await history.flush(START_MS + 1000 * second)
    await history.merge([b"x" * 50], [START_MS], described=False)
    view = await history.segment.view()
    expected = datetime.fromtimestamp(START_MS / 1000 + 9, UTC)
    for part in (
        whole(0, history.published_end),
        whole(history.starts[2], history.published_end),
        replace(whole(0, history.published_end), highest_time_ms=START_MS + 2000),
    ):
        rows = await rows_of(reading(part, view, columns=("offset", "timestamp")))
        assert (rows[-1]["offset"], rows[-1]["timestamp"]) == (history.starts[2], expected)
