import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.http.json_messages import array_of_lines, lines_of_body, whole_lines_length

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def lines(body: str) -> bytes:
    return lines_of_body(body.encode(), empty_array_allowed=False)


@pytest.mark.slow
@given(st.lists(VALUES, min_size=1, max_size=5), st.sampled_from([None, 0, 2]))
def test_an_array_becomes_one_line_per_element_and_comes_back(
    values: list[object], indent: int | None
) -> None:
    stored = lines(json.dumps(values, indent=indent))
    assert stored.count(b"\n") == len(values)
    assert whole_lines_length(stored) == len(stored)
    assert json.loads(array_of_lines(stored)) == values


@given(VALUES)
def test_any_other_value_is_one_message(value: object) -> None:
    body = json.dumps(value, indent=1, ensure_ascii=False)
    if isinstance(value, list):
        body = f"[{body}]"
    assert json.loads(array_of_lines(lines(body))) == [value]


@pytest.mark.parametrize(
    "number", ["12345678901234567890", "1.0", "1e400", "-0", "0.10", "1E+2", "9" * 5000]
)
def test_numbers_keep_their_spelling(number: str) -> None:
    assert array_of_lines(lines(f'[{number}, {{"n": {number}}}]')) == (
        f'[{number},{{"n": {number}}}]'.encode()
    )


def test_duplicate_keys_and_escapes_are_kept_as_they_were_written() -> None:
    text = '{"a":1,"a":2,"s":"\\u00e9\\n\\ud800"}'
    assert lines(text) == text.encode() + b"\n"


def test_line_ends_between_tokens_do_not_reach_the_segment() -> None:
    assert lines('{\r\n"a":\n1\r}') == b'{  "a": 1 }\n'


def test_an_array_is_taken_apart_one_level_only() -> None:
    assert lines(" [ [1,2] , [] ] ") == b"[1,2]\n[]\n"


@pytest.mark.parametrize(
    "body",
    [b"", b" ", b"{", b"[1,]", b"[1 2]", b"[1", b"[", b"1 2", b"[] []", b"NaN", b"[Infinity]", b"-Infinity",
     b"'a'", b'"a\nb"', b"\xef\xbb\xbf1", b"\xff", "1".encode("utf-16"), b"[" * 100_000, b"01", b"[]"],
)  # fmt: skip
def test_what_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        lines_of_body(body, empty_array_allowed=False)


def test_an_empty_array_makes_an_empty_stream_where_that_is_allowed() -> None:
    assert lines_of_body(b" [ ] ", empty_array_allowed=True) == b""
    assert array_of_lines(b"") == b"[]"
