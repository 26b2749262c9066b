"""What a container's Tier 2 counted since the process started: written all over this room, read by statistics()."""

from dataclasses import dataclass


@dataclass(slots=True)
class StorageCounters:
    """Only ever grow."""

    puts: int = 0
    gets: int = 0
    put_bytes: int = 0
    get_bytes: int = 0
    stored_bytes_before_compression: int = 0
    stored_bytes_after_compression: int = 0
    checksum_failures: int = 0
