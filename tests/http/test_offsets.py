from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.http.offsets import (
    NOW,
    START,
    OffsetPlace,
    is_of_incarnation,
    next_cursor,
    offset_token,
    parse_offset,
)


@given(st.integers(1, 1 << 62), st.integers(0, 10**16 - 1))
def test_a_minted_token_reads_back(segment_id: int, offset: int) -> None:
    requested = parse_offset(offset_token(segment_id, offset))
    if requested.place is OffsetPlace.TOKEN:
        assert requested.offset == offset
        assert is_of_incarnation(requested, segment_id)


@given(st.integers(0, 10**16 - 1), st.integers(0, 10**16 - 1))
def test_tokens_compare_as_strings_like_their_offsets(one: int, other: int) -> None:
    assert (offset_token(7, one) < offset_token(7, other)) == (one < other)


def test_all_zeros_and_minus_one_are_the_start_and_now_is_the_end() -> None:
    assert parse_offset("0000000000000000_0000000000000000") == START
    assert parse_offset("-1") == START
    assert parse_offset("now") == NOW


@pytest.mark.parametrize(
    "text",
    ["", "0", "-2", "NOW", "1_1", offset_token(1, 1) + "\n", " " + offset_token(1, 1),
     "000000000000000\uff11_0000000000000000", offset_token(1, 1) + "0", "a" * 33],
)  # fmt: skip
def test_a_token_that_was_never_minted_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        parse_offset(text)


@given(st.integers(0, 10**18))
def test_a_cursor_is_always_past_the_client_s_own(client_cursor: int) -> None:
    answer = int(next_cursor(str(client_cursor), now_ms=1_800_000_000_000, random=Random(1)))
    assert answer > client_cursor


@pytest.mark.parametrize("garbage", [None, "", "-5", "1e3", "x", "9" * 30, "\uff11"])
def test_a_cursor_that_is_garbage_gets_the_present_interval(garbage: str | None) -> None:
    now_ms = 1_728_432_000_000 + 20_000 * 7 + 1
    assert next_cursor(garbage, now_ms=now_ms, random=Random(1)) == "7"
