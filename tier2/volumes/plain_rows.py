"""The rows of plain records on their way into an index that is made anew: by the ten thousand, in key order.

Invariants:

- The row of the highest number of a key stays, in whatever order they come (H69); of two with one number either may.
- Memory: rows of `bytes_max` bytes, and what Python needs for so many of them.
"""

from collections.abc import Callable

from tier2.volumes.index_database import IndexDatabase, Row
from tier2.volumes.index_rows import plain_row_sequence, plain_row_volume_and_length


class PlainRows:
    """Collects, sorts, stores."""

    def __init__(
        self, *, index: IndexDatabase, bytes_max: int, superseded: Callable[[int, int], None]
    ) -> None:
        """`superseded` is told the volume and the length of the record of each row that does not stay."""
        self._index = index
        self._bytes_max = bytes_max
        self._superseded = superseded
        self._rows: list[Row] = []
        self._bytes = 0

    def take(self, rows: list[Row], row_bytes: int) -> None:
        """Each key any number of times. Raises OSError."""
        self._rows += rows
        self._bytes += row_bytes
        if self._bytes >= self._bytes_max:
            self.store()

    def store(self) -> None:
        """Everything that was taken is in the index. Raises OSError."""
        rows, self._rows, self._bytes = self._rows, [], 0
        rows.sort()
        if len(dict(rows)) < len(rows):
            rows = self._newest_of_each(rows)
        newer: list[tuple[bytes, bytes | None]] = []
        for key, row in self._index.add(rows):
            stored = self._index.get(key)
            assert stored is not None, f"a row is there and is not {key=!r}"
            if plain_row_sequence(row) > plain_row_sequence(stored):
                newer.append((key, row))
                row = stored
            self._superseded(*plain_row_volume_and_length(row))
        if newer:
            self._index.apply(newer)

    def _newest_of_each(self, rows: list[Row]) -> list[Row]:
        newest: dict[bytes, bytes] = {}
        for key, row in rows:
            before = newest.get(key)
            if before is not None:
                if plain_row_sequence(before) >= plain_row_sequence(row):
                    row, before = before, row
                self._superseded(*plain_row_volume_and_length(before))
            newest[key] = row
        return list(newest.items())
