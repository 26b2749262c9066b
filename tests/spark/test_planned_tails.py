"""Goal: a tail that retention overtakes ends the Java reader's query only where it accepts no loss."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, replace

import pytest

from segmentstore.client.byte_segment import SegmentInfo
from segmentstore.spark.jvm import planner_server
from segmentstore.spark.jvm.block_locations import RangeResolver, ResolvedBlockCache
from segmentstore.spark.jvm.planner_server import Question, answer, parse_question
from segmentstore.spark.python_worker import LoopRunner
from segmentstore.spark.scan.data_loss import DataLossError
from segmentstore.spark.scan.partitions import BlockRange, SegmentRange
from tests.spark.event_segment import NAME, START_MS
from tests.spark.stream_history import History, ServedSegment, begin_history

SERVED = {"segment": NAME, "controller": "tcp://here:1"}


class ServedStore:
    """The service, as far as tails are asked for."""

    def __init__(self, history: History) -> None:
        self._history = history

    def segment(self, name: str) -> ServedSegment:
        assert name == NAME
        return ServedSegment(self._history, piece_bytes=7)


async def served_history() -> History:
    """Two events in Tier 2, three behind them."""
    history = await begin_history()
    history.write([b"%d" % number * 50 for number in range(2)])
    await history.flush(START_MS)
    history.write([b"%d" % number * 50 for number in range(2, 5)])
    return history


def part_of(start: int, end: int) -> SegmentRange:
    return SegmentRange("s", "t", 0, NAME, 0, start, end)


@pytest.mark.parametrize("gone", [True, False])
def test_bytes_of_a_tail_that_went_are_lost_or_left_out(
    monkeypatch: pytest.MonkeyPatch, *, gone: bool
) -> None:
    with LoopRunner() as runner:
        history = runner.run(served_history())

        @asynccontextmanager
        async def connect(_: object) -> AsyncIterator[ServedStore]:
            yield ServedStore(history)

        monkeypatch.setattr(planner_server, "connect_service", connect)
        part = part_of(history.starts[2], len(history.content))

        def tail(**words: str) -> bytes:
            question = Question(verb="tail", options={**SERVED, **words}, range=part)
            return answer(question, runner, ResolvedBlockCache())[1]

        assert tail() == history.content[part.start :]
        if gone:
            history.is_gone = True
        else:
            # Tier 2 does not know of it yet.
            history.segment.record = replace(history.segment.record, start_offset=history.starts[3])
        head = 0 if gone else history.head
        with pytest.raises(DataLossError, match=f"head={head}"):
            tail()
        assert tail(failOnDataLoss="false") == b""


def test_bytes_of_a_tail_that_a_reader_only_walks_over_are_no_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A start that a user named is walked to from where an event is known to begin: retention may take that away."""
    with LoopRunner() as runner:
        history = runner.run(served_history())

        @asynccontextmanager
        async def connect(_: object) -> AsyncIterator[ServedStore]:
            yield ServedStore(history)

        monkeypatch.setattr(planner_server, "connect_service", connect)
        part = part_of(history.starts[2], len(history.content))
        head = history.starts[3]
        history.segment.record = replace(history.segment.record, start_offset=head)

        def tail(wanted: int) -> bytes:
            fields = {"verb": "tail", "options": SERVED, "range": asdict(part), "wanted": wanted}
            question = parse_question(json.dumps(fields).encode())
            return answer(question, runner, ResolvedBlockCache())[1]

        for wanted in (head, history.starts[4]):
            # Fewer bytes than it was told of: the reader asks where the rest lies by now.
            assert tail(wanted) == b""
        with pytest.raises(DataLossError, match=f"head={head}"):
            tail(head - 1)


def truncated_to(history: History, head: int) -> Callable[[str], Awaitable[SegmentInfo]]:
    """What the service says of the segment. Tier 2 shows what is before the head still."""

    async def info(name: str) -> SegmentInfo:
        return replace(await ServedStore(history).segment(name).info(), start_offset=head)

    return info


async def resolved(history: History, part: SegmentRange, *, fails: bool) -> BlockRange | None:
    resolver = RangeResolver(
        await history.segment.view(),
        asks_service=True,
        fail_on_data_loss=fails,
        executor=None,
        placed=ResolvedBlockCache(),
        served=lambda name: ServedStore(history).segment(name).info(),
    )
    return await resolver.place(part)


async def test_what_the_service_has_lost_is_not_named_to_a_reader_that_asks_again() -> None:
    history = await served_history()
    part = part_of(0, len(history.content))
    whole = await resolved(history, part, fails=True)
    assert whole is not None
    assert (whole.start, whole.end) == (0, part.end)
    history.is_gone = True
    with pytest.raises(DataLossError, match=r"head=0 tail=0"):
        await resolved(history, part, fails=True)
    left = await resolved(history, part, fails=False)
    assert left is not None
    # Tier 2 shows it still.
    assert (left.start, left.end) == (0, history.published_end)
    assert all(block.object_key for block in left.blocks)
    behind = part_of(history.starts[2], len(history.content))
    assert await resolved(history, behind, fails=False) is None


async def test_a_tail_begins_where_the_service_says_that_the_segment_begins_now() -> None:
    history = await served_history()
    view = await history.segment.view()
    part = part_of(history.starts[1], len(history.content))
    head = history.starts[3]

    for fails in (True, False):
        resolver = RangeResolver(
            view,
            asks_service=True,
            fail_on_data_loss=fails,
            executor=None,
            placed=ResolvedBlockCache(),
            served=truncated_to(history, head),
        )
        if fails:
            with pytest.raises(DataLossError, match=f"head={head}"):
                await resolver.place(part)
            continue
        left = await resolver.place(part)
        assert left is not None
        assert (left.start, left.end) == (head, part.end)
        assert [block.offset for block in left.blocks] == [head]
        assert left.blocks[0].first_event_offset == head


@pytest.mark.parametrize("asks_now", [True, False], ids=["asked again", "planned"])
async def test_a_tail_behind_a_head_that_tier_2_does_not_know_is_whole(*, asks_now: bool) -> None:
    """Nothing that was asked for is gone, so none of it is told as lost, and no byte before the head is asked for."""
    history = await served_history()
    head = history.starts[3]

    for start in (head, history.starts[4]):
        resolver = RangeResolver(
            await history.segment.view(),
            asks_service=True,
            fail_on_data_loss=True,
            executor=None,
            placed=ResolvedBlockCache(),
            served=truncated_to(history, head) if asks_now else None,
        )
        part = part_of(start, len(history.content))
        whole = await resolver.place(part)
        assert whole is not None
        assert (whole.start, whole.end) == (start, part.end)
        assert whole.blocks[0].offset == whole.blocks[0].first_event_offset == start
        assert whole.blocks[-1].offset + whole.blocks[-1].length == part.end
