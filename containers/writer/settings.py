"""Settings of the storage writer."""

from dataclasses import dataclass

_MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """When the writer flushes, how much at once, and how it behaves when Tier 2 does not."""

    flush_bytes: int = 64 * _MEBIBYTE
    """A segment with this many pending bytes is flushed at once."""
    flush_age_seconds: float = 10.0
    """A segment whose oldest pending item is this old is flushed, however small (H14)."""
    prompt_age_seconds: float = 1.0
    """The same for a seal, merge, truncate or delete: soon, yet many of them share a publication."""
    look_again_seconds: float = 0.2
    """Pause after a round that could take nothing, unless something new comes."""
    publication_bytes_max: int = 256 * _MEBIBYTE
    """Bytes of one publication, unless a single item is larger. The rest goes with the next one."""
    frugal_bytes_max: int = _MEBIBYTE
    """The same in the round after Tier 2 was full and something was deleted or truncated."""
    publication_segments_max: int = 50_000
    """Segments of one publication. The rest goes with the next one."""
    merge_depth_max: int = 32
    """Sources merged into sources that may be pending at once; a deeper one is flushed by itself first."""
    read_items_max: int = 1000
    """Items taken from the log at once."""
    slice_count: int = 128
    """Items or segments handled between two turns of the event loop: one to two milliseconds' worth."""
    inline_check_bytes_max: int = 64 * 1024
    """Checksums of fewer bytes are computed on the loop, of more in the executor."""
    check_batch_bytes: int = 4 * _MEBIBYTE
    """Bytes checked by one job of the executor."""
    retry_seconds_first: float = 0.1
    """Pause after the first failure of Tier 2; it doubles with every further one."""
    retry_seconds_max: float = 10.0
    maintenance_publications: int = 16
    """Publications between two looks at garbage and maintenance while the writer is busy."""
    maintenance_seconds: float = 10.0
    """The same while it is idle."""
    remembered_records_max: int = 32_768
    """Published records kept in memory (about half a KiB each); others are read from Tier 2 when touched again."""
    load_records_max: int = 1000
    """Records asked of Tier 2 in one call."""
    compare_bytes: int = _MEBIBYTE
    """Bytes read at once when replayed bytes are compared with Tier 2's."""
