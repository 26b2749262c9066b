"""Which readers of a group run no more, as one of the others sees it by the beats in the group's state.

Invariants:

- A reader is dead when its beat was the same in all looks of `timeout_seconds`.
- From one look to the next two periods of the beat count at most. What is longer is time in which this process stood
  still, or the group's state could not be read: the others may have stood still, too, or could not write their beats.
- A verdict holds for the beat that was seen: if that has moved by the time of the change, the reader runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from segmentstore.client.reader_group_state import ReaderRecord

_PERIODS_MAX: Final = 2
"""Between two looks, which come with each period: a look that is a little late counts in full."""


@dataclass(frozen=True, slots=True)
class SeenReader:
    """A reader as it was seen."""

    reader_id: str
    incarnation: int
    beat: int

    def is_still_so(self, readers: Mapping[str, ReaderRecord]) -> bool:
        record = readers.get(self.reader_id)
        return record is not None and (record.incarnation, record.beat) == (
            self.incarnation,
            self.beat,
        )


class SilentReaders:
    """Looks of one reader at the others."""

    def __init__(self, *, period_seconds: float, timeout_seconds: float) -> None:
        self._step_max = _PERIODS_MAX * period_seconds
        self._timeout_seconds = timeout_seconds
        self._silent: dict[SeenReader, float] = {}
        """For how long each is the same."""
        self._looked_at: float | None = None

    def look(self, others: Mapping[str, ReaderRecord], *, now: float) -> list[SeenReader]:
        """Those that are dead. `now` is a time of the loop. O(others)."""
        passed = 0.0 if self._looked_at is None else min(now - self._looked_at, self._step_max)
        self._looked_at = now
        seen = [SeenReader(name, each.incarnation, each.beat) for name, each in others.items()]
        self._silent = {
            each: self._silent[each] + passed if each in self._silent else 0.0 for each in seen
        }
        return [each for each in seen if self._silent[each] > self._timeout_seconds]
