"""Values that a user may tune in retention."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """Times in seconds."""

    interval_seconds: float = 300.0
    """Between two cuts of a stream, and so the grain of what is kept."""
    cuts_per_stream_max: int = 256
    """Above it, every second of the older half is dropped: old cuts get coarser."""
    cuts_bytes_max: int = 512 << 10
    """As above, for the bytes of all cuts of one stream."""
    clock_difference_seconds_max: float = 5.0
    """Wall and loop clock may drift apart by so much between two looks; more stops deletion by age."""
    clock_settle_seconds: float = 600.0
    """After so long without a further jump, or since the start, the clocks are trusted."""
    clock_look_seconds: float = 1.0
