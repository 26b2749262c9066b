"""Settings of the table segments of one container."""

from dataclasses import dataclass

_KIBIBYTE = 1024


@dataclass(frozen=True, slots=True)
class TableSettings:
    """When tables are compacted, how fast, and how much is read at once."""

    utilisation_min: float = 0.75
    """A table with a smaller share of live bytes is compacted."""
    compact_bytes_min: int = 256 * _KIBIBYTE
    """Tables with fewer bytes are left alone."""
    compact_seconds: float = 1.0
    """Between two rounds over the active tables."""
    round_bytes_max: int = 4096 * _KIBIBYTE
    """Bytes at the head of one table that one round looks at."""
    slice_bytes: int = 64 * _KIBIBYTE
    """Bytes at the head whose live records go into one operation; one larger record goes alone."""
    known_count_max: int = 2_000
    """Tables with no more keys, all of them in memory, are compacted by their index, without reading what is dead.
    Looking at so many takes about a millisecond."""
    page_count_max: int = 10_000
    """Keys or entries of one page, whatever was asked for."""
    page_bytes_max: int = 1024 * _KIBIBYTE
    """Keys and values of one page, yet at least one entry."""
    scan_count: int = 1024
    """Keys asked of Tier 2 at once while iterating."""
    scan_bytes: int = 64 * _KIBIBYTE
    """Bytes of the segment read at once while looking for changes."""
    reads_at_once: int = 8
    """Entries of one request that are read from Tier 2 side by side."""
