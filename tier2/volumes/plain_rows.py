"""The rows of plain records on their way into an index that is made anew: by the ten thousand, in key order.

Invariants:

- The row of the highest number of a key stays, in whatever order they come (H69); of two with one number either may.
- Memory: `bytes_max` bytes that rows are made in (row_memory), and what Python needs for so many of them. Rows that
  come in about the order of their keys use a part of it, again and again: memory that the system has to give first
  costs as much as reading what it is filled with.
"""

from collections.abc import Callable
from operator import itemgetter
from typing import TypeAlias

from segmentstore.runtime.native import native_module
from tier2.volumes.index_database import IndexDatabase, NewRow
from tier2.volumes.index_rows import plain_row_sequence, plain_row_volume_and_length
from tier2.volumes.row_memory import RowMemory

_BATCH_ROWS = 2000
"""The database uses the pages of so many for the next batch again."""
_STEP_BYTES_MAX = 2 << 20
"""After so much more it is looked whether the rows follow those that are stored."""
_LOOKED_SHARE = 8
"""At one row in so many."""
_STRAYS_SHARE = 10
"""One of these in so many need not."""

Order: TypeAlias = Callable[[list[NewRow]], bool]
"""Sorts rows by their keys, those of one key as they came; whether any key is there twice."""


def native_order() -> Order | None:
    """None where it was not built, or is switched off."""
    module = native_module("tier2.volumes.native.row_order")
    found: Order | None = None if module is None else module.order
    return found


def order_in_python(rows: list[NewRow]) -> bool:
    """See Order."""
    rows.sort(key=itemgetter(0))
    return len({key for key, _ in rows}) < len(rows)


_ORDER = native_order() or order_in_python


class PlainRows:
    """Collects, sorts, stores."""

    def __init__(
        self, *, index: IndexDatabase, bytes_max: int, superseded: Callable[[int, int], None]
    ) -> None:
        """`superseded` is told the volume and the length of the record of each row that does not stay."""
        self._index = index
        self._memory = RowMemory(bytes_max)
        self._superseded = superseded
        self._rows: list[NewRow] = []
        self._highest_stored = b""
        self._highest_looked_at = b""
        """Of those that are not stored."""
        self._step = min(_STEP_BYTES_MAX, bytes_max // 8)
        self._look_at = self._step
        self._seen = self._looked = self._strays = 0
        """Rows that were seen, those of them that were looked at, and those of these that do not follow."""

    def memory_for(self, length: int) -> memoryview:
        """Where a piece of a volume is read to, to make rows in: good until the next call unless they are taken.

        At most `bytes_max` bytes. Raises OSError.
        """
        used = self._memory.used
        if not self._memory.has_room(length) or (used >= self._look_at and self._follow()):
            self.store()
        return self._memory.next(length)

    def take(self, rows: list[NewRow], length: int) -> None:
        """Each key any number of times; they lie in the first `length` bytes of the newest memory."""
        self._rows += rows
        self._memory.keep(length)

    def store(self) -> None:
        """Everything that was taken is in the index. Raises OSError."""
        rows, self._rows = self._rows, []
        repeated = _ORDER(rows)
        if rows:
            self._highest_stored = max(self._highest_stored, rows[-1][0])
        if repeated:
            rows = self._newest_of_each(rows)
        for first in range(0, len(rows), _BATCH_ROWS):
            self._store(rows[first : first + _BATCH_ROWS])
        self._memory.clear()
        self._highest_looked_at = b""
        self._look_at = self._step
        self._seen = self._looked = self._strays = 0

    def _follow(self) -> bool:
        """Nearly all rows come behind those that are stored: more of them would not be stored any better.

        Where nothing is stored yet, behind those that came before them. Rows in no order at all are so collected
        before the first of them are stored: an index that is filled in order takes half as long.
        """
        self._look_at += self._step
        newest = [key for key, _ in self._rows[self._seen :: _LOOKED_SHARE]]
        self._seen = len(self._rows)
        highest = self._highest_stored or self._highest_looked_at
        self._highest_looked_at = max([self._highest_looked_at, *newest])
        if not highest:
            return False
        self._looked += len(newest)
        self._strays += sum(key <= highest for key in newest)
        return self._strays * _STRAYS_SHARE <= self._looked

    def _store(self, rows: list[NewRow]) -> None:
        newer: list[tuple[bytes, bytes | None]] = []
        for key, row in self._index.add(rows):
            stored = self._index.get(key)
            assert stored is not None, f"a row is there and is not {key=!r}"
            lost = row
            if plain_row_sequence(row) > plain_row_sequence(stored):
                newer.append((key, bytes(row)))
                lost = stored
            self._superseded(*plain_row_volume_and_length(lost))
        if newer:
            self._index.apply(newer)

    def _newest_of_each(self, rows: list[NewRow]) -> list[NewRow]:
        newest: dict[bytes, NewRow] = {}
        for one in rows:
            key = one[0]
            before = newest.get(key)
            if before is not None:
                if plain_row_sequence(before[1]) >= plain_row_sequence(one[1]):
                    one, before = before, one
                self._superseded(*plain_row_volume_and_length(before[1]))
            newest[key] = one
        return list(newest.values())
