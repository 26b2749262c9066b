"""What Spark's filters allow to leave out: bounds of segment ids, offsets and times.

Invariants:

- A bound never leaves out a row that the filters would let through; everything is filtered again by Spark, so a bound
  that lets too much through is only slower.
- Filters on other columns, of other kinds or with other types of values say nothing here.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

if TYPE_CHECKING:
    from segmentstore.spark.scan_plan import Stretch


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedBounds:
    """Inclusive bounds; None where there is none."""

    segment_ids: frozenset[int] | None = None
    lowest_offset: int | None = None
    highest_offset: int | None = None
    lowest_time_ms: int | None = None
    highest_time_ms: int | None = None

    def apply(self, stretch: "Stretch") -> "Stretch | None":
        """The part of a stretch that may hold rows; None if none does."""
        if self.segment_ids is not None and stretch.segment.segment_id not in self.segment_ids:
            return None
        start, end = stretch.start, stretch.end
        if self.lowest_offset is not None:
            start = max(start, self.lowest_offset)
        if self.highest_offset is not None:
            end = min(end, self.highest_offset + 1)
        return replace(stretch, start=start, end=end) if start < end else None

    def narrowed(self, each: Filter) -> "PushedBounds":
        """These bounds and those of one more filter."""
        match each:
            case (
                EqualTo(attribute=(column,), value=value)
                | EqualNullSafe(attribute=(column,), value=value)
            ):
                return self._between(column, value, value, {value})
            case In(attribute=(column,), value=values):
                # No row is equal to null.
                some = [value for value in values if value is not None]
                if not some:
                    return self
                return self._between(column, min(some), max(some), set(some))
            case (
                GreaterThan(attribute=(column,), value=value)
                | GreaterThanOrEqual(attribute=(column,), value=value)
            ):
                return self._between(column, value, None, None)
            case (
                LessThan(attribute=(column,), value=value)
                | LessThanOrEqual(attribute=(column,), value=value)
            ):
                return self._between(column, None, value, None)
            case _:
                return self

    def _between(
        self, column: str, lowest: object, highest: object, values: set[object] | None
    ) -> "PushedBounds":
        if column == "timestamp":
            low, high = _milliseconds(lowest), _milliseconds(highest)
            return replace(
                self,
                lowest_time_ms=_higher(self.lowest_time_ms, low),
                # A part of a millisecond is cut off, so the bound lies one further.
                highest_time_ms=_lower(self.highest_time_ms, None if high is None else high + 1),
            )
        low, high = _number(lowest), _number(highest)
        if column == "offset":
            return replace(
                self,
                lowest_offset=_higher(self.lowest_offset, low),
                highest_offset=_lower(self.highest_offset, high),
            )
        if column == "segment_id" and values is not None:
            ids = frozenset(value for value in values if isinstance(value, int))
            known = self.segment_ids
            return replace(self, segment_ids=ids if known is None else ids & known)
        return self


NO_BOUNDS: Final = PushedBounds()


def bounds_of(filters: Iterable[Filter]) -> PushedBounds:
    """What all of the filters together allow to leave out."""
    bounds = NO_BOUNDS
    for each in filters:
        bounds = bounds.narrowed(each)
    return bounds


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _milliseconds(value: object) -> int | None:
    if not isinstance(value, datetime):
        return None
    if value.tzinfo is None:
        # Spark hands over local time of the Python process.
        value = value.astimezone(UTC)
    return int(value.timestamp() * 1000)


def _higher(known: int | None, bound: int | None) -> int | None:
    return bound if known is None else known if bound is None else max(known, bound)


def _lower(known: int | None, bound: int | None) -> int | None:
    return bound if known is None else known if bound is None else min(known, bound)
