"""Which segments of a stream are split or merged: pure.

A segment is **hot** if in any window that it was watched for, its rate is above the target times that window's factor
(short windows need a large excess, so that a burst alone splits nothing). It is split evenly into as many parts as the
highest of these rates needs, at least two and at most the policy's factor.

A segment is **cold** if it was watched for the longest window, its rate there is below half of the target, and no other
window is above the target. Two cold neighbours become one.

Invariants:

- New ranges cover exactly the union of the sealed ones.
- The stream never has fewer segments than the policy's minimum because of a merge, nor more than the bound because of a
  split. Splits come first: while a segment is hot nothing is merged.
- A segment takes part in at most one merge of a choice.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from segmentstore.codec.stream_records.watermark import KeyedSegment
from segmentstore.controller.autoscale.segment_rates import SegmentRates
from segmentstore.controller.autoscale.settings import AutoScaleSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleLimits:
    """What a stream's policy says; the target is per second and segment, in bytes or events."""

    target: float
    split_factor: int
    segments_min: int


@dataclass(frozen=True, slots=True)
class ScaleChoice:
    """Segments to seal and the ranges that replace them, in the order of keys."""

    sealed: tuple[int, ...]
    ranges: tuple[tuple[float, float], ...]


def choose_scale(
    *,
    segments: Sequence[tuple[KeyedSegment, SegmentRates]],
    limits: ScaleLimits,
    settings: AutoScaleSettings,
) -> ScaleChoice | None:
    """What to do now; None for nothing. `segments` are all active ones."""
    ordered = sorted(segments, key=lambda item: item[0].low)
    return _splits(ordered, limits, settings) or _merges(ordered, limits, settings)


def _splits(
    segments: Sequence[tuple[KeyedSegment, SegmentRates]],
    limits: ScaleLimits,
    settings: AutoScaleSettings,
) -> ScaleChoice | None:
    room = settings.segments_per_stream_max - len(segments)
    sealed: list[int] = []
    ranges: list[tuple[float, float]] = []
    for segment, rates in segments:
        excess = _excess(rates, limits, settings)
        parts = min(max(2, int(excess)), max(2, limits.split_factor), room + 1)
        if excess <= 1 or parts < 2:
            continue
        room -= parts - 1
        sealed.append(segment.segment_id)
        ranges += split_range(segment.low, segment.high, parts)
    return ScaleChoice(tuple(sealed), tuple(ranges)) if sealed else None


def split_range(low: float, high: float, parts: int) -> list[tuple[float, float]]:
    """Even parts whose outer bounds are exactly the given ones."""
    bounds = [low + (high - low) * part / parts for part in range(parts)] + [high]
    return list(itertools.pairwise(bounds))


def _excess(rates: SegmentRates, limits: ScaleLimits, settings: AutoScaleSettings) -> float:
    """Highest rate over the target among the windows that call the segment hot; 0 if none does."""
    hot = False
    highest = 0.0
    for window, factor in enumerate(settings.hot_factors):
        if not rates.is_settled(window):
            continue
        over = rates.rate(window) / limits.target
        highest = max(highest, over)
        hot = hot or over > factor
    return highest if hot else 0.0


def _is_cold(rates: SegmentRates, limits: ScaleLimits, settings: AutoScaleSettings) -> bool:
    longest = len(settings.windows_seconds) - 1
    return (
        rates.is_settled(longest)
        and rates.rate(longest) < limits.target / 2
        and all(rates.rate(window) < limits.target for window in range(longest))
    )


def _merges(
    segments: Sequence[tuple[KeyedSegment, SegmentRates]],
    limits: ScaleLimits,
    settings: AutoScaleSettings,
) -> ScaleChoice | None:
    spare = len(segments) - max(1, limits.segments_min)
    sealed: list[int] = []
    ranges: list[tuple[float, float]] = []
    position = 0
    while position + 1 < len(segments) and spare > 0:
        (left, left_rates), (right, right_rates) = segments[position : position + 2]
        if (
            left.high == right.low
            and _is_cold(left_rates, limits, settings)
            and _is_cold(right_rates, limits, settings)
        ):
            sealed += [left.segment_id, right.segment_id]
            ranges.append((left.low, right.high))
            spare -= 1
            position += 2
        else:
            position += 1
    return ScaleChoice(tuple(sealed), tuple(ranges)) if sealed else None
