"""The walk over events, beside one that looks at one header after the other."""

import struct
from itertools import accumulate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from segmentstore.codec.event_frame import EVENT_HEADER_BYTES
from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.spark.scan.event_parser import find_events

NUMBER_MAX = (1 << 31) - 1

lengths = st.lists(
    st.tuples(st.sampled_from([0, 1, 7, 8, 9, 100, 1024]), st.integers(1, 700)), max_size=6
)
"""Runs of events of one length: (length, how many)."""


def framed(runs: list[tuple[int, int]]) -> tuple[bytes, list[int]]:
    """Events whose contents look like headers, and where each begins; the end of the last one behind them."""
    sizes = [length for length, count in runs for _ in range(count)]
    content = b"".join(
        struct.pack(">ii", 0, size) + (struct.pack(">ii", 0, 1) * (size // 8 + 1))[:size]
        for size in sizes
    )
    return content, list(accumulate((EVENT_HEADER_BYTES + size for size in sizes), initial=0))


@given(lengths, st.integers(0, 1100))
@example([(1024, 256)], 1)
@example([(9, 1), (8, 300)], EVENT_HEADER_BYTES)
def test_runs_of_one_length_and_others_are_found_up_to_the_one_that_is_cut_off(
    runs: list[tuple[int, int]], cut: int
) -> None:
    content, bounds = framed(runs)
    content = content[: max(0, len(content) - cut)]
    whole = [bound for bound in bounds if bound <= len(content)]
    walked = find_events(content, segment="a/b/0", offset=0)
    assert walked.starts.tolist() == whole[:-1]
    assert walked.ends.tolist() == whole[1:]
    assert walked.rest == whole[-1]
    left = len(content) - walked.rest
    if not left:
        assert walked.rest_bytes == 0
    elif left < EVENT_HEADER_BYTES:
        assert walked.rest_bytes == EVENT_HEADER_BYTES
    else:
        assert walked.rest_bytes == bounds[len(whole)] - walked.rest


@pytest.mark.parametrize("before", [0, 1, 255, 256, 257, 600])
@pytest.mark.parametrize(("kind", "length"), [(1, 5), (0, -1), (-1, -1), (NUMBER_MAX, 0)])
def test_what_is_no_event_is_refused_behind_a_run_of_any_length(
    before: int, kind: int, length: int
) -> None:
    content, bounds = framed([(20, before)])
    content += struct.pack(">ii", kind, length) + bytes(100)
    with pytest.raises(CorruptedDataError, match=f"offset={7 + bounds[-1]} type={kind} "):
        find_events(content, segment="a/b/0", offset=7)
