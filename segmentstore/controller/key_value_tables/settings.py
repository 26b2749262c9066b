"""Values that a user may tune in key-value tables."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValueTableSettings:
    """Bounds."""

    partitions_max: int = 256
    """Segments of one table; they are created and deleted at the same time."""
    listed_per_page: int = 100
    waiters_per_table_max: int = 100
    """Requests that wait to create or delete one table."""
