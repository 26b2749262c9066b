"""The door of the index: an ordered map from bytes to bytes that changes by whole batches.

Guarantees (tests/tier2/volumes/index_database_suite.py):

- D1  A batch is applied whole or not at all, also through kill -9 and power cuts.
- D2  After kill -9 or a power cut the newest batches may be missing, always a suffix of the history, and never one
      before the last sync. (The volumes have what they said.)
- D3  Reads see every batch applied before them. A scan sees one state.
- D4  Between `load` and the next `sync` D2 does not hold: a power cut may leave nothing that can be read. Kill -9 does
      no harm.

All calls block and are made from an executor, one writer at a time. Keys may have any length; order is that of bytes.
Raises CorruptedDataError if the database cannot be read, OSError if the disk fails or is full.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias

from segmentstore.contracts.identifiers import BufferView

Row: TypeAlias = tuple[bytes, bytes]
NewRow: TypeAlias = tuple[bytes, BufferView]
"""Its value may be a view that is good only while the call lasts."""


class IndexDatabase(Protocol):
    """An open index."""

    def get(self, key: bytes) -> bytes | None: ...

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]: ...

    def scan(
        self, first: bytes, before: bytes, limit: int, *, reverse: bool = False
    ) -> Sequence[Row]:
        """Rows with first <= key < before in key order (or from the end), at most `limit`."""

    def apply(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        """One batch: None removes the key. Later changes of a key win."""

    def add(self, rows: Sequence[NewRow]) -> Sequence[NewRow]:
        """One batch in key order, each key once: those whose key is there already are returned, and change nothing."""

    def load(self) -> None:
        """Many batches follow, which are not synced one by one; nobody else uses the database until `loaded`."""

    def loaded(self) -> None:
        """The last of them was there. A `sync` has to follow, and may take its time."""

    def sync(self) -> None:
        """Everything applied survives a power cut."""

    def bytes_on_disk(self) -> int: ...

    def close(self) -> None: ...
