"""The rows of the index and their bytes, and the changes of one write batch that keep their sums right.

# Rows: a key begins with the byte that says which kind of row it is

    o key                             the current version of an object                      ObjectRow
    v key 00 (2^64 - 1 - sequence)    its earlier versions, newest first                    ObjectRow
    i key 00 version id               which of them that is: the number of its put            u64
    b SHA-256                         where the bytes of that hash are; how many name them  BlobRow
    s u32                             a volume: how far it is indexed, what of it is live   VolumeRow
    m name                            numbers of the engine

While an index is rebuilt there are also (rebuild.py):

    a key 00 version id               the newest record seen so far: u64 sequence, then ObjectRow (none: a tombstone)

# Values, big-endian

    ObjectRow   u32 volume, u64 offset of the record, u64 length of the record, u32 length of the index record,
                index record, inline bytes (only of objects that are small enough)
    BlobRow     u32 volume, u64 offset of the record, u64 offset of the blob, u64 size, u32 references
    VolumeRow   u64 indexed to, u64 live bytes, u64 lowest sequence, u64 highest sequence, u64 bytes of tombstones,
                u64 lowest `oldest` of its tombstones

# Invariants

- Object keys hold no zero byte.
- An `i` row exists exactly for each `v` row.
- A blob row exists exactly while some object row names its hash and has no inline bytes.
- `live bytes` of a volume is the sum of the record lengths (without blobs) of its object rows and of the sizes of its
  blob rows.
- Every change of an object row through `IndexChanges` changes the sums beside it in the same batch: references of
  blobs, live bytes of volumes. So whatever is applied as one batch leaves these invariants true.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from segmentstore.contracts.errors import CorruptedDataError
from segmentstore.contracts.identifiers import BufferView
from tier2.volumes.index_database import IndexDatabase, Row
from tier2.volumes.objects import IndexRecord
from tier2.volumes.volume_format import RECORD_FRONT, decode_index_record, encode_index_record

OBJECT_LAYOUT = struct.Struct(">IQQI")
_PLACE_LAYOUT = struct.Struct(">IQ")
"""What OBJECT_LAYOUT begins with."""
_BLOB_LAYOUT = struct.Struct(">IQQQI")
_VOLUME_LAYOUT = struct.Struct(">QQQQQQ")
_SEQUENCE_LAYOUT = struct.Struct(">Q")
SEQUENCE_MAX = (1 << 64) - 1
_SEQUENCE_BYTES = 8
_VERSIONS_READ_MAX = 1 << 30

CURRENT, VERSION, VERSION_ID, BLOB, VOLUME, META, STAGED = b"o", b"v", b"i", b"b", b"s", b"m", b"a"
NEXT_SEQUENCE = META + b"next_sequence"


def current_key(key: bytes) -> bytes:
    """Of the row of an object's current version."""
    return CURRENT + key


def versions_first(key: bytes) -> bytes:
    """The rows of earlier versions of a key are at or behind it, and before `versions_end`."""
    return VERSION + key + b"\0"


def versions_end(key: bytes) -> bytes:
    """See versions_first."""
    return VERSION + key + b"\1"


def version_key(key: bytes, sequence: int) -> bytes:
    """Of the row of an earlier version."""
    return versions_first(key) + (SEQUENCE_MAX - sequence).to_bytes(8, "big")


def version_id_key(key: bytes, version_id: str) -> bytes:
    """Of the row that finds an earlier version by its id."""
    return VERSION_ID + key + b"\0" + version_id.encode()


def staged_key(key: bytes, version_id: str) -> bytes:
    """Of the newest record of a key and version that a rebuild has seen."""
    return STAGED + key + b"\0" + version_id.encode()


def blob_key(content_hash: bytes) -> bytes:
    """Of a blob row."""
    return BLOB + content_hash


def volume_key(number: int) -> bytes:
    """Of a volume row."""
    return VOLUME + number.to_bytes(4, "big")


@dataclass(slots=True)
class ObjectRow:
    """A version of an object as the index has it."""

    volume: int
    record_offset: int
    record_length: int
    """Bytes of the record in its volume without a blob that has a row of its own."""
    record: IndexRecord
    inline: bytes | None = None

    @property
    def has_blob_row(self) -> bool:
        return not self.record.inline and self.record.size > 0


@dataclass(slots=True)
class BlobRow:
    """Where deduplicated bytes are."""

    volume: int
    record_offset: int
    blob_offset: int
    """From the start of the volume."""
    size: int
    references: int


@dataclass(slots=True)
class VolumeRow:
    """What the index knows of a volume."""

    indexed_to: int
    live_bytes: int
    sequence_lowest: int
    sequence_highest: int
    tombstone_bytes: int = 0
    tombstone_oldest: int = SEQUENCE_MAX
    """The lowest number of a record that a tombstone in it may be there for."""

    def with_records(self, *, end: int, lowest: int, highest: int, live: int = 0) -> "VolumeRow":
        """As it is when records with numbers from `lowest` to `highest`, `live` bytes of them live, end at `end`."""
        return VolumeRow(
            max(self.indexed_to, end),
            self.live_bytes + live,
            min(self.sequence_lowest, lowest),
            max(self.sequence_highest, highest),
            self.tombstone_bytes,
            self.tombstone_oldest,
        )


NEW_VOLUME_ROW = VolumeRow(
    indexed_to=0, live_bytes=0, sequence_lowest=SEQUENCE_MAX, sequence_highest=0
)


def encode_object_row(row: ObjectRow, index_record: bytes | None = None) -> bytes:
    """See the module; `index_record` saves encoding the record again."""
    record = encode_index_record(row.record) if index_record is None else index_record
    fixed = OBJECT_LAYOUT.pack(row.volume, row.record_offset, row.record_length, len(record))
    return fixed + record + (row.inline or b"")


def decode_object_row(content: bytes) -> ObjectRow:
    """Raises CorruptedDataError."""
    try:
        volume, record_offset, record_length, length = OBJECT_LAYOUT.unpack_from(content)
    except struct.error as error:
        raise CorruptedDataError("object row is cut off") from error
    end = OBJECT_LAYOUT.size + length
    record = decode_index_record(content[OBJECT_LAYOUT.size : end])
    inline = content[end:] if record.inline else None
    return ObjectRow(volume, record_offset, record_length, record, inline)


RowMove: TypeAlias = tuple[bytes, bytes, bytes]
"""The key of a current version's row, the place that it names (`encode_place`), and the row with another place."""


def encode_place(volume: int, record_offset: int) -> bytes:
    """What the row of a record at that place begins with, and no other row."""
    return _PLACE_LAYOUT.pack(volume, record_offset)


def row_at_place(content: bytes, volume: int, record_offset: int) -> bytes:
    """The same row of a record that was copied there."""
    return _PLACE_LAYOUT.pack(volume, record_offset) + content[_PLACE_LAYOUT.size :]


def has_version_id(content: BufferView) -> bool:
    """Whether the version of an object row has an id, without taking the row apart."""
    length: int = RECORD_FRONT.unpack_from(content, OBJECT_LAYOUT.size)[3]
    return length > 0


def plain_row_sequence(content: BufferView) -> int:
    """The number of the put that made a row, without taking the row apart."""
    sequence: int = RECORD_FRONT.unpack_from(content, OBJECT_LAYOUT.size)[2]
    return sequence


def plain_row_volume_and_length(content: BufferView) -> tuple[int, int]:
    """Where the record of a row is, and how long."""
    volume, _, length, _ = OBJECT_LAYOUT.unpack_from(content)
    return volume, length


def encode_blob_row(row: BlobRow) -> bytes:
    """See the module."""
    return _BLOB_LAYOUT.pack(
        row.volume, row.record_offset, row.blob_offset, row.size, row.references
    )


def decode_blob_row(content: bytes) -> BlobRow:
    """Raises CorruptedDataError."""
    try:
        return BlobRow(*_BLOB_LAYOUT.unpack(content))
    except struct.error as error:
        raise CorruptedDataError("blob row has a wrong length") from error


def encode_volume_row(row: VolumeRow) -> bytes:
    """See the module."""
    return _VOLUME_LAYOUT.pack(
        row.indexed_to,
        row.live_bytes,
        row.sequence_lowest,
        row.sequence_highest,
        row.tombstone_bytes,
        row.tombstone_oldest,
    )


def decode_volume_row(content: bytes) -> VolumeRow:
    """Raises CorruptedDataError."""
    try:
        return VolumeRow(*_VOLUME_LAYOUT.unpack(content))
    except struct.error as error:
        raise CorruptedDataError("volume row has a wrong length") from error


def encode_sequence(sequence: int) -> bytes:
    """Eight bytes."""
    return _SEQUENCE_LAYOUT.pack(sequence)


def decode_sequence(content: bytes) -> int:
    """Raises CorruptedDataError."""
    try:
        sequence: int = _SEQUENCE_LAYOUT.unpack(content)[0]
    except struct.error as error:
        raise CorruptedDataError("a number of the index has a wrong length") from error
    return sequence


def encode_staged_row(sequence: int, row: ObjectRow | None) -> bytes:
    """See the module; None for a tombstone."""
    return _SEQUENCE_LAYOUT.pack(sequence) + (b"" if row is None else encode_object_row(row))


def decode_staged_row(content: bytes) -> tuple[int, ObjectRow | None]:
    """Raises CorruptedDataError."""
    sequence = decode_sequence(content[: _SEQUENCE_LAYOUT.size])
    rest = content[_SEQUENCE_LAYOUT.size :]
    return sequence, decode_object_row(rest) if rest else None


def rows_of_kind(index: IndexDatabase, kind: bytes, *, page_rows: int) -> Iterator[Row]:
    """All rows of one kind, in key order, while those that were passed may change."""
    first, end = kind, bytes([kind[0] + 1])
    while True:
        rows = index.scan(first, end, page_rows)
        yield from rows
        if len(rows) < page_rows:
            return
        first = rows[-1][0] + b"\0"


class IndexChanges:
    """The index as it will be after the batch under way: what is stored, with the batch's changes laid over it.

    Invariants:

    - Nothing reaches the database before `take`, whose rows are applied as one batch.
    - What was changed since the last `accept` can be dropped as a whole: a mutation has all of its effects or none.
    """

    def __init__(self, index: IndexDatabase) -> None:
        self._index = index
        self._rows: dict[bytes, bytes | None] = {}
        self._trial: dict[bytes, bytes | None] = {}
        """Changes since the last `accept`."""
        self._seen: dict[bytes, bytes | None] = {}
        """Rows that were read: only the holder of this object changes the index meanwhile."""
        self._volumes: dict[int, VolumeRow | None] = {}
        """Changed rows of volumes, encoded at the end: every put of a batch changes the same one."""
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

    def prefetch(self, row_keys: Sequence[bytes]) -> None:
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

    def require_absent(self, key: bytes, version_id: str | None = None) -> None:
        """Before anything is decided on a key, or a version of it, that was not found: no damage hides it.

        Raises CorruptedDataError.
        """
        self._require_not_hidden(current_key(key))
        if version_id is not None:
            number = self._require_not_hidden(version_id_key(key, version_id))
            if number is not None:
                self._require_not_hidden(version_key(key, decode_sequence(number)))

    def _require_not_hidden(self, row_key: bytes) -> bytes | None:
        for changed in (self._trial, self._rows):
            if row_key in changed:
                return changed[row_key]
        return self._index.get_certain(row_key)

    def earlier_versions(
        self, key: bytes, limit: int = _VERSIONS_READ_MAX
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
        """One version is gone; its blob with it if no other version names it."""
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
        """New bytes, which no version names yet: `put_version` of the same batch does."""
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
        row_key = volume_key(number)
        content = self.get(row_key)
        if content is None and row_key not in self._rows:
            # Without its row, what is live in a volume would count as dead.
            content = self._seen[row_key] = self._index.get_certain(row_key)
        return None if content is None else decode_volume_row(content)

    def note_written(self, number: int, *, end: int, lowest: int, highest: int) -> None:
        """Records with numbers from `lowest` to `highest` now end at `end` of a volume."""
        row = self._volume_or_new(number)
        self._trial_volumes[number] = row.with_records(end=end, lowest=lowest, highest=highest)

    def note_tombstones(self, number: int, *, length: int, oldest: int) -> None:
        """A volume has got tombstones of so many bytes, for records from `oldest` on."""
        row = self._volume_or_new(number)
        self._trial_volumes[number] = replace(
            row,
            tombstone_bytes=row.tombstone_bytes + length,
            tombstone_oldest=min(row.tombstone_oldest, oldest),
        )

    def note_shortened(self, number: int, *, end: int) -> None:
        """What stands in a volume from `end` on is looked at by the next start, if it is there still."""
        row = self._volume_or_new(number)
        self._trial_volumes[number] = replace(row, indexed_to=min(row.indexed_to, end))

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
