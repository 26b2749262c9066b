"""The index of the volumes in memory, for tests and the simulation: an IndexDatabase that knows what a power cut takes.

It stands in the place of LMDB where a test is about the engine over it, and where the disk is simulated.
"""

from collections.abc import Iterable, Sequence
from random import Random

from sortedcontainers import SortedDict

from tier2.volumes.index_database import NewRow, Row, value_of


class MemoryIndex:
    """An IndexDatabase that forgets with the process, unless its owner keeps the object. `lose_unsynced`: a power cut.

    Not for several threads at once.

    Invariant: after a power cut the state is that of some batch boundary between the last sync and the last batch (D2);
    while it is loaded, any rows may be lost (D4).
    """

    def __init__(self) -> None:
        self._rows: SortedDict[bytes, bytes] = SortedDict()
        self._unsynced: list[list[tuple[bytes, bytes | None]]] = []
        """For each batch since the last sync, what undoes it."""
        self._loading = False

    def get(self, key: bytes) -> bytes | None:
        found: bytes | None = self._rows.get(key)
        return found

    def get_certain(self, key: bytes) -> bytes | None:
        return self.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._rows.get(key) for key in keys]

    def scan(self, first: bytes, before: bytes, limit: int) -> Sequence[Row]:
        rows: list[Row] = []
        for key in self._rows.irange(first, before, inclusive=(True, False)):
            if len(rows) >= limit:
                break
            rows.append((key, self._rows[key]))
        return rows

    def apply(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        changes = list(changes)
        undo: list[tuple[bytes, bytes | None]] = []
        for key, value in changes:
            undo.append((key, self._rows.get(key)))
            self._set(key, value)
        self._unsynced.append(undo)

    def add(self, rows: Sequence[NewRow]) -> Sequence[NewRow]:
        present = [row for row in rows if row[0] in self._rows]
        new = [row for row in rows if row[0] not in self._rows]
        self.apply([(row[0], bytes(value_of(row))) for row in new])
        return present

    def load(self) -> None:
        self._loading = True

    def loaded(self) -> None:
        """Not synced yet: what was loaded may still be lost in part."""

    def sync(self) -> None:
        self._unsynced.clear()
        self._loading = False

    def lose_unsynced(self, random: Random) -> None:
        """A power cut: some of the newest batches never happened."""
        kept = random.randint(0, len(self._unsynced))
        for undo in reversed(self._unsynced[kept:]):
            for key, value in reversed(undo):
                if not self._loading or random.random() < 0.5:
                    self._set(key, value)
        self._unsynced.clear()

    def fork(self) -> "MemoryIndex":
        """A copy that goes its own way, unsynced batches included."""
        twin = MemoryIndex()
        twin._rows = self._rows.copy()
        twin._unsynced = list(self._unsynced)
        twin._loading = self._loading
        return twin

    def close(self) -> None:
        """Nothing to release: the rows stay for the next open."""

    def _set(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._rows.pop(key, None)
        else:
            self._rows[key] = value
