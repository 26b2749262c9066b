"""Rows on their way into an Arrow batch: what all metadata tables write alike."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from segmentstore.spark.positions import Position

Value: TypeAlias = str | int | float | bool | Sequence[str] | Sequence[int] | None
Row: TypeAlias = dict[str, Value]
"""Values by column; columns that are left out are null. Times are Unix microseconds."""


def time_of(milliseconds: int) -> int | None:
    """A time from Unix milliseconds; 0 stands for "unknown"."""
    return milliseconds * 1_000 if milliseconds else None


def position_of(offsets: Mapping[int, int]) -> str:
    """A cut as `startingOffsets` takes it."""
    return Position(offsets).to_json()
