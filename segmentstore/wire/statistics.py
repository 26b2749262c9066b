"""What the server has done, for `/metrics`."""

from dataclasses import dataclass


@dataclass(slots=True)
class WireCounters:
    """Counts since the start; fed by the connections."""

    connections_accepted: int = 0
    connections_refused: int = 0
    connections_failed: int = 0
    """Closed by us: a protocol error, or an append whose outcome is unknown."""
    appends: int = 0
    append_bytes: int = 0
    acknowledgements: int = 0
    """DataAppended frames; one may stand for many appends."""
    appends_refused: int = 0
    reads: int = 0
    read_bytes: int = 0
    requests: int = 0
    """Everything else."""
    requests_refused: int = 0


@dataclass(frozen=True, slots=True)
class WireStatistics:
    """A snapshot."""

    connections: int
    connections_accepted: int
    connections_refused: int
    connections_failed: int
    unacked_bytes: int
    waiting_reads: int
    pinned_segments: int
    pinned_tables: int
    appends: int
    append_bytes: int
    acknowledgements: int
    appends_refused: int
    reads: int
    read_bytes: int
    requests: int
    requests_refused: int
