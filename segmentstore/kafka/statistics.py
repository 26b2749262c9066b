"""Counters that every file of this package feeds, and their snapshot."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(slots=True, kw_only=True)
class KafkaCounters:
    """Since the start of the process."""

    connections_accepted: int = 0
    connections_refused: int = 0
    connections_malformed: int = 0
    """Closed because of bytes that are no request of a spoken version."""
    connections_idle: int = 0
    """Closed because nothing was heard of their clients."""
    requests: int = 0
    produced_batches: int = 0
    produced_bytes: int = 0
    produce_refusals: int = 0
    fetches: int = 0
    fetched_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class KafkaStatistics(KafkaCounters):
    """As of now."""

    connections: int
    waiting_bytes: int
    """Of requests that are not answered yet."""
    fetch_session_partitions: int
    """That the sessions of all consumers remember."""

    def metrics(self) -> Mapping[str, float]:
        """Names as Prometheus has them; counters end in _total."""
        gauges = ("connections", "waiting_bytes", "fetch_session_partitions")
        return {
            name if name in gauges else f"{name}_total": float(value)
            for name, value in asdict(self).items()
        }
