"""Ranges of the key space [0, 1), and what replaces what in a scale. Pure.

Invariant: the bounds of new ranges are made equal, bit for bit, to those of the ranges that they replace or touch.
Clients compute bounds in floating point; a gap of one unit in the last place would lose routing keys.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from segmentstore.codec.controller_records.stream_records import StreamSegment
from segmentstore.controller.errors import PreconditionError

Range = tuple[float, float]
"""Lower bound inclusive, upper bound exclusive."""

_TOLERANCE: Final = 0.0001
"""Bounds that differ by less are meant to be the same: that is what the protocol's clients assume."""


def split_range(low: float, high: float, parts: int) -> list[Range]:
    """Even parts whose outer bounds are exactly the given ones."""
    bounds = [low + (high - low) * part / parts for part in range(parts)] + [high]
    return list(pairwise(bounds))


def replacing_ranges(sealed: Sequence[StreamSegment], wanted: Sequence[Range]) -> list[Range]:
    """The wanted ranges with exact bounds, in order. Raises PreconditionError unless they cover what is sealed."""
    if not sealed or not wanted:
        raise PreconditionError("a scale names segments to seal and ranges to replace them")
    if not all(low < high for low, high in wanted):
        raise PreconditionError("a new range is empty")
    # Never so wide that the two bounds of one range would be taken for the same.
    widths = [high - low for low, high in wanted] + [each.high - each.low for each in sealed]
    tolerance = min(_TOLERANCE, min(widths) / 4)
    exact: list[Range] = []
    rest = sorted(wanted)
    for low, high in _joined(sealed):
        bound = low
        while bound != high:
            if not rest or abs(rest[0][0] - bound) > tolerance:
                raise PreconditionError(
                    f"new ranges do not cover the sealed segments from={bound} to={high}"
                )
            upper = rest.pop(0)[1]
            if abs(upper - high) <= tolerance:
                upper = high
            if not bound < upper <= high:
                raise PreconditionError(
                    f"a new range is empty or too wide low={bound} high={upper}"
                )
            exact.append((bound, upper))
            bound = upper
    if rest:
        raise PreconditionError(f"a new range lies outside the sealed segments range={rest[0]}")
    return exact


def _joined(segments: Sequence[StreamSegment]) -> list[Range]:
    """The union of the segments' ranges, neighbours joined."""
    joined: list[Range] = []
    for segment in sorted(segments, key=lambda each: each.low):
        if joined and joined[-1][1] == segment.low:
            joined[-1] = (joined[-1][0], segment.high)
        else:
            joined.append((segment.low, segment.high))
    return joined
