"""What the index and the volumes say of an object, from any thread: synchronous, and nothing is changed.

Invariants:

- Many look-ups at once fail one by one: what one of them meets is its own answer.
- A record that compaction moves between look-up and read is looked up again. Several looks into the index that have to
  agree are taken again if it changed between them.
- Every byte that is handed out was checked, unless the caller has checksums of its own and says so.

Small objects come out of the rows of a batch by one call where it was built (`native/row_reading.c`): what it does not
answer, and everything where there is none, is judged here, row by row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from segmentstore.contracts.errors import CorruptedDataError, ObjectNotFoundError, StorageError
from segmentstore.runtime.native import native_module
from tier2.volumes.blob_record import KEY_BYTES_MAX
from tier2.volumes.buffered_index import BufferedIndex
from tier2.volumes.content import check_pieces
from tier2.volumes.index_changes import IndexChanges
from tier2.volumes.index_record import IndexRecord
from tier2.volumes.index_rows import (
    CURRENT,
    ObjectRow,
    blob_key,
    current_key,
    decode_blob_row,
    decode_object_row,
)
from tier2.volumes.volume_files import VolumeFiles

_LOOKUPS_MAX = 4
_LISTED_ROWS_MAX = 1000
"""Read at once behind delete markers, though fewer are asked for."""
_NATIVE = native_module("tier2.volumes.native.row_reading")


@dataclass(slots=True)
class Wanted:
    """What somebody asks for: of a version, the bytes from `start` on, at most `length`; none of them is its record."""

    key: bytes
    version_id: str | None
    start: int = 0
    length: int | None = None
    checked: bool = True


@dataclass(slots=True)
class StoredObject:
    """A version of an object with its bytes. Never changed; not frozen, since that makes it four times as dear."""

    record: IndexRecord
    content: bytes


@dataclass(frozen=True, slots=True)
class ListedObject:
    """One row of a listing."""

    key: bytes
    record: IndexRecord


class Lookups:
    """Each verb in one call; see VolumeEngine for what they promise."""

    def __init__(self, *, index: BufferedIndex, volumes: VolumeFiles) -> None:
        self._index = index
        self._volumes = volumes

    @property
    def has_recent(self) -> bool:
        """Whether `recent` may know anything."""
        return self._index.has_recent

    def recent(self, wanted: Wanted) -> StoredObject | ObjectRow | None:
        """As `look_up`, from memory alone, and never blocking: of what was changed a moment ago. None: ask the index.

        Raises ObjectNotFoundError, CorruptedDataError.
        """
        if wanted.version_id is not None:
            return None
        recent = self._index.recent(current_key(wanted.key))
        if recent is None:
            return None
        row = self._row(wanted, recent[0])
        answer = _at_hand(row, wanted)
        return row if answer is None else answer

    def look_up(self, many: Sequence[Wanted]) -> list[StoredObject | ObjectRow | Exception]:
        """The answer to each, or why there is none; the row of one whose bytes are still to be read (`read`).

        One alone is read here.
        """
        if len(many) == 1:
            try:
                return [self.read(many[0])]
            except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
                return [error]
        found: list[StoredObject | ObjectRow | Exception] = []
        contents = self._contents(many)
        small = _small_objects(contents)
        for wanted, content, stored in zip(many, contents, small, strict=True):
            if stored is not None and wanted.version_id is None:
                found.append(_part(stored, wanted))
                continue
            try:
                row = self._row(wanted, content)
                answer = _at_hand(row, wanted)
            except Exception as error:  # noqa: BLE001 - as above
                found.append(error)
            else:
                found.append(row if answer is None else answer)
        return found

    def read(self, wanted: Wanted, row: ObjectRow | None = None) -> StoredObject:
        """`row`: what a look-up a moment ago found."""
        why: CorruptedDataError | None = None
        for _ in range(_LOOKUPS_MAX):
            if row is None:
                content = None
                if wanted.version_id is None:
                    content = self._index.get(current_key(wanted.key))
                row = self._row(wanted, content)
            answer = _at_hand(row, wanted)
            if answer is not None:
                return answer
            record, row = row.record, None
            start, end = wanted.start, record.size
            if wanted.length is not None:
                end = min(end, start + wanted.length)
            try:
                if wanted.checked or end - start == record.size:
                    return StoredObject(record, self._read_checked(record, start, end))
                return StoredObject(record, self._read_blob(record, start, end))
            except CorruptedDataError as error:
                # It may have been overwritten or moved between the two looks: then another look finds another place.
                why = error
        assert why is not None, "a look ends with bytes or with a reason"
        raise why

    def _contents(self, many: Sequence[Wanted]) -> Sequence[bytes | Exception | None]:
        """The row of each current version that is wanted, from one look into the index."""
        keys = [current_key(wanted.key) for wanted in many]
        try:
            return self._index.get_many(keys)
        except (CorruptedDataError, OSError):
            return [self._content(key) for key in keys]

    def _content(self, key: bytes) -> bytes | Exception | None:
        try:
            return self._index.get(key)
        except (CorruptedDataError, OSError) as error:
            return error

    def _row(self, wanted: Wanted, content: bytes | Exception | None) -> ObjectRow:
        """`content`: what the index has of the current version."""
        if wanted.version_id is None:
            if isinstance(content, Exception):
                raise content
            row = None if content is None else decode_object_row(content)
        else:
            key, version_id = wanted.key, wanted.version_id
            row = self._settled(key, lambda: IndexChanges(self._index).version(key, version_id))
        if row is None or (row.record.delete_marker and wanted.version_id is None):
            raise ObjectNotFoundError(f"object does not exist key={wanted.key!r}")
        return row

    def _settled(
        self, key: bytes, look: Callable[[], tuple[bytes, ObjectRow] | None]
    ) -> ObjectRow | None:
        """What a look finds that takes several rows: taken again if the current version changed meanwhile."""
        for _ in range(_LOOKUPS_MAX):
            before = self._index.get(current_key(key))
            found = look()
            if found is not None:
                return found[1]
            if self._index.get(current_key(key)) == before:
                return None
        raise StorageError(f"an object changes faster than it can be read key={key!r}")

    def _read_checked(self, record: IndexRecord, start: int, end: int) -> bytes:
        """As `_read_blob`; raises CorruptedDataError also if a piece fails its checksum."""
        first, last = start // record.piece_bytes, -(-end // record.piece_bytes)
        checked_from = first * record.piece_bytes
        content = self._read_blob(record, checked_from, min(record.size, last * record.piece_bytes))
        check_pieces(content, first, record.pieces, record.piece_bytes)
        return content[start - checked_from : end - checked_from]

    def _read_blob(self, record: IndexRecord, start: int, end: int) -> bytes:
        """Raises CorruptedDataError if the blob has moved between look-up and read."""
        found = self._index.get(blob_key(record.content_hash))
        if found is None:
            raise CorruptedDataError(f"an object has no bytes hash={record.content_hash.hex()}")
        blob = decode_blob_row(found)
        try:
            content = self._volumes.read(blob.volume, blob.blob_offset + start, end - start)
        except FileNotFoundError as error:
            raise CorruptedDataError(f"a volume is missing volume={blob.volume}") from error
        if len(content) < end - start:
            raise CorruptedDataError(
                f"a volume ends inside an object volume={blob.volume} offset={blob.blob_offset}"
            )
        return content

    def list(
        self, prefix: bytes, start_after: bytes, limit: int, *, markers: bool
    ) -> Sequence[ListedObject]:
        first = current_key(max(prefix, start_after + b"\0" if start_after else b""))
        end = CURRENT + prefix + b"\xff" * (KEY_BYTES_MAX + 1 - len(prefix))
        listed: list[ListedObject] = []
        asked = limit
        while len(listed) < limit:
            rows = self._index.scan(first, end, asked)
            for row_key, content in rows:
                row = decode_object_row(content)
                if markers or not row.record.delete_marker:
                    listed.append(ListedObject(row_key[1:], row.record))
            if len(rows) < asked:
                break
            first = rows[-1][0] + b"\0"
            # More than are missing, and more each time: there may be a million markers in front of the last object.
            asked = max(limit - len(listed), min(2 * asked, _LISTED_ROWS_MAX))
        return listed[:limit]

    def versions(self, key: bytes) -> Sequence[IndexRecord]:
        for _ in range(_LOOKUPS_MAX):
            changes = IndexChanges(self._index)
            current = changes.current(key)
            earlier = [row.record for _, row in changes.earlier_versions(key)]
            if IndexChanges(self._index).current(key) == current:
                return [*([] if current is None else [current.record]), *earlier]
        raise StorageError(f"an object changes faster than it can be read key={key!r}")


def _small_objects(
    contents: Sequence[bytes | Exception | None],
) -> Sequence[StoredObject | None]:
    """Those whose rows have all their bytes, checked; None for all others, which are no worse for it."""
    if _NATIVE is None:
        return [None] * len(contents)
    found: list[StoredObject | None] = _NATIVE.small_objects(contents, IndexRecord, StoredObject)
    return found


def _part(stored: StoredObject, wanted: Wanted) -> StoredObject:
    """Of the whole object, what is wanted."""
    if wanted.length is None and not wanted.start:
        return stored
    end = None if wanted.length is None else wanted.start + wanted.length
    return StoredObject(stored.record, stored.content[wanted.start : end])


def _at_hand(row: ObjectRow, wanted: Wanted) -> StoredObject | None:
    """The answer, unless bytes have to be read from a volume. Raises CorruptedDataError."""
    record, inline = row.record, row.inline
    start, end = wanted.start, record.size
    if wanted.length is not None:
        end = min(end, start + wanted.length)
    if start >= end:
        return StoredObject(record, b"")
    if inline is None:
        return None
    check_pieces(inline, 0, record.pieces, record.piece_bytes)
    return StoredObject(record, inline[start:end])
