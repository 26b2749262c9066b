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
    index_buffer_rows: int = 8000
    index_buffer_bytes: int = 8 << 20
    """Rows that the index holds in memory before its database gets them: what a start after a kill reads again."""
    index_delay_seconds: float = 0.25
    """After so long the database has them in any case: what reads it beside the service is hardly further behind."""
    reserve_bytes: int = 4 << 20
    """Held by a file that is given up when the disk is full, so that deletes have room for their tombstones."""
    compaction_reserve_bytes: int = 12 << 20
    """Held likewise, and given up for the copies of a compaction on a full disk."""
    compaction_live_share_max: float = 0.6
    """A closed volume is compacted when less than this share of its bytes is live."""
    compaction_small_share: float = 0.25
    """A closed volume below this share of `volume_bytes_max` is small."""
    compaction_small_count: int = 8
    """So many small volumes are joined."""
    compaction_bytes_per_second: int = 64 << 20
    """The background compactor reads and writes no faster."""
    compaction_busy_share_max: float = 0.5
    """The background compactor works no larger share of the time: small objects cost by their number, not by their
    bytes, and tasks that append need the interpreter too."""
    compaction_busy_share_min: float = 0.3
    """The share to which it goes down while the loop is late."""
    compaction_garbage_share_max: float = 0.75
    """Of the bytes of all volumes: when compaction could give back more, it goes on as fast as ever."""
    compaction_interval_seconds: float = 30.0
    """From a change to the look whether there is something to compact, and between two such looks."""
    compaction_batch_bytes: int = 64 << 20
    """So much is copied before it is synced, verified and published."""
    scrub_bytes_per_second: int = 1 << 20
    """Of volumes and index, read again to prove them: at most so many. 0: never."""
    scrub_pass_seconds: float = 7 * 24 * 3600.0
    """From the end of one pass over everything to the next."""
    scrub_delay_seconds: float = 600.0
    """From the start to the first piece."""
    multipart_memory_bytes_max: int = 32 << 20
    """A completed upload up to this size joins the queue like a put; a larger one is streamed to its own volume."""
    multipart_uploads_max: int = 10_000
    """Uploads that are begun and not completed."""
    multipart_seconds_max: float = 7 * 24 * 3600.0
    """An upload that was begun so long ago is given up, when the next one begins or the engine is opened."""
