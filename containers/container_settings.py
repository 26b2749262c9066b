"""Every setting of one container: one dataclass for each part that reads them, in the order in which data flows.

`ContainerSettings` holds them all.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

_KIBIBYTE = 1024
_MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SegmentMapperSettings:
    """Bounds of the active set."""

    active_segments_max: int = 20_000
    eviction_share: float = 0.1
    """Part of the active set that one eviction round frees."""


@dataclass(frozen=True, slots=True)
class FramePipelineSettings:
    """Bounds between acceptance and commit."""

    frame_operations_max: int = 2048
    """Most operations of one frame: its commit is one stretch."""
    frames_in_flight_max: int = 16
    slice_seconds: float = 0.001
    queued_bytes_max: int = 8 * 1024 * 1024
    """Appends accepted and not yet in a frame; beyond it they are queued. With two more appends of the largest size
    this has to fit into the reserve of the log."""
    small_bytes: int = 64 * 1024
    small_operations: int = 256
    """Below both, operations wait for a frame in flight, and share the next one, if the log has as many as it writes at
    once: no time is lost then, and a frame costs as much as ten small operations."""


@dataclass(frozen=True, slots=True)
class OperationProcessorSettings:
    """Bounds of the pipeline between acceptance and Tier 1."""

    append_bytes_max: int = 8 * 1024 * 1024
    table_batch_bytes_max: int = 36 * 1024 * 1024
    """Records of one batch of a table: its keys and values, and 17 bytes each."""
    waiting_bytes_max: int = 64 * 1024 * 1024
    """Bytes of requests that wait to be accepted; beyond them appends fail as unavailable."""
    admitted_requests_max: int = 256
    """Waiting requests looked at between two turns of the loop."""
    admitted_bytes_max: int = 512 * _KIBIBYTE
    """Bytes accepted of them in one turn, and one request more."""
    pipeline: FramePipelineSettings = field(default_factory=FramePipelineSettings)


@dataclass(frozen=True, slots=True)
class ThrottlerSettings:
    """Thresholds from which writers wait. Fractions are of the configured budget."""

    cache_begin_fraction: float = 0.55
    cache_stop_fraction: float = 0.90
    log_bytes_begin: int = 4 * 1024 * 1024 * 1024
    log_bytes_stop: int = 8 * 1024 * 1024 * 1024
    items_begin: int = 400_000
    items_stop: int = 800_000
    delay_seconds_max: float = 0.1


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """Bounds of the log between two checkpoints."""

    bytes_min: int = 64 * 1024 * 1024
    operations_max: int = 500_000
    frames_min: int = 1_000
    """A writer that waits for each append makes a frame of each, and a recovery asks a bookie for each."""
    bytes_for_a_frame: int = 1024


@dataclass(frozen=True, slots=True)
class AttributeMemorySettings:
    """The bounds of one container's attributes, and how they are kept."""

    bytes_max: int = 32 * 1024 * 1024
    """Of extended attributes: keys, values and what the dictionaries cost."""
    core_bytes_max: int = 64 * 1024 * 1024
    """The same of core attributes, which are in memory with their segments: beyond it idle segments are evicted."""
    throttle_factor: float = 4.0
    """Writers are stopped before attributes take this many times a bound: only un-published ones can, and those of
    segments that are in use."""
    look_seconds: float = 0.2
    slice_count: int = 1000
    """Values looked at between two turns of the loop: well under a millisecond."""


@dataclass(frozen=True, slots=True)
class AttributeFetchSettings:
    """Bounds of the requests for attributes that are only in Tier 2."""

    requests_max: int = 8
    """Segments asked for at a time."""
    keys_max: int = 4096
    """Keys of one request."""


@dataclass(frozen=True, slots=True)
class StorageFetchSettings:
    """Bounds of one container's reads from Tier 2."""

    fetches_max: int = 8
    """Reads of Tier 2 at a time."""
    fetch_bytes_max: int = 1024 * 1024
    """Bytes asked for at once; whole blocks come back, so a little more."""
    alignment_bytes: int = 64 * 1024
    """Fetches end on multiples of it, so that small reads in order do not become a fetch each."""
    read_ahead_bytes_max: int = 8 * 1024 * 1024
    """How far sequential readers are read ahead of."""
    ahead_fetch_bytes_max: int = 4 * 1024 * 1024
    """Bytes asked for at once ahead of a reader: a quarter as many ways to a thread and back."""
    sequences_max: int = 256
    """Sequential readers that are told apart."""
    marks_max: int = 8
    """The same in one segment, while they find everything in the cache."""


@dataclass(frozen=True, slots=True)
class ReadIndexSettings:
    """Bounds of one container's read index."""

    fetch: StorageFetchSettings = field(default_factory=StorageFetchSettings)
    waiters_max: int = 100_000
    """Readers that may wait at tails at a time; one more is refused."""
    discards_per_turn: int = 2_000
    """Blocks freed in one turn of the loop when a merge, truncation or deletion frees many."""


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """When the writer flushes, how much at once, and how it behaves when Tier 2 does not.

    The user's settings of that name, with their ranges, are in segmentstore/host/settings.py.
    """

    flush_bytes: int = 64 * _MEBIBYTE
    """A segment with this many pending bytes is flushed at once."""
    flush_interval_seconds: float = 10.0
    """A segment whose oldest pending item is this old is flushed, however small."""
    short_lived_factor: float = 3.0
    """A segment that says of itself that its bytes are soon truncated (SHORT_LIVED) may be so many times as old, and as
    large, though at most three times. What is truncated before it is flushed costs nothing."""
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
    segment_items_max: int = 4_096
    """Items of one segment in one publication, because all are folded in one turn of the loop; a merged source counts
    as eight and its own. The rest goes with the next one, at once."""
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


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """What to keep of every segment whose name begins with `prefix`; None does not limit."""

    prefix: str
    age_seconds: float | None = None
    """Blocks whose newest append is older are dropped."""
    bytes_max: int | None = None
    """Flushed bytes beyond this many, counted from the end, are dropped."""


def no_name(_name: str) -> bool:
    """Applies to no segment."""
    return False


@dataclass(frozen=True, slots=True)
class ExpirySettings:
    """Which rules there are, and how often they are looked at."""

    rules: tuple[RetentionRule, ...] = ()
    """The first one whose prefix fits decides."""
    exempt: Callable[[str], bool] = no_name
    """Says of a segment's name whether no rule applies to it, such as for what the servers keep for themselves."""
    interval_seconds: float = 60.0
    blocks_max: int = 4_096
    """Blocks of one segment that one look drops at most."""
    clock_difference_seconds_max: float = 60.0
    clock_settle_seconds: float = 3600.0


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """Values only; the parts' own docstrings say what they do."""

    processor: OperationProcessorSettings = field(default_factory=OperationProcessorSettings)
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    throttler: ThrottlerSettings = field(default_factory=ThrottlerSettings)
    read_index: ReadIndexSettings = field(default_factory=ReadIndexSettings)
    mapper: SegmentMapperSettings = field(default_factory=SegmentMapperSettings)
    writer: WriterSettings = field(default_factory=WriterSettings)
    attribute_memory: AttributeMemorySettings = field(default_factory=AttributeMemorySettings)
    attribute_fetches: AttributeFetchSettings = field(default_factory=AttributeFetchSettings)
    tables: TableSettings = field(default_factory=TableSettings)
    expiry: ExpirySettings = field(default_factory=ExpirySettings)
    claim_retry_seconds: float = 2.0
    """Between two attempts to claim a manifest that did not answer at start."""
    housekeeping_seconds: float = 0.5
    """Between two looks at the throttle and the active set while nothing else happens."""
