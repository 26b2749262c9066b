"""Positions in streams and every written form of one: the words of options, JSON, stream cuts, and Spark's checkpoint.

A `Position` is an offset for each of some segments of one stream. Users write it, or a word for one, in an option:

| words | meaning |
|---|---|
| earliest, latest | the head, the tail |
| {"4294967296": 1024, "0": -2} | JSON: offset by segment id; -2 is the segment's earliest offset, -1 its latest |
| base64 | a stream cut as the Java client's asText() writes it: gzip of version:scope/stream:numbers:epochs:offsets |
| scope/stream:0=1024 | a stream cut as this project's client writes it |

What a position says of segments that it does not name follows from the order of the segments:

- What comes before a named segment is wholly before the position; what follows one is wholly behind it.
- What followed a segment that is gone is not recorded any more. If one is named, what the stream begins with now and
  was made in a later epoch counts as behind it.
- A segment that is neither counts as unread: a start begins at its first offset, an end takes all of it.

A segment that is in no stream has the id that its container gave it, and may be named by 0 as well: whichever has its
name now. Names of streams' segments never come again, its own may.

Spark keeps the position of a query in its checkpoint, as a JSON object with texts as keys:

    a query of one stream or segment     {"<segment id>": offset, ...}        as `startingOffsets` takes it
    a query of a whole scope             {"<scope>/<stream>": {"<segment id>": offset, ...}, ...}

Invariants:

- A stream cut says which stream it is of, and is a position of no other one.
- Offsets are not negative once a position is resolved against a StreamMetadata. They are never checked against lengths
  here: that is a question of data loss, which the planner answers.
- Decoding what was encoded for the checkpoint gives the same position; equal positions are equal objects, in the order
  of their keys.
- What Spark hands over comes from a file that a person may have edited: it is refused with a sentence if it is not such
  an object, or one of a query of the other kind.
"""

import json
import re
import zlib
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self, TypeAlias

from segmentstore.codec.stream_names import creation_epoch_of, segment_id_of
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.streams.segment_graph import Cut, StreamMetadata

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1
_CUT_NUMBER = re.compile(r"[0-9]+")
_CUT_BYTES_MAX = 4 << 20
"""Of the text of a stream cut, decompressed."""
_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
StreamsOffset: TypeAlias = Mapping[str, Cut]
"""Where a query stands: a cut for every stream that it reads, by name."""


@dataclass(frozen=True, slots=True)
class Position:
    """Offsets in bytes by segment id."""

    offsets: Mapping[int, int]
    stream: str = ""
    """scope/stream, if the position says of which it is."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """From JSON or either kind of stream cut. Raises InvalidRequestError."""
        text = text.strip()
        try:
            if text.startswith("{"):
                return cls(_offsets_of_json(text))
            if "=" in text and ":" in text:
                stream, _, pairs = text.rpartition(":")
                return cls(_offsets_of_pairs(pairs), stream)
            stream, offsets = _cut_of_base64(text)
            return cls(offsets, stream)
        except (ValueError, TypeError, AttributeError, EOFError, zlib.error) as error:
            raise InvalidRequestError(
                'a position is earliest, latest, JSON such as {"0": 1024}, or a stream cut '
                f"given={text[:200]!r}: {error}"
            ) from error

    def require_of(self, stream: StreamMetadata) -> None:
        """Raises InvalidRequestError if the position is one of another stream."""
        name = f"{stream.scope}/{stream.stream}"
        if self.stream and self.stream != name:
            raise InvalidRequestError(
                f"the stream cut is one of another stream given={self.stream} read={name}"
            )

    def to_json(self) -> str:
        """The JSON form, by ascending segment id: equal positions have equal text."""
        return json.dumps({str(each): self.offsets[each] for each in sorted(self.offsets)})

    def starts_in(self, stream: StreamMetadata) -> dict[int, int]:
        """Where reading begins in every segment of the stream, by segment id in the stream's order.

        A segment wholly before the position has its end there. O(segments + edges). Raises InvalidRequestError for
        a position of another stream.
        """
        self.require_of(stream)
        named = named_in(self.offsets, stream)
        before = self._before(stream)
        starts: dict[int, int] = {}
        for segment in stream.segments:
            offset = named.get(segment.segment_id)
            if offset is not None:
                starts[segment.segment_id] = _resolved(
                    offset, segment.start_offset, segment.end_offset
                )
            elif segment.segment_id in before:
                starts[segment.segment_id] = segment.end_offset
            else:
                starts[segment.segment_id] = segment.start_offset
        return starts

    def ends_in(self, stream: StreamMetadata) -> dict[int, int]:
        """Where reading ends in every segment: its start where the segment lies wholly behind the position.

        Raises as starts_in().
        """
        self.require_of(stream)
        before = self._before(stream)
        named = named_in(self.offsets, stream)
        behind = self._behind(stream, before)
        ends: dict[int, int] = {}
        for segment in stream.segments:
            offset = named.get(segment.segment_id)
            if offset is not None:
                ends[segment.segment_id] = _resolved(
                    offset, segment.start_offset, segment.end_offset
                )
            elif segment.segment_id in behind and segment.segment_id not in before:
                ends[segment.segment_id] = segment.start_offset
            else:
                ends[segment.segment_id] = segment.end_offset
        return ends

    def _before(self, stream: StreamMetadata) -> set[int]:
        """Segments that have a named one among what follows them."""
        found: set[int] = set()
        for segment in reversed(stream.segments):
            if any(each in self.offsets or each in found for each in segment.successors):
                found.add(segment.segment_id)
        return found

    def _behind(self, stream: StreamMetadata, before: set[int]) -> set[int]:
        """Segments that have a named one among what precedes them, or may have one that is gone."""
        gone = [creation_epoch_of(each) for each in self.offsets if each not in stream.by_id]
        found: set[int] = set()
        for segment in stream.segments:
            follows_gone = bool(gone) and not segment.predecessors and segment.epoch > min(gone)
            if (follows_gone and segment.segment_id not in before) or any(
                each in self.offsets or each in found for each in segment.predecessors
            ):
                found.add(segment.segment_id)
        return found


def named_in(cut: Cut, stream: StreamMetadata, *, like: Cut | None = None) -> dict[int, int]:
    """The cut with the id of a segment that is in no stream in the place of 0, which older versions wrote.

    It is the one that `like` names, the end of a batch that begins at the cut: what found that end looked at it.
    """
    if stream.scope or 0 not in cut:
        return dict(cut)
    own_id = max(like or (0,)) or stream.segments[0].segment_id
    return {own_id if each == 0 else each: cut[each] for each in cut}


def is_ahead_of(cut: Cut, stream: StreamMetadata) -> bool:
    """Whether the cut names a segment in no stream that was made again since `stream` was seen: its ids only grow."""
    return not stream.scope and max(cut, default=0) > stream.segments[0].segment_id


def _resolved(offset: int, earliest: int, latest: int) -> int:
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
    offsets = {int(segment): int(offset) for segment, _, offset in pairs}
    if any(offset < 0 for offset in offsets.values()):
        raise ValueError("an offset of a stream cut is not negative")
    return offsets


def _cut_of_base64(text: str) -> tuple[str, dict[int, int]]:
    # No more is decompressed than a cut may have: some hundred KB of text could be as many MB.
    expander = zlib.decompressobj(wbits=_GZIP_WINDOW)
    expanded = expander.decompress(b64decode(text, validate=True), _CUT_BYTES_MAX)
    if not expander.eof:
        raise ValueError(f"the stream cut is cut off, or longer than {_CUT_BYTES_MAX} bytes")
    version, _, rest = expanded.decode().partition(":")
    stream, _, lists = rest.partition(":")
    if "-" in lists:
        raise ValueError("an offset of a stream cut is not negative")
    numbers, epochs, offsets = (
        [int(each) for each in _CUT_NUMBER.findall(part)] for part in lists.split(":")
    )
    if version != "0" or not len(numbers) == len(epochs) == len(offsets):
        raise ValueError(f"bad stream cut version={version!r}")
    return stream, {
        segment_id_of(number=number, creation_epoch=epoch): offset
        for number, epoch, offset in zip(numbers, epochs, offsets, strict=True)
    }


def encode_offset(position: StreamsOffset, *, single: str | None) -> dict[str, object]:
    """For Spark; `single` names the one stream of the query, None stands for a whole scope."""
    if single is not None:
        return _encode_cut(position.get(single, {}))
    return {name: _encode_cut(position[name]) for name in sorted(position)}


def _encode_cut(cut: Cut) -> dict[str, object]:
    return {str(segment_id): cut[segment_id] for segment_id in sorted(cut)}


def decode_offset(content: Mapping[str, object], *, single: str | None) -> StreamsOffset:
    """From Spark. Raises InvalidRequestError."""
    if single is not None:
        return {single: _decode_cut(content)}
    return {name: _decode_cut(content[name]) for name in sorted(content)}


def _decode_cut(content: object) -> dict[int, int]:
    cut: dict[int, int] = {}
    for segment, offset in content.items() if isinstance(content, Mapping) else ():
        if not isinstance(segment, str) or not segment.isdecimal() or type(offset) is not int:
            break
        cut[int(segment)] = offset
    else:
        if isinstance(content, Mapping):
            return dict(sorted(cut.items()))
    raise InvalidRequestError(
        f"not a position of this query; was the checkpoint made by one of another stream or scope? given={content!r}"
    )


def lag_bytes(*, end_offset: Mapping[str, object], latest_offset: Mapping[str, object]) -> int:
    """How many stored bytes a query has still before it, from `endOffset` and `latestOffset` of a source's progress."""
    lag = 0
    for name, latest in latest_offset.items():
        reached = end_offset.get(name, 0)
        if isinstance(latest, Mapping):
            reached = reached if isinstance(reached, Mapping) else {}
            lag += lag_bytes(end_offset=reached, latest_offset=latest)
        elif isinstance(latest, int) and isinstance(reached, int):
            lag += max(0, latest - reached)
    return lag
