"""Positions of a query as Spark keeps them in its checkpoint: JSON objects with texts as keys.

    a query of one stream or segment     {"<segment id>": offset, ...}        as `startingOffsets` takes it
    a query of a whole scope             {"<scope>/<stream>": {"<segment id>": offset, ...}, ...}

Invariants:

- Decoding what was encoded gives the same position; equal positions are equal objects, in the order of their keys.
- What Spark hands over comes from a file that a person may have edited: it is refused with a sentence if it is not such
  an object, or one of a query of the other kind.
"""

from collections.abc import Mapping

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.streaming.micro_batches import StreamsOffset
from segmentstore.spark.streaming.stream_order import Cut


def encode_offset(position: StreamsOffset, *, single: str | None) -> dict[str, object]:
    """For Spark; `single` names the one stream of the query, None stands for a whole scope."""
    if single is not None:
        return _encode_cut(position.get(single, {}))
    return {name: _encode_cut(position[name]) for name in sorted(position)}


def decode_offset(content: Mapping[str, object], *, single: str | None) -> StreamsOffset:
    """From Spark. Raises InvalidRequestError."""
    if single is not None:
        return {single: _decode_cut(content)}
    return {name: _decode_cut(content[name]) for name in sorted(content)}


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


def _encode_cut(cut: Cut) -> dict[str, object]:
    return {str(segment_id): cut[segment_id] for segment_id in sorted(cut)}


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
