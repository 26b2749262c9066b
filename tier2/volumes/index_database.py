"""The database of the index: an ordered map from bytes to bytes that changes by whole batches.

`IndexDatabase` is the interface. `LmdbIndex` keeps it on the disk, `BufferedIndex` holds the newest rows in memory over
a database that gets them by the thousand, `MemoryIndex` is for tests and the simulation.

Guarantees (tests/tier2/volumes/index_database_suite.py):

- D1  A batch is applied whole or not at all, also through kill -9 and power cuts.
- D2  After kill -9 or a power cut the newest batches may be missing, always a suffix of the history, and never one
      before the last sync. (The volumes have what they said.)
- D3  Reads see every batch applied before them. A scan sees one state.
- D4  Between `load` and the next `sync` D2 does not hold: a power cut may leave nothing that can be read. Kill -9 does
      no harm.

All calls block and are made from an executor, one writer at a time. Keys may have any length; order is that of bytes.
Raises CorruptedDataError if the database cannot be read, OSError if the disk fails or is full.

# How LMDB stores a row

LMDB's keys end at 511 bytes. A longer key is stored as its first 400 bytes, a mark, and the SHA-256 of the whole, with
the whole key in front of the value:

    stored key    whole key (at most 400 bytes)                 value
                  400 bytes + 0xFF + SHA-256                    u32 length of the key, key, value
"""

import errno
import hashlib
import heapq
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Protocol, TypeAlias

import lmdb
from sortedcontainers import SortedDict

from segmentstore.contracts.errors import CorruptedDataError, StorageError, StorageUnavailableError
from segmentstore.contracts.identifiers import BufferView

_SHORT_KEY_BYTES_MAX = 400
_LONG_KEY_MARK = b"\xff"
_KEY_LENGTH_LAYOUT = struct.Struct(">I")
_LMDB_MAP_BYTES = 1 << 40
_LMDB_CORRUPTED_ERRORS = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.InvalidError,
    lmdb.VersionMismatchError,
)

_BUFFERED_SCANS_MAX = 100

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


class LmdbIndex:
    """An IndexDatabase in a directory: LMDB, a memory-mapped B+tree with atomic transactions and lock-free readers.

    A scan puts rows of long keys in the order of their whole keys, which is exact because rows that share the first 400
    bytes stand together. All of those are read for each scan among them; twice as many as it asks for are in memory.

    Invariants: `metasync=False` syncs a transaction's pages before its meta page and the meta page later, so that a
    power cut loses the newest transactions at most (D2), never the tree. While it is loaded (D4) nothing is synced, so
    that the pages of many transactions go to the disk once; a kill is no harm then, a power cut is.
    """

    def __init__(self, directory: str, *, read_only: bool = False) -> None:
        """Opens or creates it; `read_only` beside the process that writes it. Raises CorruptedDataError, OSError."""
        self._directory = directory
        self._read_only = read_only
        self._inode = 0
        if read_only:
            # Before it is mapped: a file that takes its place meanwhile is noticed at the first look.
            with suppress(FileNotFoundError):
                self._inode = Path(directory, "data.mdb").stat().st_ino
        with _lmdb_errors_translated():
            self._environment = self._opened()
            self._require_whole_file()
            # A process that was killed while it read leaves its place in the table of readers.
            self._environment.reader_check()

    def _opened(self, *, synced: bool = True) -> lmdb.Environment:
        return lmdb.open(
            self._directory,
            map_size=_LMDB_MAP_BYTES,
            metasync=False,
            sync=synced,
            readonly=self._read_only,
            readahead=False,
            max_readers=256,
        )

    def _require_whole_file(self) -> None:
        """Raises CorruptedDataError for a file that ends before its last page: a look there would end the process.

        Nothing but the first two pages, which LMDB has read by then, is looked at before.
        """
        pages, page_bytes = (
            self._environment.info()["last_pgno"] + 1,
            self._environment.stat()["psize"],
        )
        found = self._file_bytes()
        if found < pages * page_bytes:
            self._environment.close()
            raise CorruptedDataError(
                f"the index of the volumes is cut off bytes={found} needed={pages * page_bytes}"
            )

    def _require_same_file(self) -> None:
        """For a reader beside the process that writes: raises StorageUnavailableError once that has made it anew.

        What is mapped is the old file then, and says for ever what was true when it was left.
        """
        if not self._read_only:
            return
        try:
            found = Path(self._directory, "data.mdb").stat().st_ino
        except FileNotFoundError:
            found = 0
        if found != self._inode:
            raise StorageUnavailableError(
                f"the index of the volumes was made anew: open it again directory={self._directory}",
                state="indexing",
            )

    def get(self, key: bytes) -> bytes | None:
        self._require_same_file()
        with _lmdb_errors_translated(), self._environment.begin(buffers=False) as transaction:
            return _value_of_stored(transaction.get(_stored_key(key)), key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if not keys:
            return []
        self._require_same_file()
        with _lmdb_errors_translated(), self._environment.begin(buffers=False) as transaction:
            if max(map(len, keys)) <= _SHORT_KEY_BYTES_MAX:
                return [transaction.get(key) for key in keys]
            return [_value_of_stored(transaction.get(_stored_key(key)), key) for key in keys]

    def scan(
        self, first: bytes, before: bytes, limit: int, *, reverse: bool = False
    ) -> Sequence[Row]:
        if first >= before or limit <= 0:
            return []
        self._require_same_file()
        with _lmdb_errors_translated(), self._environment.begin(buffers=False) as transaction:
            rows = self._rows(transaction, first, before, limit, reverse=reverse)
        return rows[:limit]

    def _rows(
        self,
        transaction: lmdb.Transaction,
        first: bytes,
        before: bytes,
        limit: int,
        *,
        reverse: bool,
    ) -> list[Row]:
        rows: list[Row] = []
        group: list[Row] = []
        group_front = b""
        cursor = transaction.cursor()
        for stored, value in self._walk(cursor, first, before, reverse=reverse):
            front = stored[:_SHORT_KEY_BYTES_MAX]
            if group and front != group_front:
                rows += sorted(group, reverse=reverse)
                group.clear()
                if len(rows) >= limit:
                    return rows
            elif len(group) >= 2 * (limit - len(rows)):
                # They come in the order of their hashes: any may still be in front, but so many are asked for.
                group.sort(reverse=reverse)
                del group[limit - len(rows) :]
            group_front = front
            key, content = _row_of_stored(stored, value)
            if first <= key < before:
                group.append((key, content))
        return rows + sorted(group, reverse=reverse)

    @staticmethod
    def _walk(
        cursor: lmdb.Cursor, first: bytes, before: bytes, *, reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]:
        low, high = first[:_SHORT_KEY_BYTES_MAX], before[:_SHORT_KEY_BYTES_MAX]
        if reverse:
            # Past everything that shares the upper end's front, then backwards.
            beyond = high + _LONG_KEY_MARK * 40
            placed = cursor.set_range(beyond)
            if not (cursor.prev() if placed else cursor.last()):
                return
            for stored, value in cursor.iterprev():
                if bytes(stored) < low:
                    return
                yield bytes(stored), bytes(value)
            return
        if not cursor.set_range(low):
            return
        for stored, value in cursor:
            if bytes(stored[:_SHORT_KEY_BYTES_MAX]) > high:
                return
            yield bytes(stored), bytes(value)

    def apply(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        rows = list(changes)
        new = [(key, value) for key, value in rows if value is not None]
        with _lmdb_errors_translated(), self._environment.begin(write=True) as transaction:
            if len(new) == len(rows):
                # Nothing is removed, as mostly: by one call, a third sooner.
                transaction.cursor().putmulti(_stored_rows(new))
                return
            for key, value in rows:
                stored = _stored_key(key)
                if value is None:
                    transaction.delete(stored)
                else:
                    transaction.put(stored, _stored_value(key, value))

    def add(self, rows: Sequence[NewRow]) -> Sequence[NewRow]:
        stored = _stored_rows(rows)
        if stored is not rows:
            stored = sorted(stored, key=itemgetter(0))
        with _lmdb_errors_translated():
            with self._environment.begin(write=True) as transaction:
                cursor = transaction.cursor()
                # Behind everything that is there, pages are filled one after the other, and nothing is looked for.
                behind = bool(stored) and not cursor.set_range(stored[0][0])
                _, added = cursor.putmulti(stored, overwrite=False, append=behind)
                if added == len(rows):
                    return []
                # Which ones it passed over it does not say.
                transaction.abort()
            with self._environment.begin(write=True) as transaction:
                return [
                    (key, value)
                    for key, value in rows
                    if not transaction.put(
                        _stored_key(key), _stored_value(key, value), overwrite=False
                    )
                ]

    def load(self) -> None:
        self._reopen(synced=False)

    def loaded(self) -> None:
        self._reopen(synced=True)

    def _reopen(self, *, synced: bool) -> None:
        with _lmdb_errors_translated():
            self._environment.close()
            self._environment = self._opened(synced=synced)

    def sync(self) -> None:
        if self._read_only:
            return
        with _lmdb_errors_translated():
            self._environment.sync(True)

    def bytes_on_disk(self) -> int:
        return self._file_bytes()

    def close(self) -> None:
        self._environment.close()

    def _file_bytes(self) -> int:
        path = Path(self._directory, "data.mdb")
        return path.stat().st_size if path.exists() else 0


def _stored_key(key: bytes) -> bytes:
    if len(key) <= _SHORT_KEY_BYTES_MAX:
        return key
    return key[:_SHORT_KEY_BYTES_MAX] + _LONG_KEY_MARK + hashlib.sha256(key).digest()


def _stored_value(key: bytes, value: BufferView) -> BufferView:
    if len(key) <= _SHORT_KEY_BYTES_MAX:
        return value
    return _KEY_LENGTH_LAYOUT.pack(len(key)) + key + value


def _stored_rows(rows: Sequence[NewRow]) -> Sequence[NewRow]:
    """The same list if there is no long key."""
    if all(len(key) <= _SHORT_KEY_BYTES_MAX for key, _ in rows):
        return rows
    return [(_stored_key(key), _stored_value(key, value)) for key, value in rows]


def _row_of_stored(stored: bytes, value: bytes) -> Row:
    if len(stored) <= _SHORT_KEY_BYTES_MAX:
        return stored, value
    end = _KEY_LENGTH_LAYOUT.size + _KEY_LENGTH_LAYOUT.unpack_from(value)[0]
    return value[_KEY_LENGTH_LAYOUT.size : end], value[end:]


def _value_of_stored(value: bytes | None, key: bytes) -> bytes | None:
    if value is None or len(key) <= _SHORT_KEY_BYTES_MAX:
        return value
    found, content = _row_of_stored(_stored_key(key), value)
    return content if found == key else None


@contextmanager
def _lmdb_errors_translated() -> Iterator[None]:
    try:
        yield
    except _LMDB_CORRUPTED_ERRORS as error:
        raise CorruptedDataError(f"the index of the volumes is damaged: {error}") from error
    except (lmdb.DiskError, lmdb.MapFullError) as error:
        raise OSError(errno.ENOSPC, f"the index of the volumes has no space: {error}") from error
    except lmdb.Error as error:
        raise OSError(errno.EIO, f"the index of the volumes failed: {error}") from error


@dataclass(frozen=True, slots=True)
class PrefetchedRows:
    """What the database had of some rows, before the one who applies gets to them."""

    flushes: int
    rows: Mapping[bytes, bytes | None]


class BufferedIndex:
    """An IndexDatabase that holds the newest rows in memory, over another one that gets them by the thousand.

    The volumes say everything, so a batch need not be in the database before its callers are answered: the sync that
    its transaction costs would be a second one for every write batch. What is not yet there is read from memory, and
    after a kill from the tails of the volumes (recovery.py), of which it is a bounded part.

    Invariants:

    - Batches reach the database in order, several as one: what it holds is the state after some batch (D1, D2).
    - Reads see every batch applied before them; a scan sees one state (D3).
    - `apply` raises before anything of its batch is visible, or not at all.
    - One thread applies and syncs at a time; any number may read beside it. So dictionaries are replaced or updated in
      one step each, in an order in which a reader misses nothing.
    """

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

    def prefetch(self, keys: Sequence[bytes]) -> PrefetchedRows:
        """To be read before they are wanted, beside whoever applies: `still_valid` says what has become of them."""
        flushes = self._flushes  # before the database is asked
        return PrefetchedRows(flushes, dict(zip(keys, self._database.get_many(keys), strict=True)))

    def still_valid(self, ahead: PrefetchedRows) -> Mapping[bytes, bytes | None]:
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
        for _ in range(_BUFFERED_SCANS_MAX):
            flushes = self._flushes
            newest, older = dict(self._fresh), dict(self._leaving)
            changed = {
                key: value for key, value in {**older, **newest}.items() if first <= key < before
            }
            stored = self._database.scan(
                first, before, limit + len(changed) if limit > 0 else 0, reverse=reverse
            )
            if flushes == self._flushes:
                return _merged_rows(stored, changed, limit, reverse=reverse)
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


def _merged_rows(
    stored: Sequence[Row], changed: dict[bytes, bytes | None], limit: int, *, reverse: bool
) -> list[Row]:
    kept = [row for row in stored if row[0] not in changed]
    added = sorted(
        ((key, value) for key, value in changed.items() if value is not None), reverse=reverse
    )
    merged = heapq.merge(kept, added, key=lambda row: row[0], reverse=reverse)
    return [row for row, _ in zip(merged, range(limit), strict=False)]


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

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._rows.get(key) for key in keys]

    def scan(
        self, first: bytes, before: bytes, limit: int, *, reverse: bool = False
    ) -> Sequence[Row]:
        rows: list[Row] = []
        for key in self._rows.irange(first, before, inclusive=(True, False), reverse=reverse):
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
        self.apply([(key, bytes(value)) for key, value in rows if key not in self._rows])
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

    def bytes_on_disk(self) -> int:
        return 0

    def close(self) -> None:
        """Nothing to release: the rows stay for whoever opens it again."""

    def _set(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._rows.pop(key, None)
        else:
            self._rows[key] = value
