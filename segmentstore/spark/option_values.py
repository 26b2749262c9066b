"""Values of options: words, numbers, sizes and times from what users write. All raise InvalidRequestError.

A value that is not given is an empty text; the keys of `words` are lower case.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from segmentstore.contracts.errors import InvalidRequestError

Word = TypeVar("Word", bound=StrEnum)

_UNITS = {
    "": 1,
    "b": 1,
    "k": 1 << 10, "kb": 1 << 10, "kib": 1 << 10,
    "m": 1 << 20, "mb": 1 << 20, "mib": 1 << 20,
    "g": 1 << 30, "gb": 1 << 30, "gib": 1 << 30,
    "t": 1 << 40, "tb": 1 << 40, "tib": 1 << 40,
}  # fmt: skip
_SECONDS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_QUANTITY = re.compile(r"([0-9]+)\s*([A-Za-z]*)")


def word_value(words: Mapping[str, str], name: str, kind: type[Word], default: Word) -> Word:
    """One of some words."""
    text = words.get(name.lower(), "")
    try:
        return kind(text.lower()) if text else default
    except ValueError as error:
        raise InvalidRequestError(f"{name} is one of {', '.join(kind)} given={text!r}") from error


def flag_value(words: Mapping[str, str], name: str, *, default: bool) -> bool:
    """True or false."""
    text = words.get(name.lower(), "").lower()
    if text not in ("", "true", "false"):
        raise InvalidRequestError(f"{name} is true or false given={text!r}")
    return text == "true" if text else default


def count_value(words: Mapping[str, str], name: str, *, least: int = 1) -> int | None:
    """A whole number of at least `least`."""
    text = words.get(name.lower(), "")
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise InvalidRequestError(f"{name} is a whole number of at least {least} given={text!r}")
    return int(text)


def bytes_value(words: Mapping[str, str], name: str) -> int | None:
    """A size in bytes."""
    text = words.get(name.lower(), "")
    if not text:
        return None
    match = _QUANTITY.fullmatch(text)
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None or not int(match[1]):
        raise InvalidRequestError(f"{name} is a size such as 1048576 or 64m given={text!r}")
    return int(match[1]) * unit


def seconds_value(words: Mapping[str, str], name: str) -> float | None:
    """A stretch of time in seconds."""
    text = words.get(name.lower(), "")
    if not text:
        return None
    match = _QUANTITY.fullmatch(text)
    unit = _SECONDS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise InvalidRequestError(f"{name} is a time such as 30s, 15m or 6h given={text!r}")
    return int(match[1]) * unit


def stream_value(words: Mapping[str, str]) -> tuple[str, str]:
    """Scope and stream, which may also stand together as `stream`; what is not given is empty."""
    scope, stream = words.get("scope", ""), words.get("stream", "")
    before, slash, after = stream.partition("/")
    if not slash:
        return scope, stream
    if scope and scope != before:
        raise InvalidRequestError(f"stream names another scope scope={scope!r} stream={stream!r}")
    return before, after
