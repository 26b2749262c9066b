"""Values that a user may tune in reader groups."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderGroupSettings:
    """Bounds."""

    streams_per_group_max: int = 1_000
    waiters_per_group_max: int = 100
    """Requests that wait to change one group."""
    names_per_read: int = 100
