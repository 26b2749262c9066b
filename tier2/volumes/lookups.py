"""What the index and the volumes say of an object, from any thread: synchronous, and nothing is changed.

Invariants:

- A record that compaction moves between look-up and read is looked up again. Several looks into the index that have to
  agree are taken again if it changed between them.
- Every byte that is handed out was checked, unless the caller has checksums of its own and says so.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from segmentstore.contracts.errors import CorruptedDataError, ObjectNotFoundError, StorageError
from tier2.volumes.blob_record import KEY_BYTES_MAX
from tier2.volumes.content import check_pieces
from tier2.volumes.index_changes import IndexChanges
from tier2.volumes.index_database import IndexDatabase
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


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A version of an object with its bytes."""

    record: IndexRecord
    content: bytes


@dataclass(frozen=True, slots=True)
class ListedObject:
    """One row of a listing."""

    key: bytes
    record: IndexRecord


class Lookups:
    """Each verb in one call; see VolumeEngine for what they promise."""

    def __init__(self, *, index: IndexDatabase, volumes: VolumeFiles) -> None:
        self._index = index
        self._volumes = volumes

    def find(self, key: bytes, version_id: str | None) -> ObjectRow:
        if version_id is None:
            content = self._index.get(current_key(key))
            row = None if content is None else decode_object_row(content)
        else:
            row = self._settled(key, lambda: IndexChanges(self._index).version(key, version_id))
        if row is None or (row.record.delete_marker and version_id is None):
            raise ObjectNotFoundError(f"object does not exist key={key!r}")
        return row

    def read(
        self,
        key: bytes,
        version_id: str | None,
        start: int,
        length: int | None,
        *,
        checked: bool = True,
    ) -> StoredObject:
        why: CorruptedDataError | None = None
        for _ in range(_LOOKUPS_MAX):
            row = self.find(key, version_id)
            record = row.record
            end = record.size if length is None else min(record.size, start + length)
            if start >= end:
                return StoredObject(record, b"")
            if row.inline is not None:
                check_pieces(row.inline, 0, record.pieces, record.piece_bytes)
                return StoredObject(record, row.inline[start:end])
            try:
                if checked or end - start == record.size:
                    return StoredObject(record, self._read_checked(record, start, end))
                return StoredObject(record, self._read_blob(record, start, end))
            except CorruptedDataError as error:
                # It may have been overwritten or moved between the two looks: then another look finds another place.
                why = error
        assert why is not None, "a look ends with bytes or with a reason"
        raise why

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
        while len(listed) < limit:
            asked = limit - len(listed)
            rows = self._index.scan(first, end, asked)
            for row_key, content in rows:
                row = decode_object_row(content)
                if markers or not row.record.delete_marker:
                    listed.append(ListedObject(row_key[1:], row.record))
            if len(rows) < asked:
                break
            first = rows[-1][0] + b"\0"
        return listed

    def versions(self, key: bytes) -> Sequence[IndexRecord]:
        for _ in range(_LOOKUPS_MAX):
            changes = IndexChanges(self._index)
            current = changes.current(key)
            earlier = [row.record for _, row in changes.earlier_versions(key)]
            if IndexChanges(self._index).current(key) == current:
                return [*([] if current is None else [current.record]), *earlier]
        raise StorageError(f"an object changes faster than it can be read key={key!r}")
