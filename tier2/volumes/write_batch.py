"""One write batch: its mutations are judged, or sealed by one call, and become records and rows of the index.

`WriteBatch` judges one mutation after the other: conditions, retention and legal hold. But most batches are puts of
keys that nothing is known of, with bytes that are not stored yet, and without conditions, versions or locks. Of such a
batch nothing can be refused, and all numbers and places are known before anything is written: `seal_batch` makes all of
its records and rows by one call, which is native where that was built (`native/record_seal.c`); its twin in Python does
the same.

Invariants:

- A mutation that is refused leaves nothing behind: no record, no change, no number. The functions that refuse
  (`require_...`) change nothing; what they let pass may be done.
- What is decided because a key or version is not there (a condition, a deletion) is decided only if no damage of the
  index can hide it.
- A version of any id, also of the empty one, is there once: a put of an id that exists takes its place.
- What is under retention or legal hold is neither removed nor replaced.
- A put shares bytes only if this batch writes them, or if they were found sound where the index has them
  (deduplication.py). If they were not, the put brings its own bytes, and all versions that name that hash are led to
  those. The record that brought the damaged ones is written anew, without bytes, since no rebuild could read it: so the
  volumes say the same.
"""

from asyncio import Future
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from segmentstore.contracts.errors import (
    CorruptedDataError,
    InvalidRequestError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectLockedError,
    ObjectNotFoundError,
    SegmentStoreError,
    StorageFullError,
)
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.native import native_module
from tier2.volumes.index import (
    BLOB,
    CURRENT,
    SEQUENCE_MAX,
    BlobRow,
    IndexChanges,
    ObjectRow,
    blob_key,
    current_key,
    encode_blob_row,
    encode_object_row,
)
from tier2.volumes.index_database import PrefetchedRows
from tier2.volumes.mutations import (
    FREES_SPACE,
    ChangeLock,
    CheckedDuplicate,
    Delete,
    DuplicateFound,
    Mutation,
    NewObject,
    PlainRelocation,
    Put,
    Relocation,
    SmallPut,
    SyncIndex,
    UnhashedPut,
    VolumeRemoved,
    VolumeShortened,
    VolumeWritten,
)
from tier2.volumes.objects import ALWAYS, Condition, IndexRecord, RetentionMode, cannot_change
from tier2.volumes.volume_files import OpenVolume
from tier2.volumes.volume_format import (
    ALIGNMENT,
    RECORD_HEADER_BYTES,
    BatchRecord,
    RecordKind,
    encode_batch_headers,
    encode_index_record,
    encode_records,
    padding_of,
)

Outcome: TypeAlias = IndexRecord | DuplicateFound | SegmentStoreError | None
"""DuplicateFound: nothing is done yet."""

Sealed: TypeAlias = tuple[list[bytes], dict[bytes, bytes], int, int]
"""What is written: the bytes before, between and behind the blobs of objects that are not inline. Then the rows of the
index by their keys; the length of all, those blobs included; and how much of that is live."""
Seal: TypeAlias = Callable[[Sequence[NewObject], int, int, int, int, int, int], Sealed]
"""Of a batch, the number of its first record, the number of the volume, the batch's place in it, the volume's seed,
the time, and the length of a piece (which is no shorter than any of the objects)."""


class BatchPlace(NamedTuple):
    """Where a batch begins."""

    volume: int
    offset: int
    seed: int
    """Of the volume (`seed_of`)."""
    sequence: int


@dataclass(slots=True)
class SealedBatch:
    """What is written for a batch of new objects, and what the index gets."""

    place: BatchPlace
    buffers: list[BufferView]
    length: int
    """Of all buffers."""
    live: int
    """Bytes of it that are live."""
    unique_bytes: int
    """Bytes of it that the system need not keep in memory."""
    rows: dict[bytes, bytes | None]
    records: list[IndexRecord]
    """The outcomes, in the order of the puts."""


@dataclass(slots=True)
class PreparedBatch:
    """What was made ready for some puts before their batch begins, beside the one before it."""

    rows: PrefetchedRows
    sealed: SealedBatch | None = None
    """Of these puts, if nothing was known of any of them then."""


class QueuedMutation:
    """A change in the queue, from the call that asked for it until that is answered by its future."""

    __slots__ = ("ahead", "error", "future", "mutation", "size")

    def __init__(
        self, mutation: Mutation | UnhashedPut | SmallPut, future: "Future[IndexRecord | None]"
    ) -> None:
        self.mutation = mutation
        self.size: int = mutation.size
        """Hashing does not change it."""
        self.future = future
        self.ahead: PreparedBatch | None = None
        """What was made ready for it, and for its neighbours, while its batch waited for another one."""
        self.error: BaseException | None = None
        """Why its bytes could not be hashed, or what is wrong with its description: it joins no batch."""


class WriteBatch:
    """Judges mutations one after the other; then `encode` and `changes` are what has to be written and applied."""

    def __init__(
        self,
        *,
        changes: IndexChanges,
        open_volume: Callable[[], OpenVolume],
        sequence: int,
        now_ms: int,
        full: bool,
    ) -> None:
        """`full`: only what frees space is done. `open_volume` is called when there is a first record."""
        self.changes = changes
        self.sequence = sequence
        """The next number."""
        self.length = 0
        """Bytes of the records."""
        self.unique_bytes = 0
        """Of those, what the system need not keep in memory."""
        self._open_volume = open_volume
        self._volume: OpenVolume | None = None
        self._records: list[BatchRecord] = []
        self._now_ms = now_ms
        self._full = full

    @property
    def has_records(self) -> bool:
        return bool(self._records)

    def encode(self, secret: int) -> list[BufferView]:
        """All records, one behind the other."""
        return encode_records(self._records, secret=secret, timestamp_ms=self._now_ms)

    def prefetch(self, mutations: Sequence[Mutation]) -> None:
        """What puts and plain relocations among them will ask the index for is read in one go."""
        wanted = rows_asked_for([one for one in mutations if type(one) is Put])
        for one in mutations:
            if type(one) is PlainRelocation:
                wanted += [row_key for row_key, _, _ in one.moves]
        if wanted:
            self.changes.prefetch(wanted)

    def judge(self, mutation: Mutation) -> Outcome:
        """All of its effects or none. Raises OSError."""
        if self._full and not isinstance(mutation, FREES_SPACE):
            return StorageFullError("the disk of the volumes is full; deletes still work")
        before = len(self._records), self.length, self.sequence
        try:
            outcome = self._judge(mutation)
        except SegmentStoreError as error:
            records, self.length, self.sequence = before
            del self._records[records:]
            self.changes.reject()
            return error
        self.changes.accept()
        return outcome

    def _judge(self, mutation: Mutation) -> IndexRecord | DuplicateFound | None:
        match mutation:
            case Put():
                return self._put(mutation)
            case Delete():
                return self._delete(mutation)
            case ChangeLock():
                return self._change_lock(mutation)
            case Relocation():
                self._relocate(mutation)
            case PlainRelocation():
                self.changes.move_rows(mutation.source, mutation.target, mutation.moves)
            case VolumeWritten():
                self.changes.note_written(
                    mutation.volume,
                    end=mutation.end,
                    lowest=mutation.sequence_lowest,
                    highest=mutation.sequence_highest,
                )
                if mutation.tombstone_bytes:
                    self.changes.note_tombstones(
                        mutation.volume,
                        length=mutation.tombstone_bytes,
                        oldest=mutation.tombstone_oldest,
                    )
            case SyncIndex():
                pass
            case VolumeRemoved():
                self.changes.forget_volume(mutation.volume)
            case VolumeShortened():
                self.changes.note_shortened(mutation.volume, end=mutation.end)
        return None

    # --- put -------------------------------------------------------------------------------------

    def _put(self, put: Put) -> IndexRecord | DuplicateFound:
        changes, key, record = self.changes, put.key, put.draft
        current = changes.current(key)
        if put.condition is not ALWAYS:
            if current is None:
                changes.require_absent(key)
            require_condition(put.condition, key, current)
        replaced = None
        if current is not None:
            replaced = self._replaceable(
                key, record.version_id, bypass_governance=put.bypass_governance
            )
        inline, size = record.inline, record.size
        known = None if inline else changes.blob(record.content_hash)
        # Bytes that are stored already need no look at others: all are led to them.
        shared = known if put.stored is None else None
        if shared is not None and not self._brings(shared):
            checked = put.checked
            if checked is None or not _have_same_place(checked.place, shared):
                return DuplicateFound(shared)
            if not checked.are_sound:
                shared = None
        brings_blob = size > 0 and shared is None and put.stored is None
        if brings_blob and not put.content:
            raise _bytes_not_found(put)
        sequence = self.sequence
        oldest = sequence if replaced is None else replaced.record.oldest
        record.number(sequence, oldest)
        encoded = encode_index_record(record)
        volume, offset, overhead = self._append(
            RecordKind.PUT, key, encoded, put.content if brings_blob else ()
        )
        if put.unique and brings_blob:
            self.unique_bytes += size
        row = ObjectRow(
            volume,
            offset,
            overhead + size if inline else overhead,
            record,
            b"".join(put.content) if inline else None,
        )
        new_blob = None
        if shared is None and row.has_blob_row:
            blob = put.stored or BlobRow(volume, offset, offset + overhead, size, 0)
            if put.stored is not None:
                self._note_stored(put.stored)
            if known is not None:
                changes.move_blob(record.content_hash, known, blob)
            elif put.stored is not None:
                changes.add_blob(record.content_hash, blob)
            else:
                blob.references = 1
                new_blob = blob
        changes.put_version(key, row, encoded, new_blob=new_blob)
        if shared is None and put.checked is not None and not put.checked.are_sound:
            self._record_again(put.checked)
        return record

    def _brings(self, blob: BlobRow) -> bool:
        """Whether a record of this batch has these bytes."""
        volume = self._volume
        return (
            volume is not None and blob.volume == volume.number and blob.record_offset >= volume.end
        )

    def _record_again(self, checked: CheckedDuplicate) -> None:
        """The version, if there still is one, whose own record has the damaged bytes: elsewhere, without them."""
        if not checked.key:
            return
        found = self.changes.version(checked.key, checked.version_id)
        if found is not None and _have_same_place(found[1], checked.place):
            self._change_record(checked.key, *found, found[1].record)

    def _note_stored(self, stored: BlobRow) -> None:
        """A volume with these bytes alone: nothing in it has to be read at the next start."""
        end = stored.blob_offset + stored.size
        self.changes.note_written(
            stored.volume, end=end + -end % ALIGNMENT, lowest=SEQUENCE_MAX, highest=0
        )

    def _replaceable(
        self, key: bytes, version_id: str, *, bypass_governance: bool
    ) -> ObjectRow | None:
        """The version whose place a new one of this id takes."""
        found = self.changes.version(key, version_id)
        if found is None:
            return None
        require_unlocked(key, found[1].record, self._now_ms, bypass_governance=bypass_governance)
        return found[1]

    # --- delete ----------------------------------------------------------------------------------

    def _delete(self, delete: Delete) -> IndexRecord | None:
        changes, key = self.changes, delete.key
        current = changes.current(key)
        if current is None:
            changes.require_absent(key, delete.version_id)
        require_condition(delete.condition, key, current)
        if delete.marker_id is not None:
            return self._mark_deleted(delete, delete.marker_id)
        if delete.version_id is None:
            found = None if current is None else (current_key(key), current)
        else:
            found = changes.version(key, delete.version_id)
        if found is None:
            changes.require_absent(key, delete.version_id)
            return None
        row_key, row = found
        require_unlocked(key, row.record, self._now_ms, bypass_governance=delete.bypass_governance)
        tombstone = replace(
            _index_record_without_bytes(self._now_ms),
            sequence=self.sequence,
            oldest=row.record.oldest,
            version_id=row.record.version_id,
        )
        volume, _, length = self._append(
            RecordKind.TOMBSTONE, key, encode_index_record(tombstone), ()
        )
        changes.note_tombstones(volume, length=length, oldest=tombstone.oldest)
        changes.remove_version(key, row_key, row)
        return row.record

    def _mark_deleted(self, delete: Delete, marker_id: str) -> IndexRecord:
        key = delete.key
        replaced = self._replaceable(key, marker_id, bypass_governance=delete.bypass_governance)
        marker = replace(
            _index_record_without_bytes(self._now_ms),
            sequence=self.sequence,
            oldest=self.sequence if replaced is None else replaced.record.oldest,
            version_id=marker_id,
            versioned=bool(marker_id),
            delete_marker=True,
        )
        volume, offset, overhead = self._append(
            RecordKind.PUT, key, encode_index_record(marker), ()
        )
        self.changes.put_version(key, ObjectRow(volume, offset, overhead, marker, None))
        return marker

    # --- locks -----------------------------------------------------------------------------------

    def _change_lock(self, change: ChangeLock) -> IndexRecord:
        changes, key = self.changes, change.key
        current = changes.current(key)
        if change.version_id is None:
            found = None if current is None else (current_key(key), current)
        else:
            found = changes.version(key, change.version_id)
        if found is None:
            changes.require_absent(key, change.version_id)
        if found is None or found[1].record.delete_marker:
            raise ObjectNotFoundError(f"object does not exist key={key!r}")
        row_key, row = found
        record = row.record
        if change.retention is not None:
            mode, until_ms = change.retention
            require_retention_may_change(
                key,
                record,
                mode,
                until_ms,
                self._now_ms,
                bypass_governance=change.bypass_governance,
            )
            until_ms = 0 if mode is None else until_ms
            record = replace(record, retention_mode=mode, retain_until_ms=until_ms)
        if change.legal_hold is not None:
            record = replace(record, legal_hold=change.legal_hold)
        self._change_record(key, row_key, row, record)
        return record

    def _change_record(
        self, key: bytes, row_key: bytes, row: ObjectRow, record: IndexRecord
    ) -> None:
        """The same version with this record, which stands where the next record does."""
        inline = row.inline
        volume, offset, overhead = self._append(
            RecordKind.CHANGE, key, encode_index_record(record), () if not inline else (inline,)
        )
        length = overhead + len(inline or b"")
        new = ObjectRow(volume, offset, length, record, inline)
        self.changes.replace_object(row_key, row, new)

    # --- compaction ------------------------------------------------------------------------------

    def _relocate(self, move: Relocation) -> None:
        if move.old is not None and move.new is not None:
            found = self.changes.version(move.key, move.old.record.version_id)
            if found is not None and _have_same_place(found[1], move.old):
                self.changes.replace_object(found[0], found[1], move.new)
        if move.old_blob is not None and move.new_blob is not None:
            blob = self.changes.blob(move.content_hash)
            if blob is not None and _have_same_place(blob, move.old_blob):
                self.changes.move_blob(move.content_hash, blob, move.new_blob)

    # --- records ---------------------------------------------------------------------------------

    def _append(
        self,
        kind: RecordKind,
        key: bytes,
        encoded: bytes,
        blob: Sequence[BufferView],
    ) -> tuple[int, int, int]:
        """Volume, offset of the record, and its length before the blob."""
        if self._volume is None:
            self._volume = self._open_volume()
        offset = self._volume.end + self.length
        front = RECORD_HEADER_BYTES + len(key) + len(encoded)
        length = front + sum(map(len, blob))
        self._records.append((kind, self.sequence, key, encoded, blob))
        self.length += length + -length % ALIGNMENT
        self.sequence += 1
        return self._volume.number, offset, front


def _have_same_place(one: ObjectRow | BlobRow, other: ObjectRow | BlobRow) -> bool:
    return (one.volume, one.record_offset) == (other.volume, other.record_offset)


def _bytes_not_found(put: Put) -> SegmentStoreError:
    """Of a put that relies on bytes that are stored already."""
    if put.checked is not None and not put.checked.are_sound:
        return CorruptedDataError(f"stored bytes that are put again are damaged key={put.key!r}")
    return ObjectNotFoundError(f"bytes that are put again are gone key={put.key!r}")


def _index_record_without_bytes(now_ms: int) -> IndexRecord:
    return IndexRecord(
        size=0, sequence=0, content_hash=bytes(32), etag="", created_ms=now_ms, piece_bytes=0
    )


def require_condition(condition: Condition, key: bytes, current: ObjectRow | None) -> None:
    """`current`: the row of the current version. Raises ObjectExistsError, ObjectChangedError."""
    present = current is not None and not current.record.delete_marker
    if condition.absent and present:
        raise ObjectExistsError(f"object exists already key={key!r}")
    if condition.etag is None and condition.sequence is None and not condition.present:
        return
    if current is None or not present:
        raise ObjectChangedError(f"object does not exist key={key!r}")
    record = current.record
    if condition.etag not in (None, record.etag) or condition.sequence not in (
        None,
        record.sequence,
    ):
        raise ObjectChangedError(
            f"object has another version key={key!r} etag={record.etag} sequence={record.sequence}"
        )


def require_unlocked(
    key: bytes, record: IndexRecord, now_ms: int, *, bypass_governance: bool
) -> None:
    """Raises ObjectLockedError."""
    if record.is_locked(now_ms, bypass_governance=bypass_governance):
        raise ObjectLockedError(
            f"object is under retention or legal hold key={key!r} version={record.version_id!r}"
        )


def require_retention_may_change(
    key: bytes,
    record: IndexRecord,
    mode: RetentionMode | None,
    until_ms: int,
    now_ms: int,
    *,
    bypass_governance: bool,
) -> None:
    """`mode`, `until_ms`: the new ones, a mode of None to end it. Raises InvalidRequestError, ObjectLockedError."""
    if mode is not None and until_ms <= now_ms:
        raise InvalidRequestError(f"retention must end in the future until_ms={until_ms}")
    if record.retention_mode is None or now_ms >= record.retain_until_ms:
        return
    weaker = until_ms < record.retain_until_ms or mode is not record.retention_mode
    if record.retention_mode is RetentionMode.COMPLIANCE and weaker:
        raise ObjectLockedError(f"compliance retention can only be extended key={key!r}")
    if weaker and not bypass_governance:
        raise ObjectLockedError(
            f"governance retention is shortened only by a caller that may bypass it key={key!r}"
        )


def new_object(put: Put) -> NewObject | None:
    """What is known of it, if there may be nothing to judge: nothing else is said of it than bytes, etag and type."""
    draft, content = put.draft, put.content
    if (
        put.condition is not ALWAYS
        or put.stored is not None
        or len(draft.pieces) != 1
        or draft.metadata
        or draft.versioned
        or draft.retention_mode
        or draft.legal_hold
        or not cannot_change(content)
    ):
        return None
    return (
        put.key,
        draft.content_type,
        draft.etag,
        draft.content_hash,
        draft.pieces[0],
        draft.size,
        draft.created_ms,
        b"".join(content) if draft.inline else None,
        content,
    )


def rows_asked_for(puts: Sequence[Put]) -> list[bytes]:
    """The rows of the index that say whether there are such objects, and such bytes."""
    wanted = [CURRENT + put.key for put in puts]
    wanted += [BLOB + put.draft.content_hash for put in puts if not put.draft.inline]
    return wanted


def seal_batch(puts: Sequence[Put], place: BatchPlace, now_ms: int) -> SealedBatch:
    """Puts that have `new`, of keys and bytes without a row, each named once."""
    objects = [put.new for put in puts if put.new is not None]
    assert len(objects) == len(puts) > 0, "puts that have to be judged"
    records = [put.draft for put in puts]
    parts, rows, length, live = seal(
        objects,
        place.sequence,
        place.volume,
        place.offset,
        place.seed,
        now_ms,
        records[0].piece_bytes,
    )
    for sequence, record in enumerate(records, start=place.sequence):
        record.number(sequence, sequence)
    buffers: list[BufferView] = [parts[0]]
    unique_bytes = 0
    if len(parts) > 1:
        following = iter(parts[1:])
        for put in puts:
            if not put.draft.inline:
                buffers += (*put.content, next(following))
                if put.unique:
                    unique_bytes += put.draft.size
    return SealedBatch(place, buffers, length, live, unique_bytes, {**rows}, records)


def native_seal() -> Seal | None:
    """None where it was not built, or is switched off."""
    module = native_module("tier2.volumes.native.record_seal")
    return None if module is None else module.seal


def seal_in_python(
    objects: Sequence[NewObject],
    sequence: int,
    volume: int,
    offset: int,
    seed: int,
    timestamp_ms: int,
    piece_bytes: int,
) -> Sealed:
    """The twin."""
    records: list[BatchRecord] = []
    rows: dict[bytes, bytes] = {}
    length = live = 0
    for number, one in enumerate(objects, start=sequence):
        key, content_type, etag, content_hash, crc, size, created_ms, inline, content = one
        record = IndexRecord(
            size,
            number,
            content_hash,
            etag,
            created_ms,
            piece_bytes,
            (crc,),
            content_type,
            inline=inline is not None,
            oldest=number,
        )
        encoded = encode_index_record(record)
        start, front = offset + length, RECORD_HEADER_BYTES + len(key) + len(encoded)
        whole = front + size
        if inline is None:
            row = ObjectRow(volume, start, front, record)
            blob_row = BlobRow(volume, start, start + front, size, 1)
            rows[blob_key(content_hash)] = encode_blob_row(blob_row)
        else:
            row = ObjectRow(volume, start, whole, record, inline)
        rows[current_key(key)] = encode_object_row(row, encoded)
        records.append((RecordKind.PUT, number, key, encoded, content))
        live += whole
        length += whole + len(padding_of(whole))
    headers = encode_batch_headers(records, seed=seed, timestamp_ms=timestamp_ms)
    parts = _parts_to_write(records, headers, [one[7] for one in objects])
    return parts, rows, length, live


def _parts_to_write(
    records: Sequence[BatchRecord], headers: Sequence[bytes], inlines: Sequence[bytes | None]
) -> list[bytes]:
    parts: list[bytes] = []
    part: list[bytes] = []
    for (_, _, key, encoded, content), header, inline in zip(
        records, headers, inlines, strict=True
    ):
        part += (header, key, encoded)
        if inline is None:
            parts.append(b"".join(part))
            part = []
        else:
            part.append(inline)
        part.append(padding_of(len(key) + len(encoded) + sum(map(len, content))))
    parts.append(b"".join(part))
    return parts


seal: Seal = native_seal() or seal_in_python
