"""What a container's Tier 2 counted since the process started: written all over this room, read by statistics()."""

from dataclasses import asdict, dataclass

from segmentstore.contracts.storage import StorageStatistics


@dataclass(slots=True)
class StorageCounters:
    """Only ever grow. For their units see StorageStatistics."""

    puts: int = 0
    gets: int = 0
    put_bytes: int = 0
    get_bytes: int = 0
    stored_bytes_before_compression: int = 0
    stored_bytes_after_compression: int = 0
    checksum_failures: int = 0
    joined_chunks: int = 0
    joined_bytes: int = 0
    scrubbed_chunks: int = 0
    scrubbed_bytes: int = 0
    scrub_damages: int = 0
    scrub_repairs: int = 0
    scrub_passes: int = 0
    last_scrubbed_ms: int = 0

    def snapshot(
        self, *, root_version: int, run_count: int, garbage_objects: int
    ) -> StorageStatistics:
        return StorageStatistics(
            root_version=root_version,
            run_count=run_count,
            garbage_objects=garbage_objects,
            **asdict(self),
        )
