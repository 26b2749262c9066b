"""Values that a user may tune in watermarks."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkSettings:
    """Times in seconds."""

    interval_seconds: float = 10.0
    """Between two looks at the marks of all streams whose writers note times."""
    silent_seconds_default: float = 120.0
    """A writer that notes no later time for so long is no longer waited for, unless its stream says otherwise."""
    writers_per_stream_max: int = 10_000
    """Writers of one stream whose marks are kept; a further one is refused."""
    noted_later_max: int = 10_000
    """Times of committed transactions that wait to be recorded; further ones are dropped."""
    watermarks_kept: int = 1_000
    """Watermarks in a mark segment; it is truncated once there are twice as many."""
    read_bytes: int = 64 << 10
    """Read at once from a mark segment."""
