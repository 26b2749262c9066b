"""Values that a user may tune in transactions."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """Times in seconds unless the name says milliseconds."""

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
    """Transactions of one stream that are written down before anybody begins them. 0: none."""
    reserve_within_seconds: float = 10.0
    """Where a transaction begins so soon behind the one before, the next ones are written down ahead."""
    reserved_seconds: float = 60.0
    """After so long, one that nobody began is removed by the next sweep."""
    completed_per_stream_max: int = 1_000
    """Finished transactions that one stream remembers; older ones are forgotten first."""
    completed_seconds: float = 3_600.0
    """For how long a finished transaction is remembered, at least counted from the controller's start."""
    completed_sweep_seconds: float = 60.0
    """Between two passes that forget finished transactions."""
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
