"""Values that tune one container's Tier 2. Every one of them is a bound or a size at which something begins."""

from dataclasses import dataclass

from tier2.format.chunk_format import Compression

_KIB = 1 << 10
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """Limits of chunks, SSTs, caches and garbage. Bytes unless the name says otherwise."""

    compression: Compression = Compression.LZ4

    chunk_bytes_max: int = 64 * _MIB
    """Uncompressed bytes of one chunk. Only a run of appends that alone is longer makes a longer one."""
    solo_chunk_bytes_min: int = 4 * _MIB
    """A stretch at least this long becomes an object of its own; shorter ones share packed objects."""
    pack_bytes_max: int = 64 * _MIB
    """Uncompressed bytes that go into one packed object."""
    pack_chunks_max: int = 16_384
    """Chunk images in one packed object: bounds the scan that asks what still refers to it."""
    upload_count_max: int = 4
    """Objects being encoded or uploaded at once; memory of a publication is about this many chunks."""
    put_attempts_max: int = 3
    """Puts of one immutable object, same key and same bytes, before a publication fails."""

    repack_live_share_max: float = 0.25
    """A packed object of which no larger share is alive is copied, so that the rest becomes free."""

    compaction_chunk_bytes: int = 64 * _MIB
    """Uncompressed bytes of a chunk that small neighbours are joined into. A longer one is never joined."""
    compaction_chunks_min: int = 8
    """Neighbours that are worth joining while their segment is being appended to."""
    compaction_growth_min: float = 4.0
    """A joined chunk has at least this many times the bytes of its longest part: a byte is copied a few times only."""
    compaction_step_bytes: int = 64 * _MIB
    """Uncompressed bytes joined in one step, beyond a first window: bounds its memory, some three times as much."""
    compaction_step_segments: int = 512
    compaction_bytes_per_second: int = 16 * _MIB
    """Uncompressed bytes joined per second on average; 0 turns compaction off. Loop time."""
    compaction_busy_share_max: float = 0.5
    """Of the time of a step that it works; the rest is others'."""
    compaction_busy_share_min: float = 0.25
    """The same while the loop is late: publications wait for the end of a step."""
    compaction_candidates_max: int = 65_536
    """Segments remembered that grew lately; beyond it the longest unchanged are forgotten until the next claim."""
    cold_seconds: float = 600.0
    """A segment to which nothing was appended for this long is joined as far as it goes, once. Loop time."""
    cold_compression: Compression = Compression.LZ4
    """Of chunks that are joined or encoded again when their segment is cold."""
    scrub_bytes_per_second: int = 0
    """Stored bytes of chunks that are read again to prove them; 0: never. Loop time."""
    scrub_pass_seconds: float = 7 * 24 * 3600.0
    """Between the end of one pass over all chunks and the beginning of the next."""
    proposal_bytes_max: int = 1024 * _MIB
    """Uncompressed bytes of one swap that a compactor beside the owner may propose."""
    proposal_keys_max: int = 1_024
    """Object keys given out to compactors beside the owner and not yet used."""
    proposal_key_seconds: float = 6 * 3600.0
    """After which a key that was given out and not used may be given up: its compactor has died. Loop time."""

    claim_seconds_max: float = 10.0
    """Within which a claim has an answer, or Tier 2 counts as one that gives none: a start waits for it."""

    sst_block_bytes: int = 32 * _KIB
    sst_part_bytes: int = 8 * _MIB
    """Uncompressed bytes after which an SST goes on in another object."""
    sst_tier_bytes: int = 256 * _KIB
    """Stored bytes of an SST below which it belongs to the lowest tier."""
    sst_fanout: int = 6
    """Neighbouring SSTs of one tier that are merged into one of the next."""
    sst_count_max: int = 48
    """SSTs under a manifest at which publish() merges before it adds another."""
    merge_read_bytes: int = 512 * _KIB
    """Read from each input of a merge at a time."""

    sst_cache_bytes: int = 48 * _MIB
    """Decoded blocks, indexes and filters of SSTs."""
    record_cache_bytes: int = 24 * _MIB
    """Encoded records of segments published or looked up lately."""
    chunk_index_cache_bytes: int = 16 * _MIB
    """Parsed indexes of chunks, and layout windows."""
    whole_chunk_read_bytes_max: int = 512 * _KIB
    """A chunk image up to this size is fetched whole, with its index, in one request."""

    garbage_grace_seconds: float = 600.0
    """How long dropped objects stay after this process first saw their record. Loop time."""
    garbage_batch_max: int = 1_024
    """Objects deleted in one collection."""
    garbage_watched_max: int = 16_384
    """Garbage records remembered with the time since when they are known: as many objects go in one grace at most."""
