"""A position in a stream: an offset for each of some of its segments; and all the words in which users say one.

| words | meaning |
|---|---|
| earliest, latest | the head, the tail |
| {"4294967296": 1024, "0": -2} | JSON: offset by segment id; -2 is the segment's earliest offset, -1 its latest |
| base64 | a stream cut as the Java client's asText() writes it: gzip of version:scope/stream:numbers:epochs:offsets |
| scope/stream:0=1024 | a stream cut as this project's client writes it |

What a position says of segments that it does not name follows from the order of the segments:

- What comes before a named segment is wholly before the position; what follows one is wholly behind it.
- A segment that is neither counts as unread: a start begins at its first offset, an end takes all of it.

Invariants:

- Offsets are not negative once a position is resolved against a StreamMap; they are never checked against lengths here:
  that is a question of data loss, which the planner answers.
"""

import gzip
import json
import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from segmentstore.codec.stream_names import segment_id_of
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.stream_map import StreamMap

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1

_NUMBER = re.compile(r"[0-9]+")
_CUT_BYTES_MAX = 4 << 20
"""Of the text of a stream cut: what decompressing one may allocate."""


@dataclass(frozen=True, slots=True)
class Position:
    """Offsets in bytes by segment id."""

    offsets: Mapping[int, int]

    @classmethod
    def parse(cls, text: str) -> Self:
        """From JSON or either kind of stream cut. Raises InvalidRequestError."""
        text = text.strip()
        try:
            if text.startswith("{"):
                return cls(_offsets_of_json(text))
            if "=" in text and ":" in text:
                return cls(_offsets_of_pairs(text.rpartition(":")[2]))
            return cls(_offsets_of_base64(text))
        except (ValueError, TypeError, OSError, EOFError) as error:
            raise InvalidRequestError(
                'a position is earliest, latest, JSON such as {"0": 1024}, or a stream cut '
                f"given={text[:200]!r}"
            ) from error

    def to_json(self) -> str:
        """The JSON form, by ascending segment id: equal positions have equal text."""
        return json.dumps({str(each): self.offsets[each] for each in sorted(self.offsets)})

    def starts_in(self, stream: StreamMap) -> dict[int, int]:
        """Where reading begins in every segment of the stream, by segment id in the stream's order.

        A segment wholly before the position has its end there. O(segments + edges).
        """
        before = self._before(stream)
        starts: dict[int, int] = {}
        for segment in stream.segments:
            offset = self.offsets.get(segment.segment_id)
            if offset is not None:
                starts[segment.segment_id] = _plain(
                    offset, segment.start_offset, segment.end_offset
                )
            elif segment.segment_id in before:
                starts[segment.segment_id] = segment.end_offset
            else:
                starts[segment.segment_id] = segment.start_offset
        return starts

    def ends_in(self, stream: StreamMap) -> dict[int, int]:
        """Where reading ends in every segment: its start where the segment lies wholly behind the position."""
        before, behind = self._before(stream), self._behind(stream)
        ends: dict[int, int] = {}
        for segment in stream.segments:
            offset = self.offsets.get(segment.segment_id)
            if offset is not None:
                ends[segment.segment_id] = _plain(offset, segment.start_offset, segment.end_offset)
            elif segment.segment_id in behind and segment.segment_id not in before:
                ends[segment.segment_id] = segment.start_offset
            else:
                ends[segment.segment_id] = segment.end_offset
        return ends

    def _before(self, stream: StreamMap) -> set[int]:
        """Segments that have a named one among what follows them."""
        found: set[int] = set()
        for segment in reversed(stream.segments):
            if any(each in self.offsets or each in found for each in segment.successors):
                found.add(segment.segment_id)
        return found

    def _behind(self, stream: StreamMap) -> set[int]:
        """Segments that have a named one among what precedes them."""
        found: set[int] = set()
        for segment in stream.segments:
            if any(each in self.offsets or each in found for each in segment.predecessors):
                found.add(segment.segment_id)
        return found


def _plain(offset: int, earliest: int, latest: int) -> int:
    if offset == EARLIEST_OFFSET:
        return earliest
    return latest if offset == LATEST_OFFSET else offset


def _offsets_of_json(text: str) -> dict[int, int]:
    pairs = json.loads(text)
    offsets = {int(segment): offset for segment, offset in pairs.items()}
    for offset in offsets.values():
        if not isinstance(offset, int) or isinstance(offset, bool) or offset < EARLIEST_OFFSET:
            raise ValueError(f"bad offset {offset!r}")
    return offsets


def _offsets_of_pairs(text: str) -> dict[int, int]:
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    return {int(segment): int(offset) for segment, _, offset in pairs}


def _offsets_of_base64(text: str) -> dict[int, int]:
    content = gzip.decompress(b64decode(text, validate=True))[:_CUT_BYTES_MAX].decode()
    version, _, rest = content.partition(":")
    _, _, lists = rest.partition(":")
    numbers, epochs, offsets = (
        [int(each) for each in _NUMBER.findall(part)] for part in lists.split(":")
    )
    if version != "0" or not len(numbers) == len(epochs) == len(offsets):
        raise ValueError(f"bad stream cut version={version!r}")
    return {
        segment_id_of(number=number, creation_epoch=epoch): offset
        for number, epoch, offset in zip(numbers, epochs, offsets, strict=True)
    }
