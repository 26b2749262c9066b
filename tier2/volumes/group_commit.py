"""A group of changes made durable in one step: judged, appended, synced, indexed. The only writer of the engine.

    judge each mutation against the index and the group before it -> records into the open volume, one vectored write
    -> fdatasync -> one index transaction -> outcomes

Invariants:

- The index never says what the volume does not hold synced (H72); an outcome is given only after both.
- A refusal judged against an earlier mutation of the same group is given with that mutation's own outcome.
- After a failed write or sync the volume is never written again (H48); numbers used in it never return (H33).

Blocking; runs in an executor, one call at a time.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from segmentstore.contracts.errors import (
    InvalidRequestError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectLockedError,
    ObjectNotFoundError,
    SegmentStoreError,
)
from segmentstore.contracts.identifiers import BufferView
from tier2.volumes.blob_record import RECORD_HEADER_BYTES, RecordKind, encode_record
from tier2.volumes.index_changes import IndexChanges
from tier2.volumes.index_database import IndexDatabase
from tier2.volumes.index_record import IndexRecord, RetentionMode, encode_index_record
from tier2.volumes.index_rows import NEXT_SEQUENCE, BlobRow, ObjectRow, current_key
from tier2.volumes.mutations import ChangeLock, Condition, Delete, Mutation, Put, Relocation
from tier2.volumes.settings import VolumeSettings
from tier2.volumes.volume_files import OpenVolume, VolumeFiles

Outcome: TypeAlias = IndexRecord | SegmentStoreError | None


class GroupCommit:
    """Holds the open volume and the next sequence number."""

    def __init__(
        self,
        *,
        index: IndexDatabase,
        volumes: VolumeFiles,
        settings: VolumeSettings,
        sequence_next: int,
    ) -> None:
        self._index = index
        self._volumes = volumes
        self._settings = settings
        self._sequence_next = sequence_next
        self._open: OpenVolume | None = None

    @property
    def open_volume(self) -> int | None:
        """Number of the volume that takes records now: not to be compacted."""
        return None if self._open is None else self._open.number

    def commit(self, mutations: Sequence[Mutation], now_ms: int) -> list[Outcome]:
        """One outcome per mutation: its record, None, or why it was refused. Raises OSError: nothing is known then."""
        volume = self._volume(now_ms)
        group = _Group(
            changes=IndexChanges(self._index),
            volume=volume,
            sequence=self._sequence_next,
            now_ms=now_ms,
            settings=self._settings,
        )
        outcomes = [group.judge(mutation) for mutation in mutations]
        self._sequence_next = group.sequence
        try:
            if group.buffers:
                volume.write(group.buffers, group.length)
            self._index.apply(group.finish())
        except BaseException:
            self.abandon_volume()
            raise
        return outcomes

    def abandon_volume(self) -> None:
        """Nothing is written to the open volume any more."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _volume(self, now_ms: int) -> OpenVolume:
        if self._open is not None and self._open.end >= self._settings.volume_bytes_max:
            self.abandon_volume()
        if self._open is None:
            self._open = self._volumes.create(now_ms=now_ms, sequence_first=self._sequence_next)
        return self._open


class _Group:
    """One group while it is put together."""

    def __init__(
        self,
        *,
        changes: IndexChanges,
        volume: OpenVolume,
        sequence: int,
        now_ms: int,
        settings: VolumeSettings,
    ) -> None:
        self._changes = changes
        self._volume = volume
        self._sequence_first = sequence
        self.sequence = sequence
        self._now_ms = now_ms
        self._settings = settings
        self.buffers: list[BufferView] = []
        self.length = 0

    def finish(self) -> list[tuple[bytes, bytes | None]]:
        if self.buffers:
            self._changes.note_written(
                self._volume.number,
                end=self._volume.end,
                lowest=self._sequence_first,
                highest=self.sequence - 1,
            )
            self._changes.put(NEXT_SEQUENCE, self.sequence.to_bytes(8, "big"))
        return self._changes.take()

    def judge(self, mutation: Mutation) -> Outcome:
        """All of its effects or none."""
        try:
            match mutation:
                case Put():
                    return self._put(mutation)
                case Delete():
                    return self._delete(mutation)
                case ChangeLock():
                    return self._change_lock(mutation)
                case Relocation():
                    self._relocate(mutation)
                    return None
        except SegmentStoreError as error:
            return error

    # --- put -------------------------------------------------------------------------------------

    def _put(self, put: Put) -> IndexRecord:
        changes, key, draft = self._changes, put.key, put.draft
        current = changes.current(key)
        _require(put.condition, key, current)
        if draft.versioned:
            if current is not None:
                changes.keep_as_earlier(key, current)
        else:
            self._replace_unversioned(key, current, bypass_governance=put.bypass_governance)
        inline = draft.inline
        known = None if inline else changes.blob(draft.content_hash)
        brings_blob = draft.size > 0 and known is None
        record = replace(draft, sequence=self.sequence)
        volume, offset, overhead = self._append(
            RecordKind.PUT, key, record, put.content if brings_blob else ()
        )
        if brings_blob and not inline:
            blob_row = BlobRow(volume, offset, offset + overhead, draft.size, 0)
            changes.add_blob(draft.content_hash, blob_row)
        row = ObjectRow(
            volume=volume,
            record_offset=offset,
            record_length=overhead + (draft.size if inline else 0),
            record=record,
            inline=b"".join(put.content) if inline else None,
        )
        changes.set_current(key, row)
        return record

    def _replace_unversioned(
        self, key: bytes, current: ObjectRow | None, *, bypass_governance: bool
    ) -> None:
        """The one version without an id makes place for its successor."""
        if current is None:
            return
        if not current.record.versioned:
            self._require_unlocked(key, current, bypass_governance=bypass_governance)
            self._changes.remove_object(current_key(key), current)
            return
        replaced = self._changes.version(key, "")
        if replaced is not None:
            self._require_unlocked(key, replaced[1], bypass_governance=bypass_governance)
            self._changes.remove_object(*replaced)
        self._changes.keep_as_earlier(key, current)

    # --- delete ----------------------------------------------------------------------------------

    def _delete(self, delete: Delete) -> IndexRecord | None:
        changes, key = self._changes, delete.key
        current = changes.current(key)
        _require(delete.condition, key, current)
        if delete.versioned and delete.version_id is None:
            return self._mark_deleted(key, current, delete.marker_id)
        if delete.version_id is None:
            found = None if current is None else (current_key(key), current)
        else:
            found = changes.version(key, delete.version_id)
        if found is None:
            return None
        row_key, row = found
        self._require_unlocked(key, row, bypass_governance=delete.bypass_governance)
        tombstone = replace(
            _nothing(self._now_ms), sequence=self.sequence, version_id=row.record.version_id
        )
        self._append(RecordKind.TOMBSTONE, key, tombstone, ())
        changes.remove_object(row_key, row)
        if row_key == current_key(key):
            changes.bring_forward(key)
        return row.record

    def _mark_deleted(self, key: bytes, current: ObjectRow | None, marker_id: str) -> IndexRecord:
        marker = replace(
            _nothing(self._now_ms),
            sequence=self.sequence,
            version_id=marker_id,
            versioned=True,
            delete_marker=True,
        )
        if current is not None:
            self._changes.keep_as_earlier(key, current)
        volume, offset, overhead = self._append(RecordKind.PUT, key, marker, ())
        self._changes.set_current(key, ObjectRow(volume, offset, overhead, marker, None))
        return marker

    # --- locks -----------------------------------------------------------------------------------

    def _change_lock(self, change: ChangeLock) -> IndexRecord:
        changes, key = self._changes, change.key
        current = changes.current(key)
        if change.version_id is None:
            found = None if current is None else (current_key(key), current)
        else:
            found = changes.version(key, change.version_id)
        if found is None or found[1].record.delete_marker:
            raise ObjectNotFoundError(f"object does not exist key={key!r}")
        row_key, row = found
        record = row.record
        if change.retention is not None:
            mode, until_ms = change.retention
            self._require_retention_may_change(
                key, record, mode, until_ms, bypass_governance=change.bypass_governance
            )
            record = replace(record, retention_mode=mode, retain_until_ms=until_ms)
        if change.legal_hold is not None:
            record = replace(record, legal_hold=change.legal_hold)
        inline = row.inline
        volume, offset, overhead = self._append(
            RecordKind.CHANGE, key, record, () if not inline else (inline,)
        )
        length = overhead + len(inline or b"")
        changes.replace_object(row_key, row, ObjectRow(volume, offset, length, record, inline))
        return record

    def _require_retention_may_change(
        self,
        key: bytes,
        record: IndexRecord,
        mode: RetentionMode | None,
        until_ms: int,
        *,
        bypass_governance: bool,
    ) -> None:
        if mode is not None and until_ms <= self._now_ms:
            raise InvalidRequestError(f"retention must end in the future until_ms={until_ms}")
        if record.retention_mode is None or self._now_ms >= record.retain_until_ms:
            return
        weaker = until_ms < record.retain_until_ms or mode is not record.retention_mode
        if record.retention_mode is RetentionMode.COMPLIANCE and weaker:
            raise ObjectLockedError(f"compliance retention can only be extended key={key!r}")
        if weaker and not bypass_governance:
            raise ObjectLockedError(
                f"governance retention is shortened only by whoever may bypass it key={key!r}"
            )

    def _require_unlocked(self, key: bytes, row: ObjectRow, *, bypass_governance: bool) -> None:
        if row.record.is_locked(self._now_ms, bypass_governance=bypass_governance):
            raise ObjectLockedError(
                f"object is under retention or legal hold key={key!r} version={row.record.version_id!r}"
            )

    # --- compaction ------------------------------------------------------------------------------

    def _relocate(self, move: Relocation) -> None:
        if move.old is not None and move.new is not None:
            found = self._changes.version(move.key, move.old.record.version_id)
            if found is not None and _same_place(found[1], move.old):
                self._changes.replace_object(found[0], found[1], move.new)
        if move.old_blob is not None and move.new_blob is not None:
            blob = self._changes.blob(move.content_hash)
            if blob is not None and _same_place(blob, move.old_blob):
                self._changes.move_blob(move.content_hash, blob, move.new_blob)

    # --- records ---------------------------------------------------------------------------------

    def _append(
        self, kind: RecordKind, key: bytes, record: IndexRecord, blob: Sequence[BufferView]
    ) -> tuple[int, int, int]:
        """Volume, offset of the record, and its length before the blob."""
        encoded = encode_index_record(record)
        offset = self._volume.end + self.length
        buffers = encode_record(
            secret=self._volume.secret,
            kind=kind,
            timestamp_ms=self._now_ms,
            sequence=self.sequence,
            key=key,
            index_record=encoded,
            blob=blob,
        )
        self.buffers += buffers
        self.length += sum(len(buffer) for buffer in buffers)
        self.sequence += 1
        return self._volume.number, offset, RECORD_HEADER_BYTES + len(key) + len(encoded)


def _require(condition: Condition, key: bytes, current: ObjectRow | None) -> None:
    present = current is not None and not current.record.delete_marker
    if condition.absent and present:
        raise ObjectExistsError(f"object exists already key={key!r}")
    if condition.etag is None and condition.sequence is None:
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


def _same_place(one: ObjectRow | BlobRow, other: ObjectRow | BlobRow) -> bool:
    return (one.volume, one.record_offset) == (other.volume, other.record_offset)


def _nothing(now_ms: int) -> IndexRecord:
    return IndexRecord(
        size=0, sequence=0, content_hash=bytes(32), etag="", created_ms=now_ms, piece_bytes=0
    )
