"""JSON mode: what a client posts, what a segment holds, what a reader gets.

A segment of media type `application/json` holds one message per line (NDJSON):

    message LF message LF ...

- A message is the client's own text of one JSON value, so numbers keep their spelling; CR and LF between its tokens
  are replaced by spaces (inside strings JSON forbids them raw), so LF occurs only behind a message.
- A posted array is taken apart one level: each element is a message. Anything else is one message.
- Every offset that is handed to a client lies behind an LF (or at the start): reads are cut there.
- A reader gets `[message,message]`, which is the lines with every LF but the last turned into a comma.
"""

import json
import re
from collections.abc import Callable
from json.scanner import make_scanner
from typing import NoReturn, cast

from segmentstore.contracts.errors import InvalidRequestError

_SPACE = re.compile("[ \t\r\n]*")


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


# Only the ends of values matter. Integers stay text because int() refuses more than 4300 digits.
_scan_value = cast(
    "Callable[[str, int], tuple[object, int]]",  # typeshed leaves the scanner untyped
    make_scanner(
        json.JSONDecoder(parse_int=str, parse_constant=_refuse_constant)  # type: ignore[arg-type] # it takes any decoder
    ),
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
    except StopIteration as error:
        raise InvalidRequestError(f"body is not JSON: no value at={error.value}") from error
    except ValueError as error:
        raise InvalidRequestError(f"body is not JSON: {error}") from error
    except RecursionError as error:
        raise InvalidRequestError("body is nested too deeply") from error
    if not messages and not empty_array_allowed:
        raise InvalidRequestError("an empty array has no messages to append")
    return "".join(messages).encode()


def _split(text: str) -> list[str]:
    start = _skip_space(text, 0)
    if not text.startswith("[", start):
        _, end = _scan_value(text, start)
        _expect_end(text, end)
        return [_line(text[start:end])]
    position = _skip_space(text, start + 1)
    lines: list[str] = []
    if text.startswith("]", position):
        _expect_end(text, position + 1)
        return lines
    while True:
        _, end = _scan_value(text, position)
        lines.append(_line(text[position:end]))
        position = _skip_space(text, end)
        if text.startswith("]", position):
            _expect_end(text, position + 1)
            return lines
        if not text.startswith(",", position):
            raise ValueError(f"expected ',' or ']' at={position}")
        position = _skip_space(text, position + 1)


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
