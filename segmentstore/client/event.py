"""What a reader gives its user."""

from dataclasses import dataclass


@dataclass(slots=True)
class Event:
    """One event and where it lies; offsets in bytes of its segment, headers included."""

    data: bytes
    stream: str
    """`scope/stream`."""
    segment_id: int
    offset: int
    next_offset: int
