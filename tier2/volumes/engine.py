"""VolumeEngine: objects by key, versions, locks; everything durable in volumes and found by the index.

Invariants:

- A verb returns when its change is synced and indexed; a read sees every change whose verb has returned.
- Every byte that is handed out was checked: whole objects by all their pieces, ranges by the pieces they touch. Only
  a caller with checksums of its own inside an object (chunks, SSTs) may ask for a part unchecked.

start() first, close() last, after every other call has ended.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from functools import partial
from typing import ParamSpec, TypeVar, cast

from segmentstore.contracts.errors import (
    InvalidRequestError,
    ObjectNotFoundError,
    StorageError,
    StorageUnavailableError,
)
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.cancellation import finish_despite_cancellation
from segmentstore.runtime.clock import WallClock
from tier2.volumes.compaction import CompactionSummary, Compactor
from tier2.volumes.engine_failure import EngineFailure
from tier2.volumes.index import BlobRow
from tier2.volumes.index_database import BufferedIndex
from tier2.volumes.mutations import (
    ChangeLock,
    Delete,
    Put,
    SmallPut,
    UnhashedPut,
    check_date,
    check_key,
    check_texts,
    draft_of,
    is_plain,
)
from tier2.volumes.objects import (
    ALWAYS,
    Condition,
    ContentDigest,
    Description,
    IndexRecord,
    KeyVersions,
    ListedObject,
    RetentionMode,
    StoredObject,
    digest,
    digest_by_name,
    digest_piece,
)
from tier2.volumes.reader import ObjectReader, OpenObject, ReadQueue, ReadRequest
from tier2.volumes.scrub import VolumeScrubber
from tier2.volumes.settings import VolumeSettings
from tier2.volumes.verification import Verification, VerificationReport, advance
from tier2.volumes.volume_files import VolumeFiles, storage_error_of
from tier2.volumes.write_queue import WriteQueue

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_SMALL_BYTES_MAX = 8192
"""Smaller contents are hashed faster than a thread is reached."""
_DAMAGES_TOLD_MAX = 10
_VERIFIED_PIECE_BYTES = 16 << 20
_VERIFIED_PIECE_STEPS = 10_000
"""So much of a verification is one call in the executor, which runs to its end."""
_ALL_VERSIONS = 1 << 31
_HASH_IN_LINE_BYTES_MAX = 256 << 10
"""Smaller contents are hashed faster than the disk syncs: those behind them in the queue may wait for it."""


class VolumeEngine:
    """The verbs. Its parts are opened by `opening.open_engine`."""

    def __init__(
        self,
        *,
        index: BufferedIndex,
        volumes: VolumeFiles,
        queue: WriteQueue,
        compactor: Compactor | None,
        scrubber: VolumeScrubber | None = None,
        executor: Executor | None,
        readers: Executor | None,
        wall_clock: WallClock,
        settings: VolumeSettings,
        failure: EngineFailure,
    ) -> None:
        """`readers`: where objects are looked up and read; a caller waits for each of these."""
        self._index = index
        self._volumes = volumes
        self._lookups = ObjectReader(index=index, volumes=volumes)
        self._read_queue = ReadQueue(lookups=self._lookups, executor=readers, failure=failure)
        self._failure = failure
        self._queue = queue
        self._compactor = compactor
        self.scrubber = scrubber
        """Compares volumes and index, where this process writes them."""
        self._executor = executor
        self._wall_clock = wall_clock
        self._settings = settings
        self._small_bytes_max = min(_SMALL_BYTES_MAX, settings.piece_bytes)

    @property
    def piece_bytes(self) -> int:
        """Of the stretches of an object that have checksums of their own (`ContentDigest`)."""
        return self._settings.piece_bytes

    @property
    def failure(self) -> Exception | None:
        """Why the engine stopped by itself: a bug. It answers nothing any more then."""
        return self._failure.cause

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
        unique: bool = False,
    ) -> IndexRecord:
        """Store a version. With a version id the earlier ones stay; without, the one without an id is replaced.

        `unique`: the key is never given to other bytes. All but small contents are summed then, but neither hashed nor
        shared; long ones go past the system's cache.

        Raises ObjectExistsError, ObjectChangedError (conditions), ObjectLockedError, StorageFullError, StorageError
        (outcome unknown).
        """
        size = sum(map(len, content))
        # By position here and below: names cost twice as much, for each put.
        if (
            0 < size <= self._small_bytes_max
            and condition is ALWAYS
            and version_id is None
            and retention is None
            and not (metadata or legal_hold or bypass_governance)
            and is_plain(content_type, etag)
        ):
            check_key(key)
            return await self._put(SmallPut(key, b"".join(content), content_type, etag, size))
        description = Description(
            content_type, metadata or {}, etag, version_id, retention, legal_hold
        )
        if size <= self._small_bytes_max:
            check_key(key)
            whole = b"".join(content)
            now_ms, settings = self._wall_clock.now_ms(), self._settings
            draft = draft_of(digest_piece(whole), description, now_ms=now_ms, settings=settings)
            return await self._put(Put(key, draft, (whole,), condition, bypass_governance))
        if size <= _HASH_IN_LINE_BYTES_MAX:
            check_key(key)
            return await self._put(
                UnhashedPut(key, content, size, description, condition, bypass_governance, unique)
            )
        look = partial(digest_by_name, key) if unique else digest
        found = await self._run(look, content, self._settings.piece_bytes)
        return await self.put_digested(
            key,
            content,
            found,
            description,
            condition=condition,
            bypass_governance=bypass_governance,
            unique=unique,
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
        unique: bool = False,
    ) -> IndexRecord:
        """As `put`, of bytes whose digest is known; `stored`: they are synced in a volume already."""
        check_key(key)
        draft = draft_of(
            found, description, now_ms=self._wall_clock.now_ms(), settings=self._settings
        )
        return await self._put(
            Put(key, draft, content, condition, bypass_governance, stored, unique)
        )

    async def copy(
        self,
        key: bytes,
        source_key: bytes,
        source: IndexRecord,
        description: Description,
        *,
        condition: Condition = ALWAYS,
    ) -> IndexRecord:
        """As `put`, of the bytes of a version, which the volumes have: they are read and checked, piece by piece.

        Raises ObjectNotFoundError if no version has these bytes any more, CorruptedDataError if they are damaged.
        """
        check_key(key)
        content: Sequence[BufferView] = ()
        found = ContentDigest(source.size, source.content_hash, source.pieces)
        if source.inline:
            stored = await self.get(source_key, version_id=source.version_id)
            if stored.record.sequence != source.sequence:
                raise ObjectNotFoundError(f"the source of a copy is gone key={source_key!r}")
            content = (stored.content,)
            found = digest(content, self._settings.piece_bytes)
        now_ms = self._wall_clock.now_ms()
        draft = draft_of(found, description, now_ms=now_ms, settings=self._settings)
        if not source.inline:
            # It may have been stored under other settings.
            draft.piece_bytes, draft.inline = source.piece_bytes, False
        return await self._put(Put(key, draft, content, condition))

    def _put(self, put: Put | UnhashedPut | SmallPut) -> "Awaitable[IndexRecord]":
        """Joins the queue at once, if there is room."""
        made: Awaitable[IndexRecord | None] = self._queue.submit_at_once(put) or self._queue.submit(
            put
        )
        return cast("Awaitable[IndexRecord]", made)  # a put that was not refused has a record

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
        return await self._queue.submit(
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
        return _made(
            await self._queue.submit(
                ChangeLock(key, version_id, retention, legal_hold, bypass_governance)
            )
        )

    # --- reading ---------------------------------------------------------------------------------

    async def head(self, key: bytes, *, version_id: str | None = None) -> IndexRecord:
        """Raises ObjectNotFoundError, also if the current version is a delete marker and none is named."""
        check_key(key)
        return (await self._read_queue.read(ReadRequest(key, version_id, 0, 0))).record

    async def get(self, key: bytes, *, version_id: str | None = None) -> StoredObject:
        """The whole object, checked. Raises ObjectNotFoundError, CorruptedDataError, StorageError."""
        check_key(key)
        return await self._read_queue.read(ReadRequest(key, version_id))

    async def get_range(
        self,
        key: bytes,
        start: int,
        length: int,
        *,
        version_id: str | None = None,
        checked: bool = True,
    ) -> StoredObject:
        """The bytes [start, start + length), or fewer at the end; every piece they touch is checked.

        Without `checked` a part of an object is not, and nothing beside it is read: for bytes that carry checksums.
        """
        check_key(key)
        if start < 0 or length < 0:
            raise InvalidRequestError(f"bad range start={start} length={length}")
        return await self._read_queue.read(ReadRequest(key, version_id, start, length, checked))

    @asynccontextmanager
    async def opened(
        self, key: bytes, *, version_id: str | None = None
    ) -> AsyncIterator["OpenedObject"]:
        """A version that can be read to its end while the block lasts, whatever takes its place meanwhile.

        Raises ObjectNotFoundError, CorruptedDataError, StorageError.
        """
        check_key(key)
        opening = self._read_queue.call(partial(self._lookups.open, ReadRequest(key, version_id)))
        try:
            found = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_opened)
            raise
        try:
            yield OpenedObject(found, self._read_queue)
        finally:
            found.close()

    async def list(
        self, prefix: bytes, *, start_after: bytes = b"", limit: int, markers: bool = False
    ) -> Sequence[ListedObject]:
        """Current versions in key order; delete markers only with `markers`.

        `start_after` need not be a key: a prefix followed by b"\\xff" passes over all that share it.
        """
        return await self._read_queue.call(
            partial(self._lookups.list, prefix, start_after, limit, markers=markers)
        )

    async def list_all_versions(
        self,
        prefix: bytes,
        *,
        start_at: bytes = b"",
        limit: int,
        versions_max: int,
        behind: str | None = None,
    ) -> Sequence[KeyVersions]:
        """Keys with that prefix, from `start_at` on, in their order, and at most so many versions of each.

        Delete markers are among them. `behind`: a version id of the key `start_at`, of which those before it are left
        out, if it is there still.
        """
        return await self._read_queue.call(
            partial(
                self._lookups.list_versions,
                prefix,
                start_at,
                limit,
                versions_max=versions_max,
                behind=behind,
            )
        )

    async def list_versions(self, key: bytes) -> Sequence[IndexRecord]:
        """All versions of a key, newest first, markers included."""
        check_key(key)
        found = await self.list_all_versions(key, start_at=key, limit=1, versions_max=_ALL_VERSIONS)
        return found[0].records if found and found[0].key == key else ()

    # --- care ------------------------------------------------------------------------------------

    async def compact(self) -> CompactionSummary:
        """Give back what can be given back now, without a limit of speed. Raises StorageError."""
        if self._compactor is None:
            raise StorageUnavailableError("the volumes are open for reading only", state="in_use")
        try:
            return await self._compactor.compact()
        except OSError as error:
            raise StorageError(f"the volumes cannot be compacted: {error}") from error

    def complaints(self) -> Sequence[str]:
        """What was found damaged, and which background work has stopped: sentences for `/health`."""
        scrubber, compactor = self.scrubber, self._compactor
        damages = [] if scrubber is None else scrubber.findings
        found = [f"the volumes of Tier 2 are damaged: {one}" for one in damages[:_DAMAGES_TOLD_MAX]]
        stopped = [one.complaint for one in (compactor, scrubber) if one is not None]
        return [*found, *filter(None, stopped)]

    async def verify(self, *, deep: bool) -> VerificationReport:
        """Volumes against the index; `deep` reads every byte. Raises StorageError only if nothing can be said.

        Its caller may be cancelled: it takes long, and ends behind a piece, before files and index are closed.
        """
        verification = Verification(index=self._index, volumes=self._volumes)
        steps = verification.steps(deep)
        piece = partial(
            advance, steps, bytes_max=_VERIFIED_PIECE_BYTES, steps_max=_VERIFIED_PIECE_STEPS
        )
        try:
            has_ended = False
            while not has_ended:
                _, has_ended = await finish_despite_cancellation(self._run(piece))
        finally:
            await finish_despite_cancellation(self._run(steps.close))
        return verification.report

    async def check(self) -> None:
        """All invariants of index.py, for tests: nothing may be under way. Raises AssertionError."""
        report = await self.verify(deep=True)
        assert not report.problems, "\n".join(report.problems)

    async def close(self) -> None:
        """Finish what is in queue, close the volume and the index."""
        if self.scrubber is not None:
            await self.scrubber.close()
        if self._compactor is not None:
            await self._compactor.close()
        try:
            await self._queue.close()
            await self._run(self._index.sync)
        finally:
            await self._read_queue.close()
            await self._run(self._index.close)

    async def _run(
        self,
        call: Callable[_Arguments, _Result],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _Result:
        return await _run_in(self._executor, partial(call, *args, **kwargs))


class OpenedObject:
    """See `VolumeEngine.opened`."""

    def __init__(self, found: OpenObject, queue: ReadQueue) -> None:
        self._found = found
        self._queue = queue

    @property
    def record(self) -> IndexRecord:
        return self._found.record

    async def read(self, start: int, length: int) -> bytes:
        """The bytes [start, start + length), or fewer at the end, checked; one call after the other.

        Raises CorruptedDataError, StorageError, and ObjectNotFoundError if bytes that no object has any more had to
        make room on a full disk.
        """
        reading = self._queue.call(partial(self._found.read, start, length))
        return await finish_despite_cancellation(reading)


def _close_opened(opening: "asyncio.Future[OpenObject]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _made(record: IndexRecord | None) -> IndexRecord:
    assert record is not None, "a change that was not refused has a record"
    return record


async def _run_in(executor: Executor | None, call: Callable[[], _Result]) -> _Result:
    try:
        return await asyncio.get_running_loop().run_in_executor(executor, call)
    except OSError as error:
        raise storage_error_of(error, "the volumes cannot be read") from error
