"""JSON mode: what a client posts, what a segment holds, what a reader gets.

A segment of media type `application/json` holds one message per line (NDJSON):

    message LF message LF ...

- A message is the client's own text of one JSON value, so numbers keep their spelling; CR and LF between its tokens
  are replaced by spaces (inside strings JSON forbids them raw), so LF occurs only behind a message.
- A posted array is taken apart one level: each element is a message. Anything else is one message.
- Every offset that is handed to a client lies behind an LF (or at the start): reads are cut there.
- A reader gets `[message,message]`, which is the lines with every LF but the last turned into a comma.

While C code looks at a value no other thread runs, the loop's neither. So it is given a stretch of the body at a time;
a value that does not end in one is taken apart, and what is in it is looked at in the same way. Values are parsed so as
well, where a request is JSON and no message (`parse_in_pieces`).
"""

import json
import re
from collections.abc import Callable, Iterator
from json.scanner import make_scanner
from typing import NoReturn, TypeVar, cast

from segmentstore.contracts.errors import InvalidRequestError

Value = TypeVar("Value")

AT_ONCE_CHARACTERS = 64 << 10
"""Characters of a body that C code is given."""
_CUT_EXPONENT_CHARACTERS_MAX = 3
"""A number ends before what is no digit: `1` of `1e-`, which may go on with digits behind the stretch."""
_LONG_DEPTH_MAX = 8
"""So many long arrays and objects one in another are tried as a whole, each by a stretch of its own."""
_DEPTH_MAX = 1_000
"""Of a long message. Others are bounded by Python's own parser: about as much in 3.11, about 10,000 from 3.12 on."""
_SPACE = re.compile("[ \t\r\n]*")
_SPACES = "[ \t\r\n]*+"
_SCALAR = r"(?:-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+|true|false|null)"
_SHORT_STRING = r'"[^"\\\x00-\x1f]{0,256}+"'
_SMALL_VALUE = rf"(?:{_SCALAR}|{_SHORT_STRING}|\[{_SPACES}\]|\{{{_SPACES}\}})"
_SCALARS = re.compile(_SCALAR)
_SMALL_ELEMENTS = re.compile(f"(?:{_SPACES}{_SMALL_VALUE}{_SPACES},){{0,256}}+")
_SMALL_MEMBERS = re.compile(
    f"(?:{_SPACES}{_SHORT_STRING}{_SPACES}:{_SPACES}{_SMALL_VALUE}{_SPACES},){{0,256}}+"
)
_OF_A_STRING = re.compile(r'(?:[^"\\\x00-\x1f]{1,4096}+|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})){0,256}+')


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


# Only the ends of values matter. Integers stay text because int() refuses more than 4300 digits.
_scan_value = cast(
    "Callable[[str, int], tuple[object, int]]",  # typeshed leaves the scanner untyped
    make_scanner(
        json.JSONDecoder(parse_int=str, parse_constant=_refuse_constant)  # type: ignore[arg-type] # it takes any decoder
    ),
)


_value_at = cast(
    "Callable[[str, int], tuple[object, int]]",
    make_scanner(json.JSONDecoder()),  # type: ignore[arg-type] # as above
)


def lines_of_body(body: bytes, *, empty_array_allowed: bool) -> bytes:
    """The lines to store for a posted body. Linear in the body's length.

    Raises InvalidRequestError for invalid JSON, other encodings than UTF-8, and (unless allowed) an empty array.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError("body is not UTF-8") from error
    try:
        messages = _split(text)
    except ValueError as error:
        raise InvalidRequestError(f"body is not JSON: {error}") from error
    except RecursionError as error:
        raise InvalidRequestError("body is nested too deeply") from error
    if not messages and not empty_array_allowed:
        raise InvalidRequestError("an empty array has no messages to append")
    return "".join(messages).encode()


def _split(text: str) -> list[str]:
    start = _skip_space(text, 0)
    ends = _ValueEnds(text)
    if not text.startswith("[", start):
        _, end = ends.behind(start)
        _expect_end(text, end)
        return [_line(text[start:end])]
    return [_line(text[first:end]) for _, first, end in array_elements(text, start, ends.behind)]


def array_elements(
    text: str, start: int, scan: Callable[[int], tuple[Value, int]]
) -> Iterator[tuple[Value, int, int]]:
    """Of the array that begins there and is the rest of the text: what `scan` makes of each, and where that stands.

    `scan` is given where a value begins, and says where it ends as well. Raises ValueError, and what `scan` raises.
    """
    position = _skip_space(text, start + 1)
    if text.startswith("]", position):
        _expect_end(text, position + 1)
        return
    while True:
        value, end = scan(position)
        yield value, position, end
        position = _skip_space(text, end)
        if text.startswith("]", position):
            _expect_end(text, position + 1)
            return
        if not text.startswith(",", position):
            raise ValueError(f"expected ',' or ']' at={position}")
        position = _skip_space(text, position + 1)


def parse_in_pieces(text: str) -> object:
    """As json.loads(), which is one call of C code. Raises ValueError, RecursionError."""
    if len(text) <= AT_ONCE_CHARACTERS:
        value: object = json.loads(text)
        return value
    start = _skip_space(text, 0)
    value, end = LongValues(text).value_at(start)
    _expect_end(text, end)
    return value


class LongValues:
    """The values of a text: asked in their order, by where they begin."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._stretch = _Stretch(text, _value_at)

    def value_at(self, position: int) -> tuple[object, int]:
        """The value, and where it ends. Raises ValueError, RecursionError."""
        text = self._text
        opened: list[tuple[list[object], None] | tuple[dict[str, object], str]] = []
        """Long arrays and objects that the value is in; and of an object, under which name it will be."""
        while True:
            found = None
            begins = text[position : position + 1]
            if len(opened) < _LONG_DEPTH_MAX or begins not in {"[", "{"}:
                found = self._stretch.near(position)
            if found is not None:
                value, position = found
            elif begins in {"[", "{"}:
                if len(opened) >= _DEPTH_MAX:
                    raise RecursionError("it is nested too deeply")
                closing = "]" if begins == "[" else "}"
                made: list[object] | dict[str, object] = [] if begins == "[" else {}
                position = _skip_space(text, position + 1)
                if not text.startswith(closing, position):
                    position = self._open(opened, made, position, many=True)
                    continue
                value, position = made, position + 1
            else:
                end = _end_of_scalar(text, position)
                value, position = json.loads(text[position:end]), end
            while opened:
                container, name = opened.pop()
                if isinstance(container, list):
                    container.append(value)
                    closing = "]"
                else:
                    assert name is not None, "what is in an object has a name"
                    container[name] = value
                    closing = "}"
                position = _skip_space(text, position)
                if text.startswith(",", position):
                    # Behind what is small there may be more of it.
                    is_small = not value or not isinstance(value, list | dict)
                    position = self._open(opened, container, position + 1, many=is_small)
                    break
                if not text.startswith(closing, position):
                    raise ValueError(f"expected ',' or '{closing}' at={position}")
                value = container
                position += 1
            else:
                return value, position

    def _open(
        self,
        opened: list[tuple[list[object], None] | tuple[dict[str, object], str]],
        container: list[object] | dict[str, object],
        position: int,
        *,
        many: bool,
    ) -> int:
        """Where the next value in it begins; `many`: behind the small ones that follow, which are taken at once."""
        text = self._text
        if isinstance(container, list):
            end = _behind_small(text, position, "]") if many else position
            if end > position:
                container.extend(json.loads(f"[{text[position : end - 1]}]"))
            opened.append((container, None))
            return _skip_space(text, end)
        end = _behind_small(text, position, "}") if many else position
        if end > position:
            container.update(json.loads(f"{{{text[position : end - 1]}}}"))
        position = _skip_space(text, end)
        if not text.startswith('"', position):
            raise ValueError(f"expected a name at={position}")
        name, end = self._stretch.near(position) or (None, _end_of_string(text, position))
        if name is None:
            name = json.loads(text[position:end])
        assert isinstance(name, str), f"what begins with a quote is text position={position}"
        opened.append((container, name))
        return _behind_colon(text, end)


class _Stretch:
    """Of a text: what C code is given of it. Asked in the order of the text."""

    def __init__(self, text: str, scan: Callable[[str, int], tuple[object, int]]) -> None:
        self._text = text
        self._scan = scan
        self._stretch = text[:AT_ONCE_CHARACTERS]
        self._first = 0

    def near(self, position: int) -> tuple[object, int] | None:
        """The value that begins there, and its end. None if it does not end in a stretch, as far as one sees.

        Raises ValueError.
        """
        found = None
        if position < self._first + len(self._stretch):
            found = self._in_stretch(position)
        if found is None and position > self._first:
            self._stretch, self._first = (
                self._text[position : position + AT_ONCE_CHARACTERS],
                position,
            )
            found = self._in_stretch(position)
        return found

    def _in_stretch(self, position: int) -> tuple[object, int] | None:
        try:
            value, end = self._scan(self._stretch, position - self._first)
        except (StopIteration, ValueError) as error:
            if len(self._stretch) < len(self._text):
                return None
            if isinstance(error, StopIteration):
                raise ValueError(f"no value at={position}") from error
            raise
        is_at_end = self._first + len(self._stretch) == len(self._text)
        is_certain = is_at_end or end <= len(self._stretch) - _CUT_EXPONENT_CHARACTERS_MAX
        return (value, self._first + end) if is_certain else None


class _ValueEnds:
    """Where the values of a text end: asked in their order, by where they begin."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._stretch = _Stretch(text, _scan_value)

    def behind(self, position: int) -> tuple[None, int]:
        """Raises ValueError, RecursionError."""
        text = self._text
        closings: list[str] = []
        """Of the long arrays and objects that the value is in."""
        while True:
            near = self._stretch.near(position) if len(closings) < _LONG_DEPTH_MAX else None
            end = None if near is None else near[1]
            if end is None and text[position : position + 1] in {"[", "{"}:
                closings.append("]" if text[position] == "[" else "}")
                if len(closings) > _DEPTH_MAX:
                    raise RecursionError
                position = _skip_space(text, position + 1)
                if not text.startswith(closings[-1], position):
                    position = _next_value(text, position, closings[-1])
                    continue
                closings.pop()
                end = position + 1
            position = _end_of_scalar(text, position) if end is None else end
            while closings:
                position = _skip_space(text, position)
                if text.startswith(",", position):
                    position = _next_value(text, position + 1, closings[-1])
                    break
                if not text.startswith(closings[-1], position):
                    raise ValueError(f"expected ',' or '{closings[-1]}' at={position}")
                closings.pop()
                position += 1
            else:
                return None, position


def _next_value(text: str, position: int, closing: str) -> int:
    """Where the first value begins that is not small, or the last one, of an array or object that goes on there."""
    position = _skip_space(text, _behind_small(text, position, closing))
    if closing == "]":
        return position
    if not text.startswith('"', position):
        raise ValueError(f"expected a name at={position}")
    return _behind_colon(text, _end_of_string(text, position))


def _behind_small(text: str, position: int, closing: str) -> int:
    """Behind the comma behind some small values of an array or object that goes on there."""
    small = (_SMALL_ELEMENTS if closing == "]" else _SMALL_MEMBERS).match(text, position)
    assert small is not None, f"a pattern that may be empty did not match position={position}"
    return small.end()


def _behind_colon(text: str, position: int) -> int:
    position = _skip_space(text, position)
    if not text.startswith(":", position):
        raise ValueError(f"expected ':' at={position}")
    return _skip_space(text, position + 1)


def _end_of_scalar(text: str, position: int) -> int:
    """Raises ValueError."""
    if text.startswith('"', position):
        return _end_of_string(text, position)
    scalar = _SCALARS.match(text, position)
    if scalar is None:
        raise ValueError(f"no value at={position}")
    return scalar.end()


def _end_of_string(text: str, position: int) -> int:
    """`position`: of the quote that it begins with."""
    position += 1
    while not text.startswith('"', position):
        some = _OF_A_STRING.match(text, position)
        if some is None or some.end() == position:
            raise ValueError(f"a string cannot go on so at={position}")
        position = some.end()
    return position + 1


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    assert match is not None, f"a pattern that may be empty did not match position={position}"
    return match.end()


def _expect_end(text: str, position: int) -> None:
    if _skip_space(text, position) != len(text):
        raise ValueError(f"more text behind the value at={position}")


def _line(value: str) -> str:
    if "\n" in value or "\r" in value:
        value = value.replace("\n", " ").replace("\r", " ")
    return value + "\n"


def whole_lines_length(content: bytes) -> int:
    """How many bytes of the content are whole messages; 0 if it does not hold one."""
    return content.rfind(b"\n") + 1


def array_of_lines(lines: bytes) -> bytes:
    """What a reader gets for whole lines."""
    assert not lines or lines.endswith(b"\n"), f"not cut behind a message tail={lines[-16:]!r}"
    return b"[" + lines[:-1].replace(b"\n", b",") + b"]"
