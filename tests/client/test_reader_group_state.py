import json
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.client.reader_group_state import GroupState, StreamState, decode_group_state
from segmentstore.client.stream_segments import SegmentRange, Successor
from segmentstore.contracts.errors import CorruptedDataError

STREAM = "s/t"


def group(*segments: int) -> GroupState:
    return GroupState({STREAM: StreamState(dict.fromkeys(segments, 0))})


def successor(segment_id: int, *predecessors: int) -> Successor:
    return Successor(SegmentRange(segment_id, 0.0, 1.0), predecessors)


def joined(state: GroupState, *readers: str) -> GroupState:
    for reader in readers:
        state.join(reader, 1)
    return state


def test_a_reader_takes_its_fair_share() -> None:
    state = joined(group(0, 1, 2, 3, 4), "a", "b")
    state.acquire("a")
    assert state.readers["a"].segments == [(STREAM, 0), (STREAM, 1), (STREAM, 2)]
    state.acquire("b")
    assert state.readers["b"].segments == [(STREAM, 3), (STREAM, 4)]
    assert state.unassigned == []


def test_a_surplus_is_seen_only_when_somebody_has_two_fewer() -> None:
    state = joined(group(0, 1), "a")
    state.acquire("a")
    state.join("b", 1)
    assert state.has_surplus("a")
    state.release("a", (STREAM, 0))
    assert not state.has_surplus("a")
    state.acquire("b")
    assert not state.has_surplus("a")
    assert not state.has_surplus("b")


def test_who_leaves_leaves_the_position_behind() -> None:
    state = joined(group(0), "a")
    state.acquire("a")
    state.advance("a", {(STREAM, 0): 100})
    state.advance("a", {(STREAM, 0): 50})
    state.leave("a")
    assert state.unassigned == [(STREAM, 0)]
    assert state.cut(STREAM).offsets == {0: 100}


def test_a_reader_cannot_move_what_it_does_not_read() -> None:
    state = joined(group(0), "a", "b")
    state.acquire("a")
    state.advance("b", {(STREAM, 0): 100})
    assert state.cut(STREAM).offsets == {0: 0}


def test_a_merge_waits_for_both_halves() -> None:
    state = joined(group(0, 1), "a")
    state.acquire("a")
    state.finish("a", (STREAM, 0), [successor(5, 0, 1)])
    assert state.readable == [(STREAM, 1)]
    assert state.cut(STREAM).offsets == {0: 0, 1: 0}
    state.finish("a", (STREAM, 1), [successor(5, 0, 1)])
    assert state.readable == [(STREAM, 5)]
    assert state.cut(STREAM).offsets == {5: 0}


def test_a_group_is_finished_when_every_stream_is() -> None:
    state = joined(group(0), "a")
    state.acquire("a")
    before = state.is_finished
    state.finish("a", (STREAM, 0), [])
    assert (before, state.is_finished) == (False, True)
    assert state.cut(STREAM).offsets == {0: 0}


def test_another_incarnation_starts_with_nothing() -> None:
    state = joined(group(0), "a")
    state.acquire("a")
    state.join("a", 1)
    assert state.readers["a"].segments == [(STREAM, 0)]
    state.join("a", 2)
    assert state.readers["a"].segments == []


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b"\xff", b'{"format":2,"streams":{},"readers":{}}', b'{"format":1}'],
)
def test_other_bytes_are_no_state(content: bytes) -> None:
    with pytest.raises(CorruptedDataError):
        decode_group_state(content)


def test_the_format_stays_as_it_is() -> None:
    state = joined(group(0, 1), "a")
    state.acquire("a")
    state.advance("a", {(STREAM, 0): 7})
    state.finish("a", (STREAM, 0), [successor(5, 0, 1)])
    assert json.loads(state.encode()) == {
        "format": 1,
        "streams": {
            "s/t": {"positions": {"0": 7, "1": 0}, "waiting": {"5": [1]}, "ended": {"0": [5]}}
        },
        "readers": {"a": {"incarnation": 1, "beat": 1, "segments": [["s/t", 1]]}},
    }


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32))
def test_whatever_readers_do_every_segment_is_read_once_and_in_order(seed: int) -> None:
    """Random histories of a stream, random readers; each change is made twice, as after a lost answer."""
    random = Random(seed)
    following, everything = _history(random)
    state = group(*[each for each in everything if each >> 32 == 0])
    finished: list[int] = []
    for _ in range(2000):
        if state.is_finished:
            break
        reader = random.choice("abc")
        change = random.randrange(6)
        for _ in range(2):
            if change == 0:
                state.leave(reader)
                continue
            state.join(reader, 1)
            segments = list(state.readers[reader].segments)
            if change == 1 and state.has_surplus(reader):
                state.release(reader, segments[0])
            elif change == 2 and segments:
                key = segments[0]
                state.finish(reader, key, following[key[1]])
                finished.append(key[1])
                state.finish(reader, key, following[key[1]])
                break
            else:
                state.acquire(reader)
        state.check()
        state = decode_group_state(state.encode())
    assert sorted(finished) == sorted(everything)
    for segment_id, successors in following.items():
        for each in successors:
            assert finished.index(segment_id) < finished.index(each.range.segment_id)


def _history(random: Random) -> tuple[dict[int, list[Successor]], list[int]]:
    """Successors of every segment of a stream that was scaled a few times, at boundaries that need not match."""
    active = [SegmentRange(0, 0.0, 0.5), SegmentRange(1, 0.5, 1.0)]
    everything = [0, 1]
    following: dict[int, list[Successor]] = {}
    for epoch in range(1, random.randrange(2, 6)):
        start = random.randrange(len(active))
        replaced = active[start : start + random.randrange(1, 3)]
        low, high = replaced[0].low, replaced[-1].high
        cuts = sorted({low, high, *(random.uniform(low, high) for _ in range(random.randrange(3)))})
        new = []
        for begin, end in pairwise(cuts):
            new.append(SegmentRange(epoch << 32 | len(everything), begin, end))
            everything.append(new[-1].segment_id)
        predecessors = {
            each.segment_id: tuple(
                old.segment_id for old in replaced if old.low < each.high and each.low < old.high
            )
            for each in new
        }
        for old in replaced:
            following[old.segment_id] = [
                Successor(each, predecessors[each.segment_id])
                for each in new
                if old.segment_id in predecessors[each.segment_id]
            ]
        active[start : start + len(replaced)] = new
    for each in active:
        following[each.segment_id] = []
    return following, everything
