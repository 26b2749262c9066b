"""Sizes and shares of the volumes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VolumeSettings:
    """Values of one engine."""

    volume_bytes_max: int = 1 << 30
    """A volume that has reached it is closed; one larger object makes a longer volume."""
    inline_bytes_max: int = 4095
    """Objects up to this size are in the index as well, and are read from there."""
    piece_bytes: int = 256 << 10
    """Stretch of a blob with a checksum of its own: what a ranged read has to check at least."""
    group_bytes_max: int = 32 << 20
    """A group commit is closed at this size; one larger object is a group of its own."""
    group_records_max: int = 1024
    queued_bytes_max: int = 128 << 20
    """Bytes of puts that wait or are under way; more wait outside."""
    compaction_live_share_max: float = 0.6
    """A closed volume is compacted when less than this share of its bytes is live."""
    compaction_bytes_per_second: int = 64 << 20
    """The background compactor reads and writes no faster."""
    multipart_part_bytes_min: int = 5 << 20
