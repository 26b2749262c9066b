"""The index as it will be after the group under way: what is stored, with the group's changes laid over it.

Every change of an object row keeps the sums beside it right in the same stretch: references of blobs, live bytes of
volumes. So whatever is applied as one batch leaves the invariants of index_rows true.

Invariant: nothing reaches the database before `take`, whose rows are applied as one batch.
"""

from dataclasses import replace

from tier2.volumes.index_database import IndexDatabase
from tier2.volumes.index_rows import (
    BlobRow,
    ObjectRow,
    VolumeRow,
    blob_key,
    current_key,
    decode_blob_row,
    decode_object_row,
    decode_volume_row,
    encode_blob_row,
    encode_object_row,
    encode_volume_row,
    version_key,
    versions_end,
    versions_first,
    volume_key,
)

_VERSIONS_MAX = 1 << 30


class IndexChanges:
    """An overlay over the database, for one group."""

    def __init__(self, index: IndexDatabase) -> None:
        self._index = index
        self._rows: dict[bytes, bytes | None] = {}

    def take(self) -> list[tuple[bytes, bytes | None]]:
        """Everything that changed, in key order (the order in which a tree likes it)."""
        rows, self._rows = sorted(self._rows.items()), {}
        return rows

    # --- objects ---------------------------------------------------------------------------------

    def current(self, key: bytes) -> ObjectRow | None:
        content = self.get(current_key(key))
        return None if content is None else decode_object_row(content)

    def version(self, key: bytes, version_id: str) -> tuple[bytes, ObjectRow] | None:
        """The row of that version and its key in the index; O(versions of the key)."""
        current = self.current(key)
        if current is not None and current.record.version_id == version_id:
            return current_key(key), current
        for row_key, row in self.earlier_versions(key):
            if row.record.version_id == version_id:
                return row_key, row
        return None

    def earlier_versions(self, key: bytes) -> list[tuple[bytes, ObjectRow]]:
        """Newest first."""
        first, end = versions_first(key), versions_end(key)
        found: dict[bytes, bytes | None] = dict(self._index.scan(first, end, _VERSIONS_MAX))
        found.update((row, self._rows[row]) for row in self._rows if first <= row < end)
        return [
            (row_key, decode_object_row(content))
            for row_key, content in sorted(found.items())
            if content is not None
        ]

    def set_current(self, key: bytes, row: ObjectRow) -> None:
        """Put a new current version in place; what stood there is released by the caller first."""
        self._set_object(current_key(key), row)

    def keep_as_earlier(self, key: bytes, row: ObjectRow) -> None:
        """Move the current version behind: its sums stay as they are."""
        self.put(version_key(key, row.record.sequence), encode_object_row(row))
        self.put(current_key(key), None)

    def bring_forward(self, key: bytes) -> None:
        """The newest earlier version becomes the current one, if there is one."""
        earlier = self.earlier_versions(key)
        if earlier:
            row_key, row = earlier[0]
            self.put(row_key, None)
            self.put(current_key(key), encode_object_row(row))

    def replace_object(self, row_key: bytes, old: ObjectRow, new: ObjectRow) -> None:
        """The same version, recorded elsewhere or with other hold; the blob's references stay."""
        self._add_live(old.volume, -old.record_length)
        self._add_live(new.volume, new.record_length)
        self.put(row_key, encode_object_row(new))

    def remove_object(self, row_key: bytes, row: ObjectRow) -> None:
        """One version is gone; its blob with it if nobody else names it."""
        self.put(row_key, None)
        self._add_live(row.volume, -row.record_length)
        if row.has_blob_row:
            self._change_references(row.record.content_hash, -1)

    def _set_object(self, row_key: bytes, row: ObjectRow) -> None:
        self.put(row_key, encode_object_row(row))
        self._add_live(row.volume, row.record_length)
        if row.has_blob_row:
            self._change_references(row.record.content_hash, 1)

    # --- blobs -----------------------------------------------------------------------------------

    def blob(self, content_hash: bytes) -> BlobRow | None:
        content = self.get(blob_key(content_hash))
        return None if content is None else decode_blob_row(content)

    def add_blob(self, content_hash: bytes, row: BlobRow) -> None:
        """New bytes, not yet named by anybody: `set_current` of the same group names them."""
        assert row.references == 0, f"a new blob with {row.references} references"
        self.put(blob_key(content_hash), encode_blob_row(row))
        self._add_live(row.volume, row.size)

    def move_blob(self, content_hash: bytes, old: BlobRow, new: BlobRow) -> None:
        """The same bytes elsewhere."""
        self._add_live(old.volume, -old.size)
        self._add_live(new.volume, new.size)
        self.put(blob_key(content_hash), encode_blob_row(replace(new, references=old.references)))

    def _change_references(self, content_hash: bytes, by: int) -> None:
        row = self.blob(content_hash)
        assert row is not None, f"a blob without a row hash={content_hash.hex()}"
        references = row.references + by
        assert references >= 0, f"more references dropped than made hash={content_hash.hex()}"
        if references == 0:
            self.put(blob_key(content_hash), None)
            self._add_live(row.volume, -row.size)
        else:
            self.put(blob_key(content_hash), encode_blob_row(replace(row, references=references)))

    # --- volumes ---------------------------------------------------------------------------------

    def volume(self, number: int) -> VolumeRow | None:
        content = self.get(volume_key(number))
        return None if content is None else decode_volume_row(content)

    def set_volume(self, number: int, row: VolumeRow) -> None:
        self.put(volume_key(number), encode_volume_row(row))

    def note_written(self, number: int, *, end: int, lowest: int, highest: int) -> None:
        """Records with numbers from `lowest` to `highest` now end at `end` of a volume."""
        row = self._volume_or_new(number)
        self.set_volume(
            number,
            replace(
                row,
                indexed_to=max(row.indexed_to, end),
                sequence_lowest=min(row.sequence_lowest, lowest),
                sequence_highest=max(row.sequence_highest, highest),
            ),
        )

    def _add_live(self, number: int, by: int) -> None:
        row = self._volume_or_new(number)
        self.set_volume(number, replace(row, live_bytes=row.live_bytes + by))

    def _volume_or_new(self, number: int) -> VolumeRow:
        return self.volume(number) or VolumeRow(
            indexed_to=0, live_bytes=0, sequence_lowest=(1 << 64) - 1, sequence_highest=0
        )

    # --- rows ------------------------------------------------------------------------------------

    def get(self, row_key: bytes) -> bytes | None:
        if row_key in self._rows:
            return self._rows[row_key]
        return self._index.get(row_key)

    def put(self, row_key: bytes, content: bytes | None) -> None:
        self._rows[row_key] = content
