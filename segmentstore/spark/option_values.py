"""Values of options: words, numbers, sizes and times from what users write. All raise InvalidRequestError.

A value that is not given is an empty text; the keys of `words` are lower case. Sizes mean what they mean everywhere in
Spark: `64m`, `64mb` and `64MiB` are 64 * 2^20 bytes. (In settings and commands of the store itself `MB` is 10^6.)
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from segmentstore.codec.quantities import SPARK_BYTES, SPARK_SECONDS, parse_bytes, parse_seconds
from segmentstore.contracts.errors import InvalidRequestError

Word = TypeVar("Word", bound=StrEnum)


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
    try:
        size = parse_bytes(text, SPARK_BYTES)
    except ValueError:
        size = 0
    if not size:
        raise InvalidRequestError(
            f"{name} is a size such as 1048576 or 64m, where k, m, g and t are powers of 1024 given={text!r}"
        )
    return size


def seconds_value(words: Mapping[str, str], name: str) -> float | None:
    """A stretch of time in seconds."""
    text = words.get(name.lower(), "")
    if not text:
        return None
    try:
        return parse_seconds(text.lower(), SPARK_SECONDS)
    except ValueError as error:
        raise InvalidRequestError(
            f"{name} is a time such as 30s, 15m (minutes) or 6h given={text!r}"
        ) from error


def stream_value(words: Mapping[str, str]) -> tuple[str, str]:
    """Scope and stream, which may also stand together as `stream`; what is not given is empty."""
    scope, stream = words.get("scope", ""), words.get("stream", "")
    before, slash, after = stream.partition("/")
    if not slash:
        return scope, stream
    if scope and scope != before:
        raise InvalidRequestError(f"stream names another scope scope={scope!r} stream={stream!r}")
    return before, after
