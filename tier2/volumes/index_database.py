"""The database of the index: an ordered map from bytes to bytes that changes by whole batches.

`IndexDatabase` is the interface. `LmdbIndex` keeps it on the disk, `BufferedIndex` holds the newest rows in memory over
a database that gets them by the thousand. Tests and the simulation have one in memory.

Guarantees (tests/tier2/volumes/index_database_suite.py):

- D1  A batch is applied whole or not at all, also through kill -9 and power cuts.
- D2  After kill -9 or a power cut the newest batches may be missing, always a suffix of the history, and never one
      before the last sync. (The volumes have what they said.)
- D3  Reads see every batch applied before them. A scan sees one state.
- D4  Between `load` and the next `sync` D2 does not hold: a power cut may leave nothing that can be read. Kill -9 does
      no harm.
- D5  A row is given as it was applied, or refused as damage, whatever bits of the file flipped since. `get` may miss
      one that is there, if a bit led it past; `get_certain` and `scan` refuse then.

All calls block and are made from an executor, one writer at a time. Keys may have any length, but for none; order is
that of bytes. Raises CorruptedDataError if the database cannot be read, OSError if the disk fails or is full.

# How LMDB stores a row

LMDB's keys end at 511 bytes. A longer key is stored as its first 400 bytes, a mark, and the SHA-256 of the whole, with
the whole key in front of the value. Each value begins with a checksum; big-endian:

    stored key    whole key (at most 400 bytes)                 checksum, value
                  400 bytes + 0xFF + SHA-256                    checksum, u32 length of the key, key, value
    checksum      u32: CRC-32 of the whole key and the value
    00 "format"   checksum, u8 format, which is 2: rows of a file without it, of format 1, have no checksums

The checksum is in front, and of the plain key and value, so that a rebuild can make rows where it reads their records.
What is no row in LMDB's file, index_pages.py looks through: it answers `scan`, and `get_certain` before that says that
there is no row. LMDB itself answers only where it finds one, and the checksum says that it is the right one. The file
goes on for 128 KB behind its last page, so that a wrong length leads to zeros, and not behind the end of the file.

A damaged file is made anew at the next start (opening.py): the first call that meets damage leaves `damaged` beside it.
"""

import errno
import hashlib
import heapq
import logging
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Protocol, TypeAlias

import lmdb

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError, StorageError, StorageUnavailableError
from segmentstore.contracts.identifiers import BufferView
from tier2.volumes.index_pages import IndexPages, IndexState, damaged

_LOGGER = logging.getLogger(__name__)

_SHORT_KEY_BYTES_MAX = 400
_LONG_KEY_MARK = b"\xff"
_KEY_LENGTH_LAYOUT = struct.Struct(">I")
CHECKSUM_LAYOUT = struct.Struct(">I")
_checksum_in = CHECKSUM_LAYOUT.unpack_from
FORMAT = 2
"""Of the rows."""
_FORMAT_KEY, _FORMAT = b"\0format", bytes([FORMAT])
_ROWS_BEGIN = b"\1"
"""What stands before belongs to the file."""
_CHECKED_BYTES_MAX = 64 << 20
"""Half a second, if it is in memory."""
_STATE_LOOKS_MAX = 100
_DAMAGE_NOTE = "damaged"
_BYTES_BEHIND = 128 << 10
"""No usual row is longer."""
_LENGTHENED_BY = 1 << 20
_REMEDY = "the next start makes it anew from the volumes"
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
"""Its value has its checksum in front, and may be a view that is good only while the call lasts."""


class OutdatedIndexError(CorruptedDataError):
    """An older version of the store wrote this file: its rows have no checksums, and it is made anew.

    Not for a file that is damaged.
    """


class IndexDatabase(Protocol):
    """An open index."""

    def get(self, key: bytes) -> bytes | None: ...

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]: ...

    def get_certain(self, key: bytes) -> bytes | None:
        """As `get`, and None only where no damage can hide the row: it takes several times as long then."""

    def scan(self, first: bytes, before: bytes, limit: int) -> Sequence[Row]:
        """Rows with first <= key < before in key order, at most `limit`. No damage hides one of them."""

    def apply(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        """One batch: None removes the key. Later changes of a key win."""

    def add(self, rows: Sequence[NewRow]) -> Sequence[NewRow]:
        """One batch in key order, each key once: those whose key is there already are returned, and change nothing.

        Their values have their checksums in front of them (`with_checksum`).
        """

    def load(self) -> None:
        """Many batches follow, which are not synced one by one; only the caller uses the database until `loaded`."""

    def loaded(self) -> None:
        """The last of them was there. A `sync` has to follow, and may take its time."""

    def sync(self) -> None:
        """Everything applied survives a power cut."""

    def close(self) -> None: ...


class LmdbIndex:
    """An IndexDatabase in a directory: LMDB, a memory-mapped B+tree with atomic transactions and lock-free readers.

    A scan puts rows of long keys in the order of their whole keys, which is exact because rows that share the first 400
    bytes stand together. All of those are read for each scan among them; twice as many as it asks for are in memory.

    Invariants: `metasync=False` syncs a transaction's pages before its meta page and the meta page later, so that a
    power cut loses the newest transactions at most (D2), never the tree. While it is loaded (D4) nothing is synced, so
    that the pages of many transactions go to the disk once; a kill is no harm then, a power cut is.
    """

    def __init__(
        self,
        directory: str,
        *,
        read_only: bool = False,
        checked_bytes_max: int = _CHECKED_BYTES_MAX,
    ) -> None:
        """Opens or creates it; `read_only` beside the process that writes it.

        A file of at most `checked_bytes_max` is looked through as a whole. Raises CorruptedDataError, of that
        OutdatedIndexError for a file without checksums, StorageUnavailableError for one beside its writer; OSError.
        """
        self._directory = directory
        self._read_only = read_only
        self._inode = 0
        self._notes_damage, self._remedy = False, ""
        if read_only:
            # Before it is mapped: a file that takes its place meanwhile is noticed at the first look.
            with suppress(FileNotFoundError):
                self._inode = Path(directory, "data.mdb").stat().st_ino
        else:
            self._require_no_damage_noted()
        with self._errors_translated():
            self._environment = self._opened()
            self._pages = IndexPages(str(Path(directory, "data.mdb")))
            try:
                self._require_whole_file()
                # A process that was killed while it read leaves its place in the table of readers.
                self._environment.reader_check()
                if not read_only and self._file_bytes() <= checked_bytes_max:
                    self._check()
                self._page_bytes = self._environment.stat()["psize"]
                self._length = 0
                if not read_only:
                    self._lengthen()
                self._require_format()
            except BaseException:
                self.close()
                raise
        self._notes_damage, self._remedy = not read_only, f" ({_REMEDY})"

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

        A page that was used and given up by one transaction was never written, though the file may have to end behind
        it. LMDB has looked at nothing but the first two pages by then.
        """
        found = self._file_bytes()
        with self._environment.begin() as transaction:
            state = self._certain_state_of(transaction)
            needed = (state.highest_page + 1) * state.page_bytes
            if found < needed and not self._pages.are_free(state, found // state.page_bytes):
                raise damaged(f"it is cut off bytes={found} needed={needed}")

    def _require_format(self) -> None:
        """A new file gets the row that says what it is."""
        found = self._get(_FORMAT_KEY)
        if found is not None:
            if found != _FORMAT:
                raise OutdatedIndexError("the index of the volumes has another format")
            return
        if self._environment.stat()["entries"]:
            if self._read_only:
                raise StorageUnavailableError(
                    f"the index of the volumes has no checksums yet directory={self._directory}",
                    state="indexing",
                )
            raise OutdatedIndexError("the index of the volumes has no checksums yet")
        if not self._read_only:
            self.apply([(_FORMAT_KEY, _FORMAT)])

    def _check(self) -> None:
        """The whole file. A row of an older format has no checksum, so `_require_format` has the last word on those."""
        with self._environment.begin() as transaction:
            has_checksums = transaction.get(_FORMAT_KEY) is not None
            check_row = _row_of_stored if has_checksums else _take_for_granted
            self._pages.check(self._certain_state_of(transaction), check_row)

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
        return self._get(key)

    def _get(self, key: bytes) -> bytes | None:
        with self._errors_translated(), self._environment.begin(buffers=True) as transaction:
            stored = transaction.get(_stored_key(key))
            return None if stored is None else self._value(transaction, key, stored)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if not keys:
            return []
        self._require_same_file()
        values: list[bytes | None] = []
        with self._errors_translated(), self._environment.begin(buffers=True) as transaction:
            get, start = transaction.get, CHECKSUM_LAYOUT.size
            for key in keys:
                is_short = len(key) <= _SHORT_KEY_BYTES_MAX
                stored = get(key if is_short else _stored_key(key))
                if stored is None:
                    values.append(None)
                    continue
                # Most rows, by the fewest calls: what does not fit here is looked at again below.
                if is_short and len(stored) <= _BYTES_BEHIND:
                    value = bytes(stored[start:])
                    if crc32_of(value, crc32_of(key)) == _checksum_in(stored)[0]:
                        values.append(value)
                        continue
                values.append(self._value(transaction, key, stored))
        return values

    def _value(self, transaction: lmdb.Transaction, key: bytes, stored: memoryview) -> bytes:
        """Of what LMDB finds, which may lie behind the end of the file if its length is damaged."""
        if len(stored) <= _BYTES_BEHIND:
            return _value_of_stored(key, stored)
        state = self._state_of(transaction)
        found = None if state is None else self._pages.find(state, _stored_key(key), _row_of_stored)
        if found is None:
            raise damaged(f"a row of {len(stored)} bytes key={key!r}")
        return _value_of_stored(key, found)

    def get_certain(self, key: bytes) -> bytes | None:
        self._require_same_file()
        stored_key = _stored_key(key)
        for _ in range(_STATE_LOOKS_MAX):
            with self._errors_translated(), self._environment.begin(buffers=True) as transaction:
                stored = transaction.get(stored_key)
                if stored is not None:
                    return self._value(transaction, key, stored)
                state = self._state_of(transaction)
                if state is None:
                    continue
                if self._pages.find(state, stored_key, _row_of_stored) is not None:
                    raise damaged(f"it hides a row key={key!r}")
                return None
        raise StorageError("the index changes faster than it can be read")

    def scan(self, first: bytes, before: bytes, limit: int) -> Sequence[Row]:
        if first >= before or limit <= 0:
            return []
        self._require_same_file()
        for _ in range(_STATE_LOOKS_MAX):
            with self._errors_translated(), self._environment.begin() as transaction:
                state = self._state_of(transaction)
                if state is not None:
                    return self._rows(state, first, before, limit)[:limit]
        raise StorageError("the index changes faster than it can be read")

    def _state_of(self, transaction: lmdb.Transaction) -> IndexState | None:
        return self._pages.state_of(transaction.id())

    def _certain_state_of(self, transaction: lmdb.Transaction) -> IndexState:
        """While the file is opened; a reader beside the process that writes it may have to come again."""
        state = self._state_of(transaction)
        if state is None:
            raise StorageUnavailableError(
                f"the index of the volumes changes faster than it can be read directory={self._directory}",
                state="indexing",
            )
        return state

    def _rows(self, state: IndexState, first: bytes, before: bytes, limit: int) -> list[Row]:
        rows: list[Row] = []
        group: list[Row] = []
        group_front = b""
        low, high = first[:_SHORT_KEY_BYTES_MAX], before[:_SHORT_KEY_BYTES_MAX]
        for stored_key, stored in self._pages.scan(state, max(low, _ROWS_BEGIN), _row_of_stored):
            front = stored_key[:_SHORT_KEY_BYTES_MAX]
            if front > high:
                break
            if group and front != group_front:
                rows += sorted(group)
                group.clear()
                if len(rows) >= limit:
                    return rows
            elif len(group) >= 2 * (limit - len(rows)):
                # They come in the order of their hashes: any may still be in front, but so many are asked for.
                group.sort()
                del group[limit - len(rows) :]
            group_front = front
            row = _row_of_stored(stored_key, stored)
            if first <= row[0] < before:
                group.append(row)
        return rows + sorted(group)

    def apply(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        rows = list(changes)
        new = [(key, value) for key, value in rows if value is not None]
        with self._errors_translated(), self._environment.begin(write=True) as transaction:
            if len(new) == len(rows):
                # Nothing is removed, as mostly: by one call, a third sooner.
                transaction.cursor().putmulti(
                    [(_stored_key(key), _stored_value(key, value)) for key, value in new]
                )
            else:
                for key, value in rows:
                    stored_key = _stored_key(key)
                    if value is None:
                        transaction.delete(stored_key)
                    else:
                        transaction.put(stored_key, _stored_value(key, value))
        self._lengthen()

    def add(self, rows: Sequence[NewRow]) -> Sequence[NewRow]:
        stored = _stored_rows(rows)
        if stored is not rows:
            stored = sorted(stored, key=itemgetter(0))
        with self._errors_translated():
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
                    if not transaction.put(*_stored_row(key, value), overwrite=False)
                ]

    def _lengthen(self) -> None:
        """The file goes on for `_BYTES_BEHIND` behind its last page: what a wrong length leads to is zeros there.

        Without them a look there would end the process.
        """
        end = (self._environment.info()["last_pgno"] + 1) * self._page_bytes + _BYTES_BEHIND
        if end > self._length:
            self._length = end + _LENGTHENED_BY
            # It guards against damage, and is no part of what was asked for.
            with suppress(OSError):
                if self._file_bytes() < self._length:
                    os.truncate(Path(self._directory, "data.mdb"), self._length)

    def load(self) -> None:
        self._reopen(synced=False)

    def loaded(self) -> None:
        self._reopen(synced=True)

    def _reopen(self, *, synced: bool) -> None:
        with self._errors_translated():
            self._environment.close()
            self._environment = self._opened(synced=synced)
        self._lengthen()

    def sync(self) -> None:
        if self._read_only:
            return
        with self._errors_translated():
            self._environment.sync(True)

    def close(self) -> None:
        self._environment.close()
        self._pages.close()

    def _file_bytes(self) -> int:
        path = Path(self._directory, "data.mdb")
        return path.stat().st_size if path.exists() else 0

    # --- damage ----------------------------------------------------------------------------------

    @contextmanager
    def _errors_translated(self) -> Iterator[None]:
        try:
            yield
        except OutdatedIndexError:
            raise
        except (CorruptedDataError, *_LMDB_CORRUPTED_ERRORS) as error:
            found = error if isinstance(error, CorruptedDataError) else damaged(str(error))
            self._note_damage(str(found))
            raise CorruptedDataError(f"{found}{self._remedy}") from error
        except (lmdb.DiskError, lmdb.MapFullError) as error:
            raise OSError(
                errno.ENOSPC, f"the index of the volumes has no space: {error}"
            ) from error
        except lmdb.Error as error:
            raise OSError(errno.EIO, f"the index of the volumes failed: {error}") from error

    def _note_damage(self, what: str) -> None:
        """For the next start; the first one is logged. What is found while opening leads to a new index at once."""
        if not self._notes_damage:
            return
        self._notes_damage = False
        _LOGGER.error("%s (%s) directory=%s", what, _REMEDY, self._directory)
        # Without it, the next start still finds what it looks at itself.
        with suppress(OSError):
            Path(self._directory, _DAMAGE_NOTE).write_text(what)

    def _require_no_damage_noted(self) -> None:
        try:
            what = Path(self._directory, _DAMAGE_NOTE).read_text(errors="replace")
        except FileNotFoundError:
            return
        raise CorruptedDataError(what or damaged("it was found before"))


def checksum_of(key: bytes, value: BufferView) -> int:
    """Of a row."""
    return crc32_of(value, crc32_of(key))


def with_checksum(key: bytes, value: bytes) -> bytes:
    """What `IndexDatabase.add` takes."""
    return CHECKSUM_LAYOUT.pack(checksum_of(key, value)) + value


def value_of(row: NewRow) -> memoryview:
    """Without its checksum."""
    return memoryview(row[1])[CHECKSUM_LAYOUT.size :]


def _stored_key(key: bytes) -> bytes:
    if len(key) <= _SHORT_KEY_BYTES_MAX:
        return key
    return key[:_SHORT_KEY_BYTES_MAX] + _LONG_KEY_MARK + hashlib.sha256(key).digest()


def _stored_value(key: bytes, value: bytes) -> bytes:
    checksum = CHECKSUM_LAYOUT.pack(crc32_of(value, crc32_of(key)))
    if len(key) <= _SHORT_KEY_BYTES_MAX:
        return checksum + value
    return b"".join((checksum, _KEY_LENGTH_LAYOUT.pack(len(key)), key, value))


def _stored_row(key: bytes, value: BufferView) -> NewRow:
    """`value`: with its checksum."""
    if len(key) <= _SHORT_KEY_BYTES_MAX:
        return key, value
    whole, size = memoryview(value), CHECKSUM_LAYOUT.size
    length = _KEY_LENGTH_LAYOUT.pack(len(key))
    return _stored_key(key), b"".join((whole[:size], length, key, whole[size:]))


def _stored_rows(rows: Sequence[NewRow]) -> Sequence[NewRow]:
    """The same list if there is no long key."""
    if all(len(key) <= _SHORT_KEY_BYTES_MAX for key, _ in rows):
        return rows
    return [_stored_row(key, value) for key, value in rows]


def _row_of_stored(stored_key: bytes, stored: bytes) -> Row:
    """Raises CorruptedDataError."""
    key = stored_key
    if len(key) > _SHORT_KEY_BYTES_MAX:
        start = CHECKSUM_LAYOUT.size + _KEY_LENGTH_LAYOUT.size
        if len(stored) >= start:
            length = _KEY_LENGTH_LAYOUT.unpack_from(stored, CHECKSUM_LAYOUT.size)[0]
            key = stored[start : start + length]
        if _stored_key(key) != stored_key:
            raise damaged(f"a row has the key of another one key={stored_key!r}")
    return key, _value_of_stored(key, stored)


def _value_of_stored(key: bytes, stored: bytes | memoryview) -> bytes:
    """Raises CorruptedDataError."""
    start = CHECKSUM_LAYOUT.size
    if len(key) > _SHORT_KEY_BYTES_MAX:
        start += _KEY_LENGTH_LAYOUT.size + len(key)
    value = bytes(stored[start:])
    if len(stored) < start or crc32_of(value, crc32_of(key)) != _checksum_in(stored)[0]:
        raise damaged(f"a row does not have its checksum key={key!r}")
    return value


def _take_for_granted(_key: bytes, _stored: bytes) -> None:
    """Of a row without a checksum."""


@dataclass(frozen=True, slots=True)
class PrefetchedRows:
    """What the database had of some rows, before the thread that applies gets to them."""

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

    def get_certain(self, key: bytes) -> bytes | None:
        for rows in (self._fresh, self._leaving):
            if key in rows:
                return rows.get(key)
        return self._database.get_certain(key)

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
        """To be read before they are wanted, while a thread applies: `still_valid` says what became of them."""
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

    def scan(self, first: bytes, before: bytes, limit: int) -> Sequence[Row]:
        for _ in range(_BUFFERED_SCANS_MAX):
            flushes = self._flushes
            newest, older = dict(self._fresh), dict(self._leaving)
            changed = {
                key: value for key, value in {**older, **newest}.items() if first <= key < before
            }
            stored = self._database.scan(first, before, limit + len(changed) if limit > 0 else 0)
            if flushes == self._flushes:
                return _merged_rows(stored, changed, limit)
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
    stored: Sequence[Row], changed: dict[bytes, bytes | None], limit: int
) -> list[Row]:
    kept = [row for row in stored if row[0] not in changed]
    added = sorted((key, value) for key, value in changed.items() if value is not None)
    merged = heapq.merge(kept, added, key=itemgetter(0))
    return [row for row, _ in zip(merged, range(limit), strict=False)]
