"""How much of which segment goes into the next micro-batch. Pure.

Invariants:

- Every segment with something to read gets a share of at least 1, so none starves behind a large one. What a share of 1
  means is decided where events are known: at least one whole event.
- Beyond that the limit is divided in proportion to what waits; shares together exceed the limit only if there are more
  segments than it has units.
- Nobody gets more than waits for him, and what he does not need is divided among the others.
- The same input gives the same shares, whatever the order of the mapping.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

Key = TypeVar("Key", int, tuple[str, int])
"""A segment: its id, or its stream and its id."""


def fair_shares(waiting: Mapping[Key, int], limit: int) -> dict[Key, int]:
    """For each segment how many of its waiting units (bytes or events) may be read now; `limit` >= 1.

    Segments with nothing waiting are left out. O(n log n).
    """
    wanted = {key: waiting[key] for key in sorted(waiting) if waiting[key] > 0}
    total = sum(wanted.values())
    if total <= limit:
        return wanted
    # The first unit of everybody comes off the limit, the rest is divided by what then still waits.
    rest = max(0, limit - len(wanted))
    still_waiting = total - len(wanted)
    shares: dict[Key, int] = {}
    remainders: list[tuple[int, Key]] = []
    for key, amount in wanted.items():
        share, remainder = divmod(rest * (amount - 1), still_waiting) if still_waiting else (0, 0)
        shares[key] = 1 + share
        remainders.append((-remainder, key))
    left = rest - sum(share - 1 for share in shares.values())
    # The largest remainders get one more. They are above 0, so the exact share was not whole and one more still fits.
    for _, key in sorted(remainders)[:left]:
        shares[key] += 1
    return shares


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerSettings:
    """When a micro-batch is worth its cost."""

    bytes_min: int = 0
    """0: any byte is."""
    delay_seconds_max: float = 60.0
    """After so long a batch comes, however small."""


class TriggerDelay:
    """Holds small batches back until enough waits or enough time has passed."""

    def __init__(self, settings: TriggerSettings) -> None:
        self._settings = settings
        self._last: float | None = None

    def admits(self, waiting_bytes: int, *, now: float) -> bool:
        """Whether a batch comes now; `now` in seconds of a clock that never goes back.

        The first one always does: how long its bytes have waited before a restart nobody knows.
        """
        if waiting_bytes <= 0:
            return False
        settings = self._settings
        due = self._last is None or now - self._last >= settings.delay_seconds_max
        if not due and waiting_bytes < settings.bytes_min:
            return False
        self._last = now
        return True
