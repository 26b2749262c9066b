"""The newest rows of the index in memory, over a database that gets them by the thousand.

The volumes say everything, so a batch need not be in the database before its callers are answered: the sync that its
transaction costs would be a second one for every group. What is not yet there is read from memory, and after a kill
from the tails of the volumes (tail_replay), of which it is a bounded part.

Invariants:

- Batches reach the database in order, several as one: what it holds is the state after some batch (D1, D2).
- Reads see every batch applied before them; a scan sees one state (D3).
- `apply` raises before anything of its batch is visible, or not at all.
- One thread applies and syncs at a time; any number may read beside it. So dictionaries are replaced or updated in one
  step each, in an order in which a reader misses nothing.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from segmentstore.contracts.errors import StorageError
from tier2.volumes.index_database import IndexDatabase, NewRow, Row

_SCANS_MAX = 100


@dataclass(frozen=True, slots=True)
class RowsAhead:
    """What the database had of some rows, before the one who applies gets to them."""

    flushes: int
    rows: Mapping[bytes, bytes | None]


class BufferedIndex:
    """An IndexDatabase over another one."""

    def __init__(self, database: IndexDatabase, *, rows_max: int, bytes_max: int) -> None:
        self._database = database
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._fresh: dict[bytes, bytes | None] = {}
        self._leaving: dict[bytes, bytes | None] = {}
        """On its way into the database, or left over from a way that failed."""
        self._fresh_bytes = 0
        self._flushes = 0

    def get(self, key: bytes) -> bytes | None:
        # Newest first: what leaves one place is in the next one before.
        for rows in (self._fresh, self._leaving):
            if key in rows:
                return rows.get(key)
        return self._database.get(key)

    @property
    def has_recent(self) -> bool:
        """Whether memory has anything that the database may not have yet."""
        return bool(self._fresh or self._leaving)

    def recent(self, key: bytes) -> tuple[bytes | None] | None:
        """What `get` gives, if memory has what was last said of a key; otherwise None. Never blocks."""
        for rows in (self._fresh, self._leaving):
            if key in rows:
                return (rows[key],)
        return None

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found: dict[bytes, bytes | None] = {}
        # Newest first, and the database last, as in `get`.
        for rows in (self._fresh, self._leaving):
            if rows.keys().isdisjoint(keys):
                continue
            for key in keys:
                if key in rows and key not in found:
                    found[key] = rows[key]
        if not found:
            return self._database.get_many(keys)
        missing = [key for key in keys if key not in found]
        found.update(zip(missing, self._database.get_many(missing), strict=True))
        return [found[key] for key in keys]

    def read_ahead(self, keys: Sequence[bytes]) -> RowsAhead:
        """To be read before they are wanted, beside whoever applies: `still_true` says what has become of them."""
        flushes = self._flushes  # before the database is asked
        return RowsAhead(flushes, dict(zip(keys, self._database.get_many(keys), strict=True)))

    def still_true(self, ahead: RowsAhead) -> Mapping[bytes, bytes | None]:
        """Those rows as they are now, or nothing. For the thread that applies.

        What was applied since is in memory, unless it went into the database meanwhile: then nothing is known.
        """
        if ahead.flushes != self._flushes:
            return {}
        rows = ahead.rows
        for newer in (self._leaving, self._fresh):
            if not newer.keys().isdisjoint(rows):
                rows = {**rows, **{key: newer[key] for key in rows if key in newer}}
        return rows

    def scan(
        self, first: bytes, before: bytes, limit: int, *, reverse: bool = False
    ) -> Sequence[Row]:
        for _ in range(_SCANS_MAX):
            flushes = self._flushes
            newest, older = dict(self._fresh), dict(self._leaving)
            changed = {
                key: value for key, value in {**older, **newest}.items() if first <= key < before
            }
            stored = self._database.scan(
                first, before, limit + len(changed) if limit > 0 else 0, reverse=reverse
            )
            if flushes == self._flushes:
                return _merged(stored, changed, limit, reverse=reverse)
        raise StorageError("the index changes faster than it can be read")

    def apply(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        batch = dict(changes)
        if (
            len(self._fresh) >= self._rows_max
            or self._fresh_bytes >= self._bytes_max
            or self._leaving
        ):
            self.flush()
        self._fresh.update(batch)
        self._fresh_bytes += sum(map(len, batch)) + sum(map(len, filter(None, batch.values())))

    def add(self, rows: Sequence[NewRow]) -> Sequence[NewRow]:
        self.flush()
        return self._database.add(rows)

    def load(self) -> None:
        self.flush()
        self._database.load()

    def loaded(self) -> None:
        self._database.loaded()

    def sync(self) -> None:
        self.flush()
        self._database.sync()

    def bytes_on_disk(self) -> int:
        return self._database.bytes_on_disk()

    def close(self) -> None:
        """What was not synced is in the volumes."""
        self._database.close()

    def flush(self) -> None:
        """Everything is in the database, for other processes to read. Raises OSError: it stays here, for the next time.

        The next time puts the same rows again, so it does not matter how far this one came.
        """
        rows = {**self._leaving, **self._fresh}
        if not rows:
            return
        self._leaving = rows
        self._fresh = {}
        self._fresh_bytes = 0
        self._database.apply(sorted(rows.items()))
        self._flushes += 1
        self._leaving = {}


def _merged(
    stored: Sequence[Row], changed: dict[bytes, bytes | None], limit: int, *, reverse: bool
) -> list[Row]:
    kept = [row for row in stored if row[0] not in changed]
    added = sorted(
        ((key, value) for key, value in changed.items() if value is not None), reverse=reverse
    )
    merged = heapq.merge(kept, added, key=lambda row: row[0], reverse=reverse)
    return [row for row, _ in zip(merged, range(limit), strict=False)]
