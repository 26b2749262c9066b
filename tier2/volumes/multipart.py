"""Uploads in parts, until they are completed into one object, given up, or too old.

Invariants:

- What was acknowledged, an upload or a part, outlives the process (upload_files), for `multipart_seconds_max`.
- A part that is sent again replaces the former one; a completion joins the parts that were there when it began.
- A completion that its caller gives up goes on to its end, and the caller waits for that if it has a volume of its own.
- One completion of an upload at a time; an upload leaves when its object is stored, or when it is given up. One whose
  object is stored, but that was cut off before it left, leaves at the next start: it never becomes a second object.
- What an upload became is known as long as it is there under its key, by the id in its index record (upload_record).
- Memory: an upload up to `multipart_memory_bytes_max` is put like other objects, a few at a time; a larger one is read
  slice by slice, for its digest and again into a volume of its own, and checked there by what was digested.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from random import Random
from typing import ParamSpec, TypeVar

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import (
    CorruptedDataError,
    InvalidRequestError,
    ObjectNotFoundError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
)
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.clock import WallClock
from tier2.volumes.blob_record import RecordHeader, RecordKind, seed_of
from tier2.volumes.content import ContentDigest, digest
from tier2.volumes.description import Description, check_key, draft_of
from tier2.volumes.engine import VolumeEngine
from tier2.volumes.group_commit import NO_SPACE
from tier2.volumes.index_record import IndexRecord, encode_index_record
from tier2.volumes.index_rows import BlobRow
from tier2.volumes.mutations import ALWAYS, Condition
from tier2.volumes.part_files import Part
from tier2.volumes.record_copy import write_record
from tier2.volumes.settings import VolumeSettings
from tier2.volumes.upload_files import UploadFiles
from tier2.volumes.upload_record import UPLOAD_ID, Upload, UploadRecord
from tier2.volumes.volume_files import OpenVolume, VolumeFiles

_LOGGER = logging.getLogger(__name__)
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

PARTS_MAX = 10_000
_JOINED_IN_MEMORY_MAX = 4
"""Uploads that are put like other objects at the same time."""


class UploadNotFoundError(ObjectNotFoundError):
    """It was never begun, or is completed, given up, or too old."""


class MultipartUploads:
    """The uploads of one engine; all of its callers use the same object. start() first."""

    def __init__(
        self,
        upload_files: UploadFiles,
        *,
        engine: VolumeEngine,
        volumes: VolumeFiles,
        sequence_applied: Callable[[], int],
        executor: Executor | None,
        wall_clock: WallClock,
        random: Random,
        settings: VolumeSettings,
    ) -> None:
        self._files = upload_files
        self._engine = engine
        self._volumes = volumes
        self._sequence_applied = sequence_applied
        self._executor = executor
        self._wall_clock = wall_clock
        self._random = random
        self._settings = settings
        self._uploads: dict[str, Upload] = {}
        """In the order of their beginnings."""
        self._in_memory = asyncio.Semaphore(_JOINED_IN_MEMORY_MAX)

    async def start(self) -> None:
        """Find what was begun before. Raises StorageError."""
        self._uploads = {one.upload_id: one for one in await self._run(self._files.load)}
        await self._end_completed_ones()
        await self._end_old_ones()

    # --- beginning and parts ---------------------------------------------------------------------

    async def begin(
        self, key: bytes, description: Description, *, notes: dict[str, str] | None = None
    ) -> Upload:
        """`description` without etag and version id: those are given at the end; `notes` are kept for the caller.

        Raises InvalidRequestError, StorageUnavailableError at the limit, StorageError.
        """
        check_key(key)
        draft_of(ContentDigest(0, bytes(32), ()), description, now_ms=0, settings=self._settings)
        await self._end_old_ones()
        if len(self._uploads) >= self._settings.multipart_uploads_max:
            raise StorageUnavailableError(
                f"too many uploads are not completed count={len(self._uploads)}", state="busy"
            )
        record = UploadRecord(key, self._wall_clock.now_ms(), description, notes or {})
        upload = Upload(self._random.randbytes(16).hex(), record)
        await self._run(self._files.create, upload)
        self._uploads[upload.upload_id] = upload
        return upload

    async def put_part(
        self,
        upload: Upload,
        number: int,
        content: Sequence[BufferView],
        *,
        md5: str | None = None,
        checksum: tuple[str, str] | None = None,
    ) -> Part:
        """`md5` in hexadecimal digits, where it is known; `checksum` is kept. What is stored is what `content` was.

        Raises InvalidRequestError, UploadNotFoundError, StorageFullError, StorageError.
        """
        if not 1 <= number <= PARTS_MAX:
            raise InvalidRequestError(f"part numbers are 1 to {PARTS_MAX} {number=}")
        if upload.upload_id not in self._uploads:
            raise _gone(upload.upload_id)
        former = upload.parts.get(number)
        # The next start may find both: the later one has to be told by its time, whatever the clock does.
        stored_ms = max(self._wall_clock.now_ms(), former.stored_ms + 1 if former else 0)
        temporary = self._random.randbytes(8).hex()

        def write() -> Part:
            part = _part_of(number, content, md5, stored_ms, checksum)
            self._files.write_part(upload.upload_id, part, content, temporary=temporary)
            return part

        part = await self._run(write)
        if upload.upload_id not in self._uploads:
            raise _gone(upload.upload_id)
        former = upload.parts.get(number)
        upload.parts[number] = part
        # A completion that has begun may be joining the former one.
        if former is not None and former != part and not upload.completing:
            await self._run(self._files.remove_part, upload.upload_id, former)
        return part

    # --- looking ---------------------------------------------------------------------------------

    def get(self, upload_id: str) -> Upload:
        """Raises UploadNotFoundError."""
        upload = self._uploads.get(upload_id)
        if upload is None:
            raise _gone(upload_id)
        return upload

    def with_prefix(self, prefix: bytes) -> list[Upload]:
        """By key, then in the order of their beginnings. O(uploads)."""
        found = [one for one in self._uploads.values() if one.record.key.startswith(prefix)]
        return sorted(found, key=lambda one: (one.record.key, one.record.begun_ms, one.upload_id))

    async def completed(self, key: bytes, upload_id: str) -> IndexRecord | None:
        """What an upload became, if it is still there: the version that has the upload's id, or the one without an id.

        Raises InvalidRequestError, StorageError.
        """
        for version_id in (upload_id, ""):
            try:
                record = await self._engine.head(key, version_id=version_id)
            except ObjectNotFoundError:
                continue
            if record.metadata.get(UPLOAD_ID) == upload_id:
                return record
        return None

    # --- the end ---------------------------------------------------------------------------------

    async def abort(self, upload: Upload) -> None:
        """Raises InvalidRequestError while it is completed, StorageError."""
        if upload.completing:
            raise InvalidRequestError(f"an upload is being completed id={upload.upload_id}")
        await self._forget(upload)

    async def complete(
        self,
        upload: Upload,
        parts: Sequence[Part],
        description: Description,
        *,
        condition: Condition = ALWAYS,
        bypass_governance: bool = False,
    ) -> IndexRecord:
        """One object of these parts, in ascending order, described as a whole. If it fails the upload is still there.

        A version id, if it gets one, is that of the upload: `completed` finds it by that.

        Raises UploadNotFoundError, InvalidRequestError (parts; while it is completed already), CorruptedDataError, and
        what `VolumeEngine.put` raises.
        """
        if upload.upload_id not in self._uploads:
            raise _gone(upload.upload_id)
        if upload.completing:
            raise InvalidRequestError(f"an upload is being completed id={upload.upload_id}")
        if description.version_id not in {None, upload.upload_id}:
            raise InvalidRequestError(
                f"a version has the id of its upload {description.version_id=}"
            )
        numbers = [part.number for part in parts]
        if not parts or numbers != sorted(set(numbers)):
            raise InvalidRequestError("parts are named in ascending order, each once")
        if any(upload.parts.get(part.number) != part for part in parts):
            raise InvalidRequestError(f"a part is not there, or another one {numbers=}")
        put = partial(
            self._engine.put_digested,
            upload.record.key,
            condition=condition,
            bypass_governance=bypass_governance,
        )
        description = replace(
            description, metadata={**description.metadata, UPLOAD_ID: upload.upload_id}
        )
        upload.completing = True
        try:
            if sum(part.length for part in parts) <= self._settings.multipart_memory_bytes_max:
                async with self._in_memory:
                    content, found = await self._run(self._join, upload, parts)
                    record = await put(content, found, description)
            else:
                record = await self._put_volume(upload, parts, description, put)
        finally:
            upload.completing = False
        await self._forget(upload)
        return record

    def _join(self, upload: Upload, parts: Sequence[Part]) -> tuple[list[bytes], ContentDigest]:
        content = list(self._files.slices(upload.upload_id, parts))
        return content, digest(content, self._settings.piece_bytes)

    async def _put_volume(
        self,
        upload: Upload,
        parts: Sequence[Part],
        description: Description,
        put: Callable[..., Coroutine[object, object, IndexRecord]],
    ) -> IndexRecord:
        """Whoever gives it up waits for its end: the volume is neither left open, nor given up under a put in line."""
        making = asyncio.create_task(
            self._make_volume(upload, parts, description, put), name="volumes: a large upload"
        )
        given_up: asyncio.CancelledError | None = None
        while not making.done():
            try:
                await asyncio.gather(asyncio.shield(making), return_exceptions=True)
            except asyncio.CancelledError as error:
                given_up = error
        if given_up is None or making.cancelled():
            return making.result()
        failure = making.exception()
        if failure is not None:
            _LOGGER.warning("an upload that nobody waits for any more failed: %s", failure)
        raise given_up

    async def _make_volume(
        self,
        upload: Upload,
        parts: Sequence[Part],
        description: Description,
        put: Callable[..., Coroutine[object, object, IndexRecord]],
    ) -> IndexRecord:
        volume, found, stored = await self._run(self._write_volume, upload, parts)
        try:
            record = await put((), found, description, stored=stored)
        except asyncio.CancelledError:
            # The loop ends. The put may still be in line: compaction must not have the volume before the next start.
            volume.close()
            raise
        except BaseException:
            await self._run(self._volumes.release, volume)
            raise
        await self._run(self._volumes.release, volume)
        return record

    def _write_volume(
        self, upload: Upload, parts: Sequence[Part]
    ) -> tuple[OpenVolume, ContentDigest, BlobRow]:
        """The bytes in a volume of their own, synced. In the executor."""
        slices = partial(self._files.slices, upload.upload_id, parts)
        found = digest(slices(), self._settings.piece_bytes)
        now_ms = self._wall_clock.now_ms()
        draft = draft_of(found, Description(), now_ms=now_ms, settings=self._settings)
        front = encode_index_record(draft)
        volume = self._volumes.create(now_ms=now_ms, sequence_first=self._sequence_applied())
        try:
            crc = crc32_of(front, seed_of(volume.secret))
            for piece in slices():
                crc = crc32_of(piece, crc)
            header = RecordHeader(
                crc=crc,
                timestamp_ms=now_ms,
                key_length=0,
                blob_length=found.size,
                kind=RecordKind.BLOB,
                index_record_length=len(front),
                sequence=0,
            )
            offset = volume.end
            write_record(volume, header, front, slices())
            volume.sync()
        except BaseException:
            self._volumes.release(volume)
            raise
        blob_offset = offset + header.blob_offset
        return volume, found, BlobRow(volume.number, offset, blob_offset, found.size, 0)

    async def _end_completed_ones(self) -> None:
        for upload in list(self._uploads.values()):
            try:
                record = await self.completed(upload.record.key, upload.upload_id)
            except CorruptedDataError as error:
                _LOGGER.error(
                    "cannot tell whether an upload is done: %s id=%s", error, upload.upload_id
                )
                continue
            if record is not None:
                await self._forget(upload)

    async def _end_old_ones(self) -> None:
        oldest_ms = self._wall_clock.now_ms() - int(self._settings.multipart_seconds_max * 1000)
        old = [one for one in self._uploads.values() if one.record.begun_ms < oldest_ms]
        for upload in old:
            if not upload.completing:
                await self._forget(upload)

    async def _forget(self, upload: Upload) -> None:
        if self._uploads.pop(upload.upload_id, None) is not None:
            await self._run(self._files.remove, upload.upload_id)

    async def _run(
        self,
        call: Callable[_Arguments, _Result],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _Result:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._executor, partial(call, *args, **kwargs))
        except FileNotFoundError as error:
            raise UploadNotFoundError(f"an upload is gone: {error}") from error
        except OSError as error:
            kind = StorageFullError if error.errno in NO_SPACE else StorageError
            raise kind(f"an upload failed: {error}") from error


def _part_of(
    number: int,
    content: Sequence[BufferView],
    md5: str | None,
    stored_ms: int,
    checksum: tuple[str, str] | None,
) -> Part:
    crc32 = length = 0
    whole = hashlib.md5(usedforsecurity=False)
    for buffer in content:
        crc32 = crc32_of(buffer, crc32)
        length += len(buffer)
        if md5 is None:
            whole.update(buffer)
    return Part(number, length, md5 or whole.hexdigest(), crc32, stored_ms, checksum)


def _gone(upload_id: str) -> UploadNotFoundError:
    return UploadNotFoundError(f"no such upload {upload_id=}")
