"""What the server has done, for `/metrics`."""

from dataclasses import asdict, dataclass, fields


@dataclass(slots=True)
class WireCounters:
    """Counts since the start; fed by the connections."""

    connections_accepted: int = 0
    connections_refused: int = 0
    connections_failed: int = 0
    """Closed by us, for whatever reason; mostly a protocol error, or an append whose outcome is unknown."""
    connections_given_up: int = 0
    """Of these: stood still with what others waited for, while all connections together held too much."""
    connections_silent: int = 0
    """Of these: sent a part of a frame, and then nothing."""
    bound_reached: int = 0
    """How often all connections together came to hold too much (`memory_bound.py`)."""
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


@dataclass(slots=True, kw_only=True)
class WireStatistics(WireCounters):
    """A snapshot: the counts, and what there is now."""

    connections: int
    unacknowledged_bytes: int
    held_bytes: int
    """Received and not done, or said and not taken, by all connections."""
    waiting_reads: int
    pinned_segments: int
    pinned_tables: int

    def metrics(self) -> dict[str, float]:
        """By name; the names of counts end in `_total`."""
        return {
            f"{name}_total" if name in _COUNTERS else name: number
            for name, number in asdict(self).items()
        }


_COUNTERS = {field.name for field in fields(WireCounters)}
