"""What an operator may turn in the controller, by component."""

from dataclasses import dataclass, field

from segmentstore.runtime.backoff import Backoff


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Limits and pauses of streams and scopes."""

    segments_per_stream_max: int = 1000
    """Active segments of one stream."""
    tags_per_stream_max: int = 128
    tag_length_max: int = 256
    names_per_page: int = 100
    """Names in one page of a listing."""
    segment_name_length_max: int = 512
    """What the store accepts as a segment's name; scope and stream together have to leave room for the rest."""
    waiters_per_stream_max: int = 1000
    """Requests that wait for one stream; further ones are told to come back."""
    segment_steps_at_once_max: int = 32
    """Segments of one stream that are created, sealed or deleted side by side."""
    records_per_batch_max: int = 500
    """Records of a deleted stream that are removed in one step."""
    resume_pause_seconds: float = 0.1
    """First pause before an operation that failed is tried again; doubles up to the maximum."""
    resume_pause_seconds_max: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """Of transactions; times in seconds unless the name says milliseconds."""

    lease_ms_min: int = 10_000
    lease_ms_max: int = 600_000
    """Also what an open transaction has from a controller's start on, until its owner's next ping."""
    execution_seconds_max: float = 86_400.0
    """A transaction older than this cannot be pinged any more, so its lease runs out."""
    stage_lease_ms_max: int = 604_800_000
    """A stage may be committed days after it was written, by a job that takes so long."""
    stages_per_stream_max: int = 4_000
    """As `open_per_stream_max`, for the begin of a stage."""
    application_id_bytes_max: int = 256
    fences_per_stream_max: int = 20_000
    """Applications whose last version one stream remembers. Above it: refused."""
    open_per_stream_max: int = 1_000
    """Transactions of one stream that are open, committing or aborting. Above it: retry later."""
    reserved_per_stream_max: int = 64
    """Transactions of one stream that are written down before a caller begins them. 0: none."""
    reserve_within_seconds: float = 10.0
    """Where a transaction begins so soon behind the one before, the next ones are written down ahead."""
    reserved_seconds: float = 60.0
    """After so long, one that no caller began is removed by the next sweep."""
    completed_per_stream_max: int = 1_000
    """Finished transactions that one stream remembers; older ones are forgotten first."""
    completed_seconds: float = 3_600.0
    """For how long a finished transaction is remembered, at least counted from the controller's start."""
    completed_sweep_seconds: float = 60.0
    """Between two passes that forget finished transactions."""
    forgotten_per_batch_max: int = 500
    """Finished transactions of one stream that leave the table in one step."""
    aborts_at_once_max: int = 64
    """Transactions whose abort is being written at the same time, of all that end together."""
    listed_max: int = 500
    """Finished transactions in one answer, newest first."""
    commits_together_max: int = 64
    """Transactions of one stream merged while it is kept from scaling."""
    forget_seconds: float = 1.0
    """For so long segments remember merged transactions: they forget several at once, and not just when the client
    begins its next one."""
    forget_together_max: int = 64
    """Merged transactions of one stream that its segments remember. At it: they forget them at once."""
    streams_together_max: int = 64
    """Streams whose transactions are being finished at the same time."""
    retry_seconds_min: float = 0.05
    retry_seconds_max: float = 5.0
    """Between two attempts to finish a transaction while the store cannot."""
    load_page_entries: int = 1_000
    """Records read at once when a controller starts."""

    def backoff(self) -> Backoff:
        """Pauses of one sequence of attempts."""
        return Backoff(seconds_first=self.retry_seconds_min, seconds_max=self.retry_seconds_max)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderGroupSettings:
    """Bounds of reader groups."""

    streams_per_group_max: int = 1_000
    waiters_per_group_max: int = 100
    """Requests that wait to change one group."""
    names_per_read: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValueTableSettings:
    """Bounds of key-value tables."""

    partitions_max: int = 256
    """Segments of one table; they are created and deleted at the same time."""
    listed_per_page: int = 100
    waiters_per_table_max: int = 100
    """Requests that wait to create or delete one table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """Of retention; times in seconds."""

    interval_seconds: float = 300.0
    """Between two cuts of a stream, and so the grain of what is kept."""
    cuts_per_stream_max: int = 256
    """Above it, every second of the older half is dropped: old cuts get coarser."""
    cuts_bytes_max: int = 512 << 10
    """As above, for the bytes of all cuts of one stream."""
    clock_difference_seconds_max: float = 5.0
    """Wall and loop clock may drift apart by so much between two looks; more stops deletion by age."""
    clock_settle_seconds: float = 600.0
    """After so long without a further jump, or since the start, the clocks are trusted."""
    clock_look_seconds: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoScaleSettings:
    """Of automatic scaling; times in seconds."""

    interval_seconds: float = 10.0
    """Between two looks at the lengths of all segments of streams that scale."""
    windows_seconds: tuple[float, ...] = (120.0, 300.0, 600.0, 1200.0)
    """Over which rates are averaged, ascending; the last one decides what is cold."""
    hot_factors: tuple[float, ...] = (5.0, 2.0, 1.0)
    """How far above the target a rate must be to split, for each window but the last."""
    cool_down_seconds: float = 120.0
    """Between two automatic scales of one stream."""
    streams_max: int = 100_000
    """Streams watched at once; further ones are not scaled."""
    refresh_seconds: float = 60.0
    """Between two passes over all streams that read their policies."""

    def __post_init__(self) -> None:
        assert len(self.hot_factors) == len(self.windows_seconds) - 1, (
            f"a factor for each window but the last factors={self.hot_factors} windows={self.windows_seconds}"
        )
        assert list(self.windows_seconds) == sorted(self.windows_seconds), (
            f"windows are not ascending windows={self.windows_seconds}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkSettings:
    """Of watermarks; times in seconds."""

    interval_seconds: float = 10.0
    """Between two looks at the marks of all streams whose writers note times."""
    silent_seconds_default: float = 120.0
    """A writer that notes no later time for so long is no longer waited for, unless its stream says otherwise."""
    writers_per_stream_max: int = 10_000
    """Writers of one stream whose marks are kept; a further one is refused."""
    noted_later_max: int = 10_000
    """Times of committed transactions that wait to be recorded; further ones are dropped."""
    watermarks_kept: int = 1_000
    """Watermarks in a mark segment; it is truncated once there are twice as many."""
    read_bytes: int = 64 << 10
    """Read at once from a mark segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransientSegmentSettings:
    """Of segments in which writers collect large events; times in seconds."""

    keep_seconds: float = 86_400.0
    """One without a write for so long is taken for abandoned. A large event is collected in seconds."""
    interval_seconds: float = 3_600.0
    """Between two passes over the names of all segments."""
    segments_per_read: int = 500
    pause_seconds: float = 0.2
    """Between two pages of a pass: a million segments take seven minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """The settings of every component."""

    streams: StreamSettings = field(default_factory=StreamSettings)
    transactions: TransactionSettings = field(default_factory=TransactionSettings)
    reader_groups: ReaderGroupSettings = field(default_factory=ReaderGroupSettings)
    key_value_tables: KeyValueTableSettings = field(default_factory=KeyValueTableSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    auto_scale: AutoScaleSettings = field(default_factory=AutoScaleSettings)
    watermarks: WatermarkSettings = field(default_factory=WatermarkSettings)
    transient_segments: TransientSegmentSettings = field(default_factory=TransientSegmentSettings)
