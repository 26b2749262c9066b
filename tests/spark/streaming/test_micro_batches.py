from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.contracts.errors import (
    CorruptedDataError,
    SegmentNotFoundError,
    SegmentTruncatedError,
)
from segmentstore.spark.scan.data_loss import DataLossError
from segmentstore.spark.streaming import micro_batches
from segmentstore.spark.streaming.event_boundaries import EventBoundaries
from segmentstore.spark.streaming.micro_batches import TriggerSettings
from segmentstore.spark.streams.offsets import StreamsOffset
from segmentstore.spark.streams.segment_graph import (
    StreamMetadata,
    StreamMissingError,
    StreamSegmentMetadata,
)
from tests.spark.streaming.memory_streams import NAME, MemoryStreams, batches_of, events_in
from tests.spark.streaming.scale_histories import ScaleHistory, scale_histories
from tests.spark.streaming.unhurried import UNHURRIED


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that sees less than a position says waits for volumes that are late; here nothing is late."""
    monkeypatch.setattr(micro_batches, "OPEN_PAUSE_SECONDS", 0.0)


EPOCH_1, EPOCH_2 = 1 << 32, 2 << 32


def numbered(prefix: str, count: int, size: int = 12) -> list[bytes]:
    return [f"{prefix}-{number}".encode().ljust(size, b".") for number in range(count)]


def scaled() -> MemoryStreams:
    """0 was split into 1 and 2, which were merged into 3."""
    streams = MemoryStreams()
    first, left, right, last = EPOCH_1 | 1, EPOCH_1 | 2, EPOCH_2 | 3, 0
    streams.put(last, numbered("a", 7), sealed=True, successors=(first, left))
    streams.put(first, numbered("b", 5), sealed=True, successors=(right,), predecessors=(0,))
    streams.put(left, numbered("c", 9), sealed=True, successors=(right,), predecessors=(0,))
    streams.put(right, numbered("d", 3), predecessors=(first, left))
    return streams


def of_history(history: ScaleHistory) -> MemoryStreams:
    streams = MemoryStreams()
    for segment_id, successors in history.successors.items():
        streams.put(
            segment_id,
            numbered(f"{segment_id:x}", history.lengths[segment_id]),
            sealed=segment_id in history.sealed,
            successors=successors,
            predecessors=tuple(
                each for each, after in history.successors.items() if segment_id in after
            ),
        )
    return streams


async def read_all(
    streams: MemoryStreams, *, bytes_max: int | None = None, rows_max: int | None = None
) -> list[list[bytes]]:
    """Every batch by a process of its own, as if the query was started again at every boundary."""
    position: StreamsOffset = await batches_of(streams).first()
    found: list[list[bytes]] = []
    while True:
        end = await batches_of(streams, bytes_max=bytes_max, rows_max=rows_max).next_end(position)
        if end == position:
            return found
        found.append(await events_in(streams, batches_of(streams), position, end))
        position = end


async def test_h75_a_stream_that_scaled_is_read_parents_first_and_every_event_once() -> None:
    batches = await read_all(scaled())
    assert [sorted({event[:1] for event in batch}) for batch in batches] == [
        [b"a"],
        [b"b", b"c"],
        [b"d"],
    ]
    events = [event for batch in batches for event in batch]
    assert sorted(events) == sorted(
        numbered("a", 7) + numbered("b", 5) + numbered("c", 9) + numbered("d", 3)
    )


@UNHURRIED
@given(
    history=scale_histories(),
    bytes_max=st.one_of(st.none(), st.integers(1, 200)),
    rows_max=st.one_of(st.none(), st.integers(1, 9)),
)
async def test_with_any_limits_and_restarts_every_event_is_in_one_batch_behind_its_parents(
    history: ScaleHistory, bytes_max: int | None, rows_max: int | None
) -> None:
    streams = of_history(history)
    batches = await read_all(streams, bytes_max=bytes_max, rows_max=rows_max)
    batch_of = {event: at for at, batch in enumerate(batches) for event in batch}
    events = [event for batch in batches for event in batch]
    everything = [event for each in streams.contents.values() for event in each.events]
    assert sorted(events) == sorted(everything)
    assert all(batches), "an empty batch"
    for parent, children in history.successors.items():
        last = max(
            (batch_of[e] for e in numbered(f"{parent:x}", history.lengths[parent])), default=-1
        )
        for child in children:
            for event in numbered(f"{child:x}", history.lengths[child]):
                assert batch_of[event] > last


@UNHURRIED
@given(
    sizes=st.lists(st.lists(st.integers(0, 60), max_size=12), min_size=1, max_size=5),
    rows_max=st.integers(1, 20),
)
async def test_rows_are_limited_but_for_one_event_of_each_segment(
    sizes: list[list[int]], rows_max: int
) -> None:
    streams = MemoryStreams()
    for number, each in enumerate(sizes):
        streams.put(number, [b"e" * size for size in each])
    waiting = sum(1 for each in sizes if each)
    for batch in await read_all(streams, rows_max=rows_max):
        assert len(batch) <= max(rows_max, waiting)


@UNHURRIED
@given(
    sizes=st.lists(st.lists(st.integers(0, 60), max_size=12), min_size=1, max_size=5),
    bytes_max=st.integers(1, 300),
)
async def test_bytes_are_limited_but_for_one_event_of_each_segment(
    sizes: list[list[int]], bytes_max: int
) -> None:
    streams = MemoryStreams()
    for number, each in enumerate(sizes):
        streams.put(number, [b"e" * size for size in each])
    for batch in await read_all(streams, bytes_max=bytes_max):
        one_event_each = 68 * len(sizes)
        assert sum(8 + len(event) for event in batch) <= bytes_max + one_event_each


async def test_a_batch_that_drains_segments_ends_at_the_start_of_what_follows_them() -> None:
    streams = scaled()
    batches = batches_of(streams)
    children = {NAME: {EPOCH_1 | 1: 0, EPOCH_1 | 2: 0}}
    assert await batches.next_end(await batches.first()) == children
    # What is known of a parent may go with it: nothing of it is needed any more.
    streams.truncate_to({EPOCH_1 | 1: 0, EPOCH_1 | 2: 0})
    streams.ends.clear()
    end = await batches_of(streams).next_end(children)
    assert end == {NAME: {EPOCH_2 | 3: 0}}


async def test_a_small_segment_gets_its_share_beside_a_large_one() -> None:
    streams = MemoryStreams()
    streams.put(0, numbered("large", 1_000))
    streams.put(1, numbered("small", 10))
    batches = batches_of(streams, bytes_max=2_000)
    start = await batches.first()
    events = await events_in(streams, batches, start, await batches.next_end(start))
    assert sum(event.startswith(b"small") for event in events) == 1
    assert 95 <= len(events) <= 100


async def test_an_event_that_is_not_all_there_waits_for_the_rest() -> None:
    streams = MemoryStreams()
    streams.put(0, numbered("a", 3))
    streams.cut_off(0, at=45)
    batches = batches_of(streams)
    start = await batches.first()
    assert await batches.next_end(start) == {NAME: {0: 40}}
    assert await batches.next_end({NAME: {0: 40}}) == {NAME: {0: 40}}


async def test_reading_stops_at_the_ending_position_in_the_middle_of_a_scaled_stream() -> None:
    streams = scaled()
    streams.stop = {EPOCH_1 | 1: 40, EPOCH_1 | 2: 60}
    batches = await read_all(streams)
    assert sorted(event for batch in batches for event in batch) == sorted(
        numbered("a", 7) + numbered("b", 2) + numbered("c", 3)
    )


async def test_available_now_ends_with_what_was_there_when_the_query_began() -> None:
    streams = MemoryStreams()
    streams.put(0, numbered("a", 4))
    batches = batches_of(streams, rows_max=3)
    start = await batches.first()
    await batches.freeze()
    streams.put(0, numbered("a", 9))
    first = await batches.next_end(start)
    second = await batches.next_end(first)
    assert (first, second) == ({NAME: {0: 60}}, {NAME: {0: 80}})
    assert await batches.next_end(second) == second


async def test_a_run_to_a_fixed_end_leaves_a_position_that_names_what_replaced_segments_meanwhile() -> (
    None
):
    streams = MemoryStreams()
    streams.put(0, numbered("a", 4))
    streams.put(1, numbered("b", 4))
    run = batches_of(streams)
    await run.freeze()
    # The query has read segment 0 to its end. It is split now, and retention removes it.
    left, right = EPOCH_1 | 2, EPOCH_1 | 3
    streams.put(0, numbered("a", 4), sealed=True, successors=(left, right))
    streams.put(left, numbered("c", 2), predecessors=(0,))
    streams.put(right, numbered("d", 3), predecessors=(0,))
    streams.truncate_to({1: 0, left: 0, right: 0})
    start: StreamsOffset = {NAME: {0: 80, 1: 20}}
    end = await run.next_end(start)
    assert end == {NAME: {1: 80, left: 0, right: 0}}
    assert await events_in(streams, run, start, end) == numbered("b", 4)[1:]
    assert await run.next_end(end) == end, "what came since is not for this run"
    following = batches_of(streams)
    last = await following.next_end(end)
    events = await events_in(streams, following, end, last)
    assert sorted(events) == sorted(numbered("c", 2) + numbered("d", 3))


async def test_small_batches_wait_for_bytes_or_time_but_not_when_a_query_reads_what_is_there() -> (
    None
):
    streams = MemoryStreams()
    streams.put(0, numbered("a", 4))
    trigger = TriggerSettings(bytes_min=1_000, delay_seconds_max=3_600.0)
    batches = batches_of(streams, trigger=trigger)
    first = await batches.next_end(await batches.first())
    streams.put(0, numbered("a", 5))
    assert await batches.next_end(first) == first
    streams.put(0, numbered("a", 60))
    second = await batches.next_end(first)
    assert second == {NAME: {0: 1_200}}
    streams.put(0, numbered("a", 61))
    await batches.freeze()
    assert await batches.next_end(second) == {NAME: {0: 1_220}}


async def test_without_limits_everything_that_is_there_is_one_batch() -> None:
    streams = MemoryStreams()
    streams.put(0, numbered("a", 40))
    batches = batches_of(streams, rows_max=3)
    assert await batches.next_end(await batches.first(), limited=False) == {NAME: {0: 800}}


async def test_the_lag_is_what_lies_between_the_end_of_a_batch_and_all_later_segments() -> None:
    streams = scaled()
    batches = batches_of(streams, rows_max=3)
    end = await batches.next_end(await batches.first())
    latest = batches.latest(end)
    assert end == {NAME: {0: 60}}
    assert latest == {NAME: {0: 140, EPOCH_1 | 1: 100, EPOCH_1 | 2: 180, EPOCH_2 | 3: 60}}


@pytest.mark.parametrize("rows_max", [1, 2, 5, 100])
async def test_a_batch_asked_for_again_by_another_process_holds_the_same_events(
    rows_max: int,
) -> None:
    streams = scaled()
    position = await batches_of(streams).first()
    while True:
        batches = batches_of(streams, rows_max=rows_max)
        end = await batches.next_end(position)
        if end == position:
            return
        before = await events_in(streams, batches, position, end)
        streams.put(
            EPOCH_2 | 3, numbered("d", 9), predecessors=(EPOCH_1 | 1, EPOCH_1 | 2), block_bytes=70
        )
        assert await events_in(streams, batches_of(streams), position, end) == before
        position = end


async def test_truncated_events_are_an_error_that_names_range_and_head() -> None:
    streams = MemoryStreams()
    streams.put(0, numbered("a", 10))
    position = {NAME: {0: 40}}
    streams.truncate_to({0: 100})
    with pytest.raises(DataLossError, match=r"asked=\[40, 100\) head=100 tail=200"):
        await batches_of(streams).next_end(position)
    with pytest.raises(DataLossError, match=r"asked=\[40, 80\) head=100"):
        await batches_of(streams).stretches(position, {NAME: {0: 80}})


async def test_truncated_events_are_passed_over_if_that_is_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    streams = MemoryStreams()
    streams.put(0, numbered("a", 10))
    streams.truncate_to({0: 100})
    batches = batches_of(streams, fail_on_data_loss=False)
    end = await batches.next_end({NAME: {0: 40}})
    assert end == {NAME: {0: 200}}
    assert await events_in(streams, batches, {NAME: {0: 40}}, end) == numbered("a", 10)[5:]
    assert "range=[40, 100)" in caplog.text


async def test_a_segment_that_was_read_whole_before_retention_removed_it_is_no_loss() -> None:
    streams = scaled()
    streams.truncate_to({EPOCH_1 | 1: 0, EPOCH_1 | 2: 0})
    batches = batches_of(streams)
    end = await batches.next_end({NAME: {0: 140}})
    events = await events_in(streams, batches, {NAME: {0: 140}}, end)
    assert sorted(events) == sorted(numbered("b", 5) + numbered("c", 9))


@pytest.mark.parametrize("head", [{EPOCH_1 | 1: 0, EPOCH_1 | 2: 0}, {EPOCH_2 | 3: 0}])
async def test_a_segment_that_retention_removed_unread_is_loss(head: dict[int, int]) -> None:
    streams = scaled()
    streams.truncate_to(head)
    with pytest.raises(DataLossError, match=r"segment_id=0"):
        await batches_of(streams).next_end({NAME: {0: 60}})
    batches = batches_of(streams, fail_on_data_loss=False)
    end = await batches.next_end({NAME: {0: 60}})
    assert all(segment_id in streams.streams[NAME].by_id for segment_id in end[NAME])


async def test_segments_that_came_and_went_unread_between_two_batches_are_loss() -> None:
    streams = scaled()
    streams.truncate_to({EPOCH_2 | 3: 0})
    with pytest.raises(DataLossError):
        await batches_of(streams).next_end({NAME: {0: 140}})


class Overtaken(MemoryStreams):
    """Retention truncates the stream right after the reader looked at it."""

    def boundaries(self, segment: StreamSegmentMetadata) -> EventBoundaries:
        if segment.start_offset == 0:
            self.truncate_to({0: 100})
            raise SegmentTruncatedError(segment.name, start_offset=100)
        return super().boundaries(segment)


@pytest.mark.parametrize("frozen", [False, True])
async def test_retention_that_overtakes_a_look_is_seen_for_what_it_is(frozen: bool) -> None:
    streams = Overtaken()
    streams.put(0, numbered("a", 10))
    strict, lenient = batches_of(streams), batches_of(streams, fail_on_data_loss=False)
    for batches in (strict, lenient):
        if frozen:
            await batches.freeze()
    with pytest.raises(DataLossError, match=r"asked=\[40, 100\) head=100"):
        await strict.next_end({NAME: {0: 40}})
    assert await lenient.next_end({NAME: {0: 40}}) == {NAME: {0: 200}}


class OvertakenByRemoval(MemoryStreams):
    """Retention removes the first segment right after the reader looked at the stream."""

    def boundaries(self, segment: StreamSegmentMetadata) -> EventBoundaries:
        if segment.segment_id == 0:
            self.truncate_to({EPOCH_1 | 1: 0})
            raise SegmentNotFoundError(segment.name)
        return super().boundaries(segment)


@pytest.mark.parametrize("frozen", [False, True])
async def test_a_removal_that_overtakes_a_look_is_seen_for_what_it_is(frozen: bool) -> None:
    def removed() -> OvertakenByRemoval:
        streams = OvertakenByRemoval()
        streams.put(0, numbered("a", 10), sealed=True, successors=(EPOCH_1 | 1,))
        streams.put(EPOCH_1 | 1, numbered("b", 5), predecessors=(0,))
        return streams

    for fails in (True, False):
        streams = removed()
        batches = batches_of(streams, fail_on_data_loss=fails)
        if frozen:
            await batches.freeze()
        if fails:
            with pytest.raises(DataLossError, match=r"segment_id=0.*asked=\[40, 200\)"):
                await batches.next_end({NAME: {0: 40}})
        else:
            assert await batches.next_end({NAME: {0: 40}}) == {NAME: {EPOCH_1 | 1: 100}}


async def test_a_query_begins_where_a_stream_begins_that_retention_overtakes() -> None:
    class OvertakenStart(MemoryStreams):
        async def start_of(self, stream: StreamMetadata) -> Mapping[int, int]:
            if stream.head == {0: 0}:
                self.truncate_to({0: 100})
                raise SegmentTruncatedError(f"{NAME}/0", start_offset=100)
            return await super().start_of(stream)

    streams = OvertakenStart()
    streams.put(0, numbered("a", 10))
    assert await batches_of(streams).first() == {NAME: {0: 100}}


async def test_a_stream_that_is_gone_is_an_error_or_left_out() -> None:
    streams = scaled()
    position = {NAME: {0: 60}, "plant/gone": {0: 10}}
    with pytest.raises(StreamMissingError, match="plant/gone"):
        await batches_of(streams).next_end(position)
    end = await batches_of(streams, fail_on_data_loss=False).next_end(position)
    assert list(end) == [NAME]


async def test_a_stream_that_appears_is_entered_first_and_read_from_its_head_afterwards() -> None:
    streams = MemoryStreams()
    streams.put(0, numbered("a", 2))
    batches = batches_of(streams)
    first = await batches.next_end(await batches.first())
    streams.put(0, numbered("new", 4), stream="plant/second")
    second = await batches.next_end(first)
    assert second == {NAME: {0: 40}, "plant/second": {0: 0}}
    assert await events_in(streams, batches, first, second) == []
    third = await batches.next_end(second)
    assert await events_in(streams, batches, second, third) == numbered("new", 4)


async def test_a_sealed_segment_that_ends_inside_an_event_is_damage_and_not_waited_for() -> None:
    streams = MemoryStreams()
    streams.put(0, numbered("a", 3), sealed=True)
    streams.cut_off(0, at=45)
    batches = batches_of(streams)
    end = await batches.next_end(await batches.first())
    with pytest.raises(CorruptedDataError, match="offset=40"):
        await batches.next_end(end)


async def test_a_position_behind_the_tail_is_loss_however_little_comes_after_it() -> None:
    streams = MemoryStreams()
    # It had read 10 events; 6 of them were recovered, and 2 were written since.
    streams.put(0, [*numbered("old", 6), *numbered("new", 2)])
    start = {NAME: {0: 200}}
    with pytest.raises(DataLossError, match=r"asked=\[200, 200\) head=0 tail=160"):
        await batches_of(streams).next_end(start)
    batches = batches_of(streams, fail_on_data_loss=False)
    end = await batches.next_end(start)
    assert end == {NAME: {0: 160}}
    assert await events_in(streams, batches, start, end) == []
    streams.put(0, [*numbered("old", 6), *numbered("new", 5)])
    # A batch that is read again after a restart is the same one, though the tail has passed its start by now.
    again = batches_of(streams, fail_on_data_loss=False)
    assert await events_in(streams, again, start, end) == []
    after = await again.next_end(end)
    assert await events_in(streams, again, end, after) == numbered("new", 5)[2:]


async def test_a_sealed_segment_that_ends_before_the_position_is_loss() -> None:
    streams = scaled()
    start = {NAME: {0: 1000}}
    with pytest.raises(DataLossError, match="tail=140"):
        await batches_of(streams).next_end(start)
    batches = batches_of(streams, fail_on_data_loss=False)
    end = await batches.next_end(start)
    assert await events_in(streams, batches, start, end) == [
        *numbered("b", 5),
        *numbered("c", 9),
    ]


async def test_a_position_that_is_seen_late_is_no_loss() -> None:
    streams = MemoryStreams()
    streams.put(0, numbered("early", 3))
    looks = 0

    class Late(MemoryStreams):
        async def maps(self) -> Mapping[str, StreamMetadata]:
            nonlocal looks
            looks += 1
            if looks == 3:
                streams.put(0, numbered("early", 5))
            return await streams.maps()

    late = Late(streams.streams, streams.contents)
    assert await batches_of(late).next_end({NAME: {0: 80}}) == {NAME: {0: 100}}
