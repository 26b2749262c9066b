import json
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.http import json_messages
from segmentstore.http.json_messages import (
    array_of_lines,
    lines_of_body,
    parse_in_pieces,
    whole_lines_length,
)

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


def outcome(body: bytes) -> bytes | None:
    try:
        return lines_of_body(body, empty_array_allowed=True)
    except InvalidRequestError:
        return None


def cut_or_spoilt(text: str, at: int, put_in: str, left_out: int) -> bytes:
    at %= len(text) + 1
    return (text[:at] + put_in + text[at + left_out :]).encode()


@pytest.mark.slow
@given(
    st.builds(
        cut_or_spoilt,
        st.builds(json.dumps, VALUES, indent=st.sampled_from([None, 1]), ensure_ascii=st.booleans()),
        st.integers(0, 200),
        st.sampled_from(["", *'[]{},:"\\0-1.eu \n\0']),
        st.integers(0, 2),
    )
)  # fmt: skip
def test_a_long_value_is_taken_as_a_short_one_is(body: bytes) -> None:
    expected = outcome(body)
    for characters in (1, 2, 3, 5, 8, 17):
        with mock.patch.object(json_messages, "AT_ONCE_CHARACTERS", characters):
            assert outcome(body) == expected


@pytest.mark.parametrize(
    "body",
    ['"\\ud800"', '"\\ud8"', '"\\x"', '"a\tb"', '"\x7f"', "-", "-01", "1.", "1.e5", ".5", "1e", "+1", "1_0",
     "\u0661", "nul", "nulll", "NaN", "-Infinity", "[1,]", "[,1]", "[1,,2]", "[[],]", '{"a"}', '{"a":}', '{"a":1,}',
     "{1:2}", '{,}', "[1}", '{"a":1]', "[\u00a0]", "[[1,2,3],[4,5,\"6\",{}],{\"a\":[],\"b\":{\"c\":null}}]"],
)  # fmt: skip
def test_what_stands_in_a_long_value_is_judged_as_in_a_short_one(body: str) -> None:
    short = f"[{body}]".encode()
    long = f"[[{body},{'0,' * 40_000}0]]".encode()
    assert (outcome(long) is None) == (outcome(short) is None)


@pytest.mark.parametrize(
    "value", ["-12.5e-30", "1E+9", "0.25", "1e5", '"\\ud83d\\n"', "true", "[1.5]", '{"a":-0.5e-1}']
)
def test_it_does_not_matter_where_a_stretch_ends(value: str) -> None:
    body = f"[{value}, {value},[{value},{value}] ,{value}]".encode()
    for characters in range(1, len(body) + 2):
        with mock.patch.object(json_messages, "AT_ONCE_CHARACTERS", characters):
            assert (
                outcome(body)
                == "".join(
                    f"{each}\n" for each in (value, value, f"[{value},{value}]", value)
                ).encode()
            )


def test_a_long_message_may_be_as_deep_as_a_short_one_and_no_deeper() -> None:
    for depth, is_taken in ((500, True), (100_000, False)):
        body = b"[" + b"[" * depth + b"0," * 40_000 + b"0" + b"]" * depth + b"]"
        assert (outcome(body) is not None) is is_taken


@pytest.mark.parametrize("element", ["[]", '{"a":[1,{"b":[]}]}', '"\\n"', '["a\\tb",1.5,{}]'])
def test_no_long_message_is_looked_at_at_once(element: str) -> None:
    """While the scanner looks at a value no other thread runs."""
    message = ",".join([element] * (1_000_000 // len(element)))
    with scanned() as lengths:
        lines_of_body(f"[[{message}]]".encode(), empty_array_allowed=False)
    assert lengths
    assert max(lengths) <= json_messages.AT_ONCE_CHARACTERS


def test_a_long_message_in_many_others_is_not_looked_at_once_for_each() -> None:
    body = b"[" * 500 + b'["a",{}],' * 50_000 + b"0" + b"]" * 500
    with scanned() as lengths:
        lines_of_body(body, empty_array_allowed=False)
    assert sum(lengths) < 3 * len(body)


@contextmanager
def scanned() -> Iterator[list[int]]:
    """How many characters the scanner had before it, each time."""
    lengths: list[int] = []
    scan = json_messages._scan_value

    def noting(text: str, position: int) -> tuple[object, int]:
        lengths.append(len(text) - position)
        return scan(text, position)

    with mock.patch.object(json_messages, "_scan_value", noting):
        yield lengths


def parsed(text: str) -> tuple[str, object]:
    try:
        # NaN is not itself.
        return "", repr(parse_in_pieces(text))
    except ValueError:
        return "refused", None


def parsed_at_once(text: str) -> tuple[str, object]:
    try:
        return "", repr(json.loads(text))
    except ValueError:
        return "refused", None


@pytest.mark.slow
@given(
    st.builds(
        cut_or_spoilt,
        st.builds(json.dumps, VALUES, indent=st.sampled_from([None, 1]), ensure_ascii=st.booleans()),
        st.integers(0, 200),
        st.sampled_from(["", *'[]{},:"\\0-1.eu \n\0', '"a":1,"a":[],']),
        st.integers(0, 2),
    )
)  # fmt: skip
def test_a_value_in_pieces_is_what_it_is_at_once(body: bytes) -> None:
    text = body.decode()
    for characters in (1, 2, 3, 5, 8, 17):
        with mock.patch.object(json_messages, "AT_ONCE_CHARACTERS", characters):
            assert parsed(text) == parsed_at_once(text)


@pytest.mark.parametrize(
    "value",
    ['{"a":1,"b":2,"a":3}', "NaN", "-Infinity", '"\\ud83d\\ude00"', '"\\ud83d"', "1e400", "9" * 5000,
     "[" * 20 + "NaN,1" + "]" * 20, "[" * 20 + '{"a":{"b":{}},"c":[]}' + "]" * 20],
)  # fmt: skip
def test_what_is_in_a_long_value_is_what_it_is_in_a_short_one(value: str) -> None:
    text = f'[{value},"{"x" * 70_000}",{value},{{"m":{value},"n":[{"[0]," * 20_000}{value}]}}]'
    assert parsed(text) == parsed_at_once(text)


@pytest.mark.parametrize("element", ["[]", '{"a":[1,{"b":[]}]}', '"\\n"', "1", '["a\\tb",1.5,{}]'])
@pytest.mark.parametrize("form", ["[%s]", '{"updates":[%s]}', '{"a":{"b":[[%s]]}}'])
def test_no_long_value_is_parsed_at_once(form: str, element: str) -> None:
    """While the parser looks at a value no other thread runs."""
    text = form % ",".join([element] * (200_000 // len(element)))
    looked_at: list[int] = []
    scan = json_messages._value_at

    def noting(stretch: str, position: int) -> tuple[object, int]:
        assert len(stretch) <= json_messages.AT_ONCE_CHARACTERS
        looked_at.append(len(stretch) - position)
        value, end = scan(stretch, position)
        looked_at[-1] = end - position
        return value, end

    with mock.patch.object(json_messages, "_value_at", noting):
        value = parse_in_pieces(text)
    assert value == json.loads(text)
    assert sum(looked_at) < 5 * len(text)
