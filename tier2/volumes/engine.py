"""VolumeEngine: objects by key, versions, locks; everything durable in volumes and found by the index.

Invariants:

- A verb returns when its change is synced and indexed; a read sees every change whose verb has returned.
- Every byte that is handed out was checked: whole objects by all their pieces, ranges by the pieces they touch.
- A record that compaction moves between look-up and read is looked up again. Several looks into the index that have to
  agree are taken again if it changed between them.

start() first, close() last, after every other call has ended.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec, TypeVar

from segmentstore.contracts.errors import (
    CorruptedDataError,
    InvalidRequestError,
    ObjectNotFoundError,
    StorageError,
    StorageUnavailableError,
)
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.clock import WallClock
from tier2.volumes.blob_record import KEY_BYTES_MAX
from tier2.volumes.commit_line import CommitLine
from tier2.volumes.compaction import CompactionSummary, Compactor
from tier2.volumes.content import ContentDigest, check_pieces, digest, digest_piece
from tier2.volumes.description import Description, check_date, check_key, check_texts, draft_of
from tier2.volumes.index_changes import IndexChanges
from tier2.volumes.index_database import IndexDatabase
from tier2.volumes.index_record import IndexRecord, RetentionMode
from tier2.volumes.index_rows import (
    CURRENT,
    BlobRow,
    ObjectRow,
    blob_key,
    current_key,
    decode_blob_row,
    decode_object_row,
)
from tier2.volumes.mutations import ALWAYS, ChangeLock, Condition, Delete, Put
from tier2.volumes.settings import VolumeSettings
from tier2.volumes.verification import Verification, VerificationReport
from tier2.volumes.volume_files import VolumeFiles

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_LOOKUPS_MAX = 4
_HASH_ON_LOOP_BYTES_MAX = 8192
"""Smaller contents are hashed faster than a thread is reached."""
_AWAITED_BYTES_MAX = 256 << 10
"""Smaller contents are hashed faster than the disk syncs: a group waits for those that are being hashed."""


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


class VolumeEngine:
    """The verbs. Its parts are opened by `opening.open_engine`."""

    def __init__(
        self,
        *,
        index: IndexDatabase,
        volumes: VolumeFiles,
        line: CommitLine,
        compactor: Compactor | None,
        executor: Executor | None,
        wall_clock: WallClock,
        settings: VolumeSettings,
    ) -> None:
        self._index = index
        self._volumes = volumes
        self._line = line
        self._compactor = compactor
        self._executor = executor
        self._wall_clock = wall_clock
        self._settings = settings

    @property
    def index(self) -> IndexDatabase:
        """As it stands, with what is not yet in the database: for those who scan keys with all their versions."""
        return self._index

    # --- changes ---------------------------------------------------------------------------------

    async def put(
        self,
        key: bytes,
        content: Sequence[BufferView],
        *,
        content_type: str = "",
        metadata: Mapping[str, str] | None = None,
        etag: str = "",
        version_id: str | None = None,
        retention: tuple[RetentionMode, int] | None = None,
        legal_hold: bool = False,
        condition: Condition = ALWAYS,
        bypass_governance: bool = False,
    ) -> IndexRecord:
        """Store a version. With a version id the earlier ones stay; without, the one without an id is replaced.

        Raises ObjectExistsError, ObjectChangedError (conditions), ObjectLockedError, StorageFullError, StorageError
        (outcome unknown).
        """
        description = Description(
            content_type=content_type,
            metadata=metadata or {},
            etag=etag,
            version_id=version_id,
            retention=retention,
            legal_hold=legal_hold,
        )
        size = sum(len(buffer) for buffer in content)
        if size <= min(_HASH_ON_LOOP_BYTES_MAX, self._settings.piece_bytes):
            whole = b"".join(content)
            content, found = [whole], digest_piece(whole)
        elif size <= _AWAITED_BYTES_MAX:
            with self._line.expect_one():
                found = await self._run(digest, content, self._settings.piece_bytes)
        else:
            found = await self._run(digest, content, self._settings.piece_bytes)
        return await self.put_digested(
            key,
            content,
            found,
            description,
            condition=condition,
            bypass_governance=bypass_governance,
        )

    async def put_digested(
        self,
        key: bytes,
        content: Sequence[BufferView],
        found: ContentDigest,
        description: Description,
        *,
        condition: Condition = ALWAYS,
        bypass_governance: bool = False,
        stored: BlobRow | None = None,
    ) -> IndexRecord:
        """As `put`, of bytes whose digest is known; `stored`: they are synced in a volume already."""
        check_key(key)
        draft = draft_of(
            found, description, now_ms=self._wall_clock.now_ms(), settings=self._settings
        )
        put = Put(key, draft, content, condition, bypass_governance, stored)
        record = await self._line.submit(put)
        assert record is not None, "a put that was not refused has a record"
        return record

    async def delete(
        self,
        key: bytes,
        *,
        version_id: str | None = None,
        marker_id: str | None = None,
        condition: Condition = ALWAYS,
        bypass_governance: bool = False,
    ) -> IndexRecord | None:
        """Remove the current version, or the one named; with `marker_id` put a delete marker of that id on top instead.

        The marker of the empty id takes the place of the version without an id, as where versioning is suspended.

        The record that was removed, or the marker; None if there was nothing. Raises ObjectLockedError.
        """
        check_key(key)
        check_texts(version_id or "", marker_id or "")
        return await self._line.submit(
            Delete(
                key,
                version_id=version_id,
                marker_id=marker_id,
                condition=condition,
                bypass_governance=bypass_governance,
            )
        )

    async def change_lock(
        self,
        key: bytes,
        *,
        version_id: str | None = None,
        retention: tuple[RetentionMode | None, int] | None = None,
        legal_hold: bool | None = None,
        bypass_governance: bool = False,
    ) -> IndexRecord:
        """Other retention or legal hold. Raises ObjectNotFoundError, ObjectLockedError, InvalidRequestError."""
        check_key(key)
        check_texts(version_id or "")
        if retention is not None:
            check_date(retention[1])
        record = await self._line.submit(
            ChangeLock(key, version_id, retention, legal_hold, bypass_governance)
        )
        assert record is not None, "a change that was not refused has a record"
        return record

    # --- reading ---------------------------------------------------------------------------------

    async def head(self, key: bytes, *, version_id: str | None = None) -> IndexRecord:
        """Raises ObjectNotFoundError, also if the current version is a delete marker and none is named."""
        check_key(key)
        return (await self._run(self._find, key, version_id)).record

    async def get(self, key: bytes, *, version_id: str | None = None) -> StoredObject:
        """The whole object, checked. Raises ObjectNotFoundError, CorruptedDataError, StorageError."""
        check_key(key)
        return await self._run(self._read, key, version_id, 0, None)

    async def get_range(
        self, key: bytes, start: int, length: int, *, version_id: str | None = None
    ) -> StoredObject:
        """The bytes [start, start + length), or fewer at the end; every piece they touch is checked."""
        check_key(key)
        if start < 0 or length < 0:
            raise InvalidRequestError(f"bad range start={start} length={length}")
        return await self._run(self._read, key, version_id, start, length)

    async def list(
        self, prefix: bytes, *, start_after: bytes = b"", limit: int, markers: bool = False
    ) -> Sequence[ListedObject]:
        """Current versions in key order; delete markers only with `markers`.

        `start_after` need not be a key: a prefix followed by b"\\xff" passes over all that share it.
        """
        return await self._run(self._list, prefix, start_after, limit, markers=markers)

    async def list_versions(self, key: bytes) -> Sequence[IndexRecord]:
        """All versions of a key, newest first, markers included."""
        check_key(key)
        return await self._run(self._versions, key)

    # --- care ------------------------------------------------------------------------------------

    async def compact(self) -> CompactionSummary:
        """Give back what can be given back now, without a limit of speed. Raises StorageError."""
        if self._compactor is None:
            raise StorageUnavailableError("the volumes are open for reading only", state="in_use")
        try:
            return await self._compactor.compact()
        except OSError as error:
            raise StorageError(f"the volumes cannot be compacted: {error}") from error

    async def verify(self, *, deep: bool) -> VerificationReport:
        """Volumes against the index; `deep` reads every byte. Raises StorageError only if nothing can be said."""
        return await self._run(Verification(index=self._index, volumes=self._volumes).run, deep)

    async def check(self) -> None:
        """All invariants of index_rows, for tests: nothing may be under way. Raises AssertionError."""
        report = await self.verify(deep=True)
        assert not report.problems, "\n".join(report.problems)

    async def close(self) -> None:
        """Finish what is in line, close the volume and the index."""
        if self._compactor is not None:
            await self._compactor.close()
        try:
            await self._line.close()
            await self._run(self._index.sync)
        finally:
            await self._run(self._index.close)

    # --- in the executor -------------------------------------------------------------------------

    def _find(self, key: bytes, version_id: str | None) -> ObjectRow:
        if version_id is None:
            content = self._index.get(current_key(key))
            row = None if content is None else decode_object_row(content)
        else:
            row = self._settled(key, lambda: IndexChanges(self._index).version(key, version_id))
        if row is None or (row.record.delete_marker and version_id is None):
            raise ObjectNotFoundError(f"object does not exist key={key!r}")
        return row

    def _read(
        self, key: bytes, version_id: str | None, start: int, length: int | None
    ) -> StoredObject:
        why: CorruptedDataError | None = None
        for _ in range(_LOOKUPS_MAX):
            row = self._find(key, version_id)
            record = row.record
            end = record.size if length is None else min(record.size, start + length)
            if start >= end:
                return StoredObject(record, b"")
            if row.inline is not None:
                check_pieces(row.inline, 0, record.pieces, record.piece_bytes)
                return StoredObject(record, row.inline[start:end])
            try:
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

    def _read_blob(self, record: IndexRecord, start: int, end: int) -> bytes:
        """Raises CorruptedDataError, also if the blob has moved between look-up and read."""
        found = self._index.get(blob_key(record.content_hash))
        if found is None:
            raise CorruptedDataError(f"an object has no bytes hash={record.content_hash.hex()}")
        blob = decode_blob_row(found)
        first, last = start // record.piece_bytes, -(-end // record.piece_bytes)
        checked_from = first * record.piece_bytes
        checked_to = min(record.size, last * record.piece_bytes)
        try:
            content = self._volumes.read(
                blob.volume, blob.blob_offset + checked_from, checked_to - checked_from
            )
        except FileNotFoundError as error:
            raise CorruptedDataError(f"a volume is missing volume={blob.volume}") from error
        if len(content) < checked_to - checked_from:
            raise CorruptedDataError(
                f"a volume ends inside an object volume={blob.volume} offset={blob.blob_offset}"
            )
        check_pieces(content, first, record.pieces, record.piece_bytes)
        return content[start - checked_from : end - checked_from]

    def _list(
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

    def _versions(self, key: bytes) -> Sequence[IndexRecord]:
        for _ in range(_LOOKUPS_MAX):
            changes = IndexChanges(self._index)
            current = changes.current(key)
            earlier = [row.record for _, row in changes.earlier_versions(key)]
            if IndexChanges(self._index).current(key) == current:
                return [*([] if current is None else [current.record]), *earlier]
        raise StorageError(f"an object changes faster than it can be read key={key!r}")

    async def _run(
        self,
        call: Callable[_Arguments, _Result],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _Result:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._executor, partial(call, *args, **kwargs))
        except OSError as error:
            raise StorageError(f"the volumes cannot be read: {error}") from error
