"""Offsets and cursors as Durable Streams clients see them.

An offset token is `<incarnation>_<byte offset>`, both decimal with exactly sixteen digits:

    0000000000000042_0000000000001234

- The incarnation is the segment id (modulo 10^16): a token of a deleted stream never fits its successor.
- Tokens of one stream compare as strings like their byte offsets.
- All zeros is accepted as the start of any stream. `-1` is the start, `now` the end; neither is ever minted.

A cursor is no position but a cache buster for live reads: a decimal count of 20-second intervals since
2024-10-09T00:00:00Z that never repeats what the client sent.
"""

import re
from dataclasses import dataclass
from enum import Enum
from random import Random

from segmentstore.contracts.errors import InvalidRequestError

_TOKEN = re.compile("([0-9]{16})_([0-9]{16})")
_DIGITS = re.compile("[0-9]{1,19}")
_INCARNATIONS = 10**16

_CURSOR_EPOCH_MS = 1_728_432_000_000
_CURSOR_INTERVAL_MS = 20_000
_CURSOR_JITTER_SECONDS_MAX = 3600


class OffsetPlace(Enum):
    """What kind of position a client named."""

    START = "start"
    """The first byte that is still there."""
    NOW = "now"
    """The end, wherever it is."""
    TOKEN = "token"


@dataclass(frozen=True, slots=True)
class RequestedOffset:
    """A parsed offset; incarnation and offset mean something for TOKEN only."""

    place: OffsetPlace
    incarnation: int = 0
    offset: int = 0


START = RequestedOffset(OffsetPlace.START)
NOW = RequestedOffset(OffsetPlace.NOW)


def offset_token(segment_id: int, offset: int) -> str:
    """The token of a byte offset of one incarnation."""
    return f"{segment_id % _INCARNATIONS:016d}_{offset:016d}"


def parse_offset(text: str) -> RequestedOffset:
    """Raises InvalidRequestError for anything that was never minted nor has a meaning of its own."""
    if text == "-1":
        return START
    if text == "now":
        return NOW
    match = _TOKEN.fullmatch(text)
    if match is None:
        raise InvalidRequestError(f"offset is malformed offset={text[:64]!r}")
    incarnation, offset = int(match[1]), int(match[2])
    if incarnation == 0 and offset == 0:
        return START
    return RequestedOffset(OffsetPlace.TOKEN, incarnation, offset)


def is_of_incarnation(requested: RequestedOffset, segment_id: int) -> bool:
    """Whether a token was minted for the segment of that id."""
    return requested.incarnation == segment_id % _INCARNATIONS


def next_cursor(client_cursor: str | None, *, now_ms: int, random: Random) -> str:
    """The cursor to send: the present interval, or something past the client's own if that is not behind."""
    current = max(0, now_ms - _CURSOR_EPOCH_MS) // _CURSOR_INTERVAL_MS
    if client_cursor is None or not _DIGITS.fullmatch(client_cursor):
        return str(current)
    given = int(client_cursor)
    if given < current:
        return str(current)
    jitter_ms = random.randint(1, _CURSOR_JITTER_SECONDS_MAX) * 1000
    return str(given + -(-jitter_ms // _CURSOR_INTERVAL_MS))
