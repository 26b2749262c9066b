"""The storage writer's numbers, for `/health` and `/metrics`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WriterStatistics:
    """A snapshot for `/health` and `/metrics`. Counters grow from the start of the writer."""

    state: str
    """"ok", "unavailable" or "full": Tier 2 as last seen."""
    last_error: str
    failures: int
    failures_in_a_row: int
    consumed_up_to: int
    published_up_to: int
    """Everything at or below it is in Tier 2."""
    acknowledged_up_to: int
    pending_segments: int
    pending_items: int
    pending_bytes: int
    oldest_pending_seconds: float
    publications: int
    published_segments: int
    published_bytes: int
    compared_bytes: int
    """Replayed bytes that were found equal to Tier 2's."""
