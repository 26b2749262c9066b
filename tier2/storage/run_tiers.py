"""Which runs to merge next. Pure.

Runs are grouped in tiers by size: each tier holds runs up to `run_fanout` times as long as the one below. As soon as
`run_fanout` neighbours share a tier they become one run of the next. So n publications leave O(fanout * log n) runs,
and an entry is rewritten O(log n) times.

Only neighbours in age are merged, since the newest of them decides; a run counts at least as much as any newer one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tier2.storage.root import Run, stored_bytes
from tier2.storage.settings import StorageSettings


@dataclass(frozen=True, slots=True)
class MergeChoice:
    """Runs [newest, oldest] of a root, by index."""

    newest: int
    oldest: int

    def of(self, runs: Sequence[Run]) -> tuple[Run, ...]:
        return tuple(runs[self.newest : self.oldest + 1])


def tier_of(size: int, settings: StorageSettings) -> int:
    """The tier of a run that has `size` bytes in the store. O(log size)."""
    tier, limit = 0, settings.run_tier_bytes
    while size >= limit:
        tier += 1
        limit *= settings.run_fanout
    return tier


def choose_merge(runs: Sequence[Run], settings: StorageSettings) -> MergeChoice | None:
    """The lowest group that is due, None if there is none. Runs are listed newest first. O(runs)."""
    tier = start = 0
    for at, run in enumerate(runs):
        own = tier_of(stored_bytes(run), settings)
        if own <= tier:
            continue
        if at - start >= settings.run_fanout:
            return MergeChoice(start, at - 1)
        tier, start = own, at
    if len(runs) - start >= settings.run_fanout:
        return MergeChoice(start, len(runs) - 1)
    return None
