"""The index as it will be after the group under way: what is stored, with the group's changes laid over it.

Every change of an object row keeps the sums beside it right in the same stretch: references of blobs, live bytes of
volumes. So whatever is applied as one batch leaves the invariants of index_rows true.

Invariants:

- Nothing reaches the database before `take`, whose rows are applied as one batch.
- What was changed since the last `accept` can be dropped as a whole: a mutation has all of its effects or none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from segmentstore.contracts.errors import CorruptedDataError
from tier2.volumes.index_database import IndexDatabase
from tier2.volumes.index_rows import (
    CURRENT,
    NEW_VOLUME_ROW,
    VERSION,
    BlobRow,
    ObjectRow,
    RowMove,
    VolumeRow,
    blob_key,
    current_key,
    decode_blob_row,
    decode_object_row,
    decode_sequence,
    decode_volume_row,
    encode_blob_row,
    encode_object_row,
    encode_place,
    encode_sequence,
    encode_volume_row,
    plain_row_volume_and_length,
    version_id_key,
    version_key,
    versions_end,
    versions_first,
    volume_key,
)

_VERSIONS_MAX = 1 << 30
_SEQUENCE_BYTES = 8


class IndexChanges:
    """An overlay over the database, for one group."""

    def __init__(self, index: IndexDatabase) -> None:
        self._index = index
        self._rows: dict[bytes, bytes | None] = {}
        self._trial: dict[bytes, bytes | None] = {}
        """Changes since the last `accept`."""
        self._seen: dict[bytes, bytes | None] = {}
        """Rows that were read: nobody but the holder of this object changes the index meanwhile."""
        self._volumes: dict[int, VolumeRow | None] = {}
        """Changed rows of volumes, encoded at the end: every put of a group changes the same one."""
        self._trial_volumes: dict[int, VolumeRow | None] = {}
        self._version_rows: dict[bytes, list[bytes]] = {}
        """Keys of changed `v` rows by the key of their object."""

    def accept(self) -> None:
        """What was changed stays."""
        if self._trial:
            self._rows.update(self._trial)
            self._trial.clear()
        if self._trial_volumes:
            self._volumes.update(self._trial_volumes)
            self._trial_volumes.clear()

    def reject(self) -> None:
        """What was changed since the last `accept` never happened."""
        self._trial.clear()
        self._trial_volumes.clear()

    def take(self) -> dict[bytes, bytes | None]:
        """Everything that changed."""
        self.accept()
        for number, volume in self._volumes.items():
            self._rows[volume_key(number)] = None if volume is None else encode_volume_row(volume)
        rows, self._rows = self._rows, {}
        self._volumes.clear()
        return rows

    def know(self, rows: Mapping[bytes, bytes | None]) -> None:
        """These rows are what the index has."""
        self._seen.update(rows)

    def look_ahead(self, row_keys: Sequence[bytes]) -> None:
        """These rows will be asked for: they are read in one go."""
        wanted = [key for key in dict.fromkeys(row_keys) if key not in self._seen]
        self._seen.update(zip(wanted, self._index.get_many(wanted), strict=True))

    # --- objects ---------------------------------------------------------------------------------

    def current(self, key: bytes) -> ObjectRow | None:
        content = self.get(current_key(key))
        return None if content is None else decode_object_row(content)

    def version(self, key: bytes, version_id: str) -> tuple[bytes, ObjectRow] | None:
        """The row of that version and its key in the index."""
        current = self.current(key)
        if current is None:
            return None
        if current.record.version_id == version_id:
            return current_key(key), current
        number = self.get(version_id_key(key, version_id))
        if number is None:
            return None
        row_key = version_key(key, decode_sequence(number))
        content = self.get(row_key)
        return None if content is None else (row_key, decode_object_row(content))

    def earlier_versions(
        self, key: bytes, limit: int = _VERSIONS_MAX
    ) -> list[tuple[bytes, ObjectRow]]:
        """Newest first, at most `limit`."""
        first, end = versions_first(key), versions_end(key)
        changed = {row: self.get(row) for row in self._version_rows.get(first, ())}
        stored = self._index.scan(first, end, limit + len(changed))
        found: dict[bytes, bytes | None] = {**dict(stored), **changed}
        present = [(row, content) for row, content in sorted(found.items()) if content is not None]
        return [(row, decode_object_row(content)) for row, content in present[:limit]]

    def put_version(
        self,
        key: bytes,
        row: ObjectRow,
        index_record: bytes | None = None,
        *,
        new_blob: BlobRow | None = None,
    ) -> None:
        """A new newest version of a key, in the place of what stands under its id; its blob has a row already.

        `index_record`: the row's record as it is encoded, where that is known. `new_blob`: the row of its blob, with
        this name counted, if it has none yet; in the same volume.
        """
        live = row.record_length
        # Named before the other one is removed: that may be the last name of the same blob.
        if new_blob is not None:
            assert new_blob.references == 1, f"a new blob with {new_blob.references} references"
            assert new_blob.volume == row.volume, f"{new_blob.volume=} {row.volume=}"
            self.put(blob_key(row.record.content_hash), encode_blob_row(new_blob))
            live += new_blob.size
        elif row.has_blob_row:
            self._change_references(row.record.content_hash, 1)
        current = self.current(key)
        if current is not None:
            replaced = self.version(key, row.record.version_id)
            if replaced is not None:
                self._remove_object(key, *replaced)
            if replaced is None or replaced[0] != current_key(key):
                self._keep_as_earlier(key, current)
        self.put(current_key(key), encode_object_row(row, index_record))
        self._add_live(row.volume, live)

    def remove_version(self, key: bytes, row_key: bytes, row: ObjectRow) -> None:
        """One version is gone, and the one before it is current again if it was the current one."""
        self._remove_object(key, row_key, row)
        if row_key == current_key(key):
            self._bring_forward(key)

    def _keep_as_earlier(self, key: bytes, row: ObjectRow) -> None:
        """Move the current version behind: its sums stay as they are."""
        record = row.record
        self.put(version_key(key, record.sequence), encode_object_row(row))
        self.put(version_id_key(key, record.version_id), encode_sequence(record.sequence))
        self.put(current_key(key), None)

    def _bring_forward(self, key: bytes) -> None:
        """The newest earlier version becomes the current one, if there is one."""
        for row_key, row in self.earlier_versions(key, 1):
            self.put(row_key, None)
            self.put(version_id_key(key, row.record.version_id), None)
            self.put(current_key(key), encode_object_row(row))

    def replace_object(self, row_key: bytes, old: ObjectRow, new: ObjectRow) -> None:
        """The same version, recorded elsewhere or with other hold; the blob's references stay."""
        self._add_live(old.volume, -old.record_length)
        self._add_live(new.volume, new.record_length)
        self.put(row_key, encode_object_row(new))

    def move_rows(self, source: int, target: int, moves: Sequence[RowMove]) -> None:
        """Rows of records that were copied from one volume to another, each if it names the original still."""
        length = 0
        for row_key, place, row in moves:
            found = self.get(row_key)
            if found is None:
                continue
            if found.startswith(place):
                self.put(row_key, row)
                length += plain_row_volume_and_length(row)[1]
            else:
                self._move_earlier(row_key[len(CURRENT) :], place, row)
        self._add_live(source, -length)
        self._add_live(target, length)

    def _move_earlier(self, key: bytes, place: bytes, row: bytes) -> None:
        """The version without an id may be behind one that was put meanwhile."""
        found = self.version(key, "")
        if found is not None and place == encode_place(found[1].volume, found[1].record_offset):
            self.replace_object(*found, decode_object_row(row))

    def _remove_object(self, key: bytes, row_key: bytes, row: ObjectRow) -> None:
        """One version is gone; its blob with it if nobody else names it."""
        self.put(row_key, None)
        if row_key != current_key(key):
            self.put(version_id_key(key, row.record.version_id), None)
        self._add_live(row.volume, -row.record_length)
        if row.has_blob_row:
            self._change_references(row.record.content_hash, -1)

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
        references = -1 if row is None else row.references + by
        if row is None or references < 0:
            raise CorruptedDataError(
                f"the index miscounts a blob hash={content_hash.hex()} {row=} {by=}"
            )
        if references == 0:
            self.put(blob_key(content_hash), None)
            self._add_live(row.volume, -row.size)
        else:
            self.put(blob_key(content_hash), encode_blob_row(replace(row, references=references)))

    # --- volumes ---------------------------------------------------------------------------------

    def volume(self, number: int) -> VolumeRow | None:
        if number in self._trial_volumes:
            return self._trial_volumes[number]
        if number in self._volumes:
            return self._volumes[number]
        content = self.get(volume_key(number))
        return None if content is None else decode_volume_row(content)

    def note_written(self, number: int, *, end: int, lowest: int, highest: int) -> None:
        """Records with numbers from `lowest` to `highest` now end at `end` of a volume."""
        row = self._volume_or_new(number)
        self._trial_volumes[number] = VolumeRow(
            max(row.indexed_to, end),
            row.live_bytes,
            min(row.sequence_lowest, lowest),
            max(row.sequence_highest, highest),
            row.tombstone_bytes,
            row.tombstone_oldest,
        )

    def note_tombstones(self, number: int, *, length: int, oldest: int) -> None:
        """A volume has got tombstones of so many bytes, for records from `oldest` on."""
        row = self._volume_or_new(number)
        self._trial_volumes[number] = replace(
            row,
            tombstone_bytes=row.tombstone_bytes + length,
            tombstone_oldest=min(row.tombstone_oldest, oldest),
        )

    def forget_volume(self, number: int) -> None:
        """Its file is gone, or about to go, and nothing of it is live."""
        row = self.volume(number)
        assert row is None or row.live_bytes == 0, f"volume {number} is live {row}"
        self._trial_volumes[number] = None

    def _add_live(self, number: int, by: int) -> None:
        row = self._volume_or_new(number)
        if row.live_bytes + by < 0:
            raise CorruptedDataError(f"the index miscounts a volume {number=} {row=} {by=}")
        self._trial_volumes[number] = VolumeRow(
            row.indexed_to,
            row.live_bytes + by,
            row.sequence_lowest,
            row.sequence_highest,
            row.tombstone_bytes,
            row.tombstone_oldest,
        )

    def _volume_or_new(self, number: int) -> VolumeRow:
        return self.volume(number) or NEW_VOLUME_ROW

    # --- rows ------------------------------------------------------------------------------------

    def get(self, row_key: bytes) -> bytes | None:
        if row_key in self._trial:
            return self._trial[row_key]
        if row_key in self._rows:
            return self._rows[row_key]
        if row_key not in self._seen:
            self._seen[row_key] = self._index.get(row_key)
        return self._seen[row_key]

    def put(self, row_key: bytes, content: bytes | None) -> None:
        if row_key.startswith(VERSION):
            self._version_rows.setdefault(row_key[:-_SEQUENCE_BYTES], []).append(row_key)
        self._trial[row_key] = content
