"""The index in LMDB: a memory-mapped B+tree with atomic transactions and lock-free readers.

LMDB's keys end at 511 bytes. A longer key is stored as its first 400 bytes, a mark, and the SHA-256 of the whole, with
the whole key in front of the value. A scan puts such rows in the order of their whole keys, which is exact because rows
that share the first 400 bytes stand together. All of those are read for each scan among them; twice as many as it asks
for are in memory.

    stored key    whole key (at most 400 bytes)                 value
                  400 bytes + 0xFF + SHA-256                    u32 length of the key, key, value

Invariants: `metasync=False` syncs a transaction's pages before its meta page and the meta page later, so that a power
cut loses the newest transactions at most (D2), never the tree. While it is loaded (D4) nothing is synced, so that the
pages of many transactions go to the disk once; a kill is no harm then, a power cut is.
"""

import errno
import hashlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path

import lmdb

from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView
from tier2.volumes.index_database import NewRow, Row

_SHORT_KEY_BYTES_MAX = 400
_LONG_MARK = b"\xff"
_LENGTH = struct.Struct(">I")
_MAP_BYTES = 1 << 40
_CORRUPTED = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.InvalidError,
    lmdb.VersionMismatchError,
)


class LmdbIndex:
    """An IndexDatabase in a directory."""

    def __init__(self, directory: str, *, read_only: bool = False) -> None:
        """Opens or creates it; `read_only` beside the process that writes it. Raises CorruptedDataError, OSError."""
        self._directory = directory
        self._read_only = read_only
        with _translated():
            self._environment = self._opened()
            # A process that was killed while it read leaves its place in the table of readers.
            self._environment.reader_check()

    def _opened(self, *, synced: bool = True) -> lmdb.Environment:
        return lmdb.open(
            self._directory,
            map_size=_MAP_BYTES,
            metasync=False,
            sync=synced,
            readonly=self._read_only,
            readahead=False,
            max_readers=256,
        )

    def get(self, key: bytes) -> bytes | None:
        with _translated(), self._environment.begin(buffers=False) as transaction:
            return _value_of(transaction.get(_stored(key)), key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if not keys:
            return []
        with _translated(), self._environment.begin(buffers=False) as transaction:
            if max(map(len, keys)) <= _SHORT_KEY_BYTES_MAX:
                return [transaction.get(key) for key in keys]
            return [_value_of(transaction.get(_stored(key)), key) for key in keys]

    def scan(
        self, first: bytes, before: bytes, limit: int, *, reverse: bool = False
    ) -> Sequence[Row]:
        if first >= before or limit <= 0:
            return []
        with _translated(), self._environment.begin(buffers=False) as transaction:
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
            key, content = _whole(stored, value)
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
            beyond = high + _LONG_MARK * 40
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
        with _translated(), self._environment.begin(write=True) as transaction:
            if len(new) == len(rows):
                # Nothing is removed, as mostly: by one call, a third sooner.
                transaction.cursor().putmulti(_all_stored(new))
                return
            for key, value in rows:
                stored = _stored(key)
                if value is None:
                    transaction.delete(stored)
                else:
                    transaction.put(stored, _stored_value(key, value))

    def add(self, rows: Sequence[NewRow]) -> Sequence[NewRow]:
        stored = _all_stored(rows)
        if stored is not rows:
            stored = sorted(stored, key=itemgetter(0))
        with _translated():
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
                    if not transaction.put(_stored(key), _stored_value(key, value), overwrite=False)
                ]

    def load(self) -> None:
        self._reopen(synced=False)

    def loaded(self) -> None:
        self._reopen(synced=True)

    def _reopen(self, *, synced: bool) -> None:
        with _translated():
            self._environment.close()
            self._environment = self._opened(synced=synced)

    def sync(self) -> None:
        if self._read_only:
            return
        with _translated():
            self._environment.sync(True)

    def bytes_on_disk(self) -> int:
        return self._file_bytes()

    def close(self) -> None:
        self._environment.close()

    def _file_bytes(self) -> int:
        path = Path(self._directory, "data.mdb")
        return path.stat().st_size if path.exists() else 0


def _stored(key: bytes) -> bytes:
    if len(key) <= _SHORT_KEY_BYTES_MAX:
        return key
    return key[:_SHORT_KEY_BYTES_MAX] + _LONG_MARK + hashlib.sha256(key).digest()


def _stored_value(key: bytes, value: BufferView) -> BufferView:
    if len(key) <= _SHORT_KEY_BYTES_MAX:
        return value
    return _LENGTH.pack(len(key)) + key + value


def _all_stored(rows: Sequence[NewRow]) -> Sequence[NewRow]:
    """The same list if there is no long key."""
    if all(len(key) <= _SHORT_KEY_BYTES_MAX for key, _ in rows):
        return rows
    return [(_stored(key), _stored_value(key, value)) for key, value in rows]


def _whole(stored: bytes, value: bytes) -> Row:
    if len(stored) <= _SHORT_KEY_BYTES_MAX:
        return stored, value
    end = _LENGTH.size + _LENGTH.unpack_from(value)[0]
    return value[_LENGTH.size : end], value[end:]


def _value_of(value: bytes | None, key: bytes) -> bytes | None:
    if value is None or len(key) <= _SHORT_KEY_BYTES_MAX:
        return value
    found, content = _whole(_stored(key), value)
    return content if found == key else None


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except _CORRUPTED as error:
        raise CorruptedDataError(f"the index of the volumes is damaged: {error}") from error
    except (lmdb.DiskError, lmdb.MapFullError) as error:
        raise OSError(errno.ENOSPC, f"the index of the volumes has no space: {error}") from error
    except lmdb.Error as error:
        raise OSError(errno.EIO, f"the index of the volumes failed: {error}") from error
