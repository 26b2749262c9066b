"""Uploads in parts, until they are completed into one object, given up, or too old.

# Files

    DIR/temp/UPLOAD/upload.json    what is known of the upload from its beginning on: the upload record
    DIR/temp/UPLOAD/part-...       its parts
    DIR/temp/UPLOAD/*.new          a file that is being written
    DIR/temp/UPLOAD/               without an upload record: bytes that are on their way to one object

# The upload record, a JSON object of format 1

    format, key (hexadecimal), begun_ms, content_type, metadata, retention ([mode, until_ms] or null), legal_hold, notes

# The name of a part, which says all about it

    part-NUMBER-LENGTH-MD5-CRC32-MILLISECONDS[-ALGORITHM-CHECKSUM]       numbers decimal, the rest hexadecimal

# Invariants

- A file has its name only when it is synced, and is told to callers only when its name is: what was acknowledged, an
  upload or a part, outlives the process, and power cuts, for `multipart_seconds_max`. The length and CRC32 of a part
  are checked whenever it is read.
- A removal takes the record first: one that was cut short is finished at the next start.
- Bytes that come piece by piece (`incoming`) have no name but `*.new`, or stand in a directory without a record, until
  they are whole and their caller says that they count. What does not come to that leaves no file; after a kill the next
  start removes it.
- A part that is sent again replaces the former one; a completion joins the parts that were there when it began. Parts
  of one number are stored one after the other, each with a later time than the one before it, and one that failed
  leaves no file: a start finds the part that was acknowledged last.
- Every change is one task, from its files to what memory says of it. A caller that gives it up waits for its end; so
  what is shown is what the next start finds.
- The object is there when its one index record is synced, whole, and not before: `put_digested` of engine.py.
- One completion of an upload at a time; an upload leaves when its object is stored, or when it is given up. One whose
  object is stored, but that was cut off before it left, leaves at the next start: it never becomes a second object.
- What an upload became is known as long as it is there under its key: metadata[UPLOAD_ID] of its index record says
  which upload it was, and is durable by the same sync as the object is.
- Memory: bytes up to `multipart_memory_bytes_max` are put like other objects, a few at a time; more are read slice by
  slice into a volume of their own, and checked by the CRC32s of the parts before that counts.
"""

import asyncio
import contextlib
import errno
import hashlib
import json
import logging
import re
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import ParamSpec, TypeVar

from segmentstore.codec.crc32 import crc32_of
from segmentstore.codec.crc_algebra import CRC32, joined_crc
from segmentstore.contracts.errors import (
    CorruptedDataError,
    InvalidRequestError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectLockedError,
    ObjectNotFoundError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
)
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.cancellation import ChangeTasks
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.files import File, FileSystem
from segmentstore.runtime.keyed_locks import KeyedLocks
from tier2.volumes.engine import VolumeEngine
from tier2.volumes.index import BlobRow
from tier2.volumes.mutations import check_key, draft_of
from tier2.volumes.objects import (
    ALWAYS,
    Condition,
    ContentDigest,
    Description,
    IndexRecord,
    RetentionMode,
    UploadNotFoundError,
    digest,
)
from tier2.volumes.settings import VolumeSettings
from tier2.volumes.volume_files import OpenVolume, VolumeFiles, storage_error_of, write_record
from tier2.volumes.volume_format import RecordHeader, RecordKind, encode_index_record, seed_of

_LOGGER = logging.getLogger(__name__)
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

UPLOAD_ID = "upload_id"
"""In the metadata of the object: for the engine's callers to know it again, not for their clients."""
PARTS_MAX = 10_000
_JOINED_IN_MEMORY_MAX = 4
"""Uploads that are put like other objects at the same time."""
_REFUSALS = (ObjectExistsError, ObjectChangedError, ObjectLockedError)
"""Judged before anything was changed; of other failures the index may have the object."""

_UPLOAD_RECORD_FORMAT = 1
_UPLOAD_RECORD_NAME = "upload.json"
_NEW_FILE_SUFFIX = ".new"
_UPLOAD_ID_PATTERN = re.compile(r"[0-9a-f]{32}")
_UPLOAD_RECORD_BYTES_MAX = 32 << 20
_PART_NAME_PATTERN = re.compile(
    r"part-(\d{5})-(\d+)-([0-9a-f]{32})-([0-9a-f]{8})-(\d+)(?:-([a-z0-9]+)-([0-9a-f]+))?"
)
_PART_SLICE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """A part that is there."""

    number: int
    length: int
    md5: str
    """Of its bytes, in hexadecimal digits: its etag."""
    crc32: int
    stored_ms: int
    checksum: tuple[str, str] | None = None
    """Algorithm and value in Base64, if its sender gave one: it is right."""

    def file_name(self) -> str:
        name = f"part-{self.number:05d}-{self.length}-{self.md5}-{self.crc32:08x}-{self.stored_ms}"
        if self.checksum is None:
            return name
        algorithm, value = self.checksum
        return f"{name}-{algorithm}-{b64decode(value).hex()}"


@dataclass(frozen=True, slots=True)
class UploadRecord:
    """What the object will be."""

    key: bytes
    begun_ms: int
    description: Description
    """Without etag and version id: those are given at the end."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """What the caller that began it wants to find again."""


@dataclass(slots=True)
class Upload:
    """One that was begun, with the parts that are there."""

    upload_id: str
    record: UploadRecord
    parts: dict[int, Part] = field(default_factory=dict)
    completing: bool = False
    turn: asyncio.Lock = field(default_factory=asyncio.Lock, compare=False)
    """For callers that wait for a completion under way, to see what came of it."""


class UploadFiles:
    """The directory of uploads. All calls raise OSError, FileNotFoundError of it if the upload is gone.

    Blocking; made for an executor, by several of its threads at once.
    """

    def __init__(self, directory: str, *, files: FileSystem) -> None:
        self._directory = directory
        self._files = files

    def load(self) -> list[Upload]:
        """What was begun before, the oldest first; what was half-written is removed."""
        files = self._files
        uploads: list[Upload] = []
        for name in files.list(self._directory):
            path = f"{self._directory}/{name}"
            if not _UPLOAD_ID_PATTERN.fullmatch(name) or not files.is_directory(path):
                continue
            names = files.list(path)
            if _UPLOAD_RECORD_NAME not in names:
                self.remove(name)
                continue
            try:
                upload = Upload(
                    name, decode_upload_record(self._read(f"{path}/{_UPLOAD_RECORD_NAME}"))
                )
            except CorruptedDataError as error:
                _LOGGER.error("an upload cannot go on, its files stay: %s path=%s", error, path)
                continue
            uploads.append(upload)
            for file_name in names:
                self._load_file(upload, file_name)
        return sorted(uploads, key=lambda upload: (upload.record.begun_ms, upload.upload_id))

    def create(self, upload: Upload) -> None:
        """The record is there, durably."""
        self._files.make_directories(self._path(upload.upload_id))
        content = encode_upload_record(upload.record)
        self._write(
            upload.upload_id, _UPLOAD_RECORD_NAME + _NEW_FILE_SUFFIX, [content], _UPLOAD_RECORD_NAME
        )

    def write_part(
        self, upload_id: str, part: Part, content: Sequence[BufferView], *, temporary: str
    ) -> None:
        """The part is there, durably, or no file of it; no other has its name, and `temporary` is used by no other."""
        try:
            self._write(upload_id, temporary + _NEW_FILE_SUFFIX, content, part.file_name())
        except BaseException:
            for name in (temporary + _NEW_FILE_SUFFIX, part.file_name()):
                with contextlib.suppress(OSError):
                    self._files.remove(f"{self._path(upload_id)}/{name}")
            raise

    def open_incoming(self, upload_id: str, temporary: str, *, alone: bool) -> File:
        """The file of a part that comes piece by piece. `alone`: in a directory that is made for it."""
        path = self._path(upload_id)
        if alone:
            self._files.make_directories(path)
        return self._files.open(
            f"{path}/{temporary}{_NEW_FILE_SUFFIX}", create=True, exclusive=True
        )

    def name_incoming(self, upload_id: str, temporary: str, part: Part) -> None:
        """The file is that of the part, durably if its bytes are synced; or no file of it is left."""
        path = self._path(upload_id)
        try:
            self._files.rename(
                f"{path}/{temporary}{_NEW_FILE_SUFFIX}", f"{path}/{part.file_name()}"
            )
            self._files.sync_directory(path)
        except BaseException:
            self.remove_incoming(upload_id, temporary)
            with contextlib.suppress(OSError):
                self.remove_part(upload_id, part)
            raise

    def remove_incoming(self, upload_id: str, temporary: str) -> None:
        """If it is still there."""
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(f"{self._path(upload_id)}/{temporary}{_NEW_FILE_SUFFIX}")

    def remove_part(self, upload_id: str, part: Part) -> None:
        """If it is still there."""
        with contextlib.suppress(FileNotFoundError):
            self._files.remove(f"{self._path(upload_id)}/{part.file_name()}")

    def remove(self, upload_id: str) -> None:
        """It is completed, or given up."""
        path = self._path(upload_id)
        names = self._files.list(path)
        for name in sorted(names, key=lambda name: name != _UPLOAD_RECORD_NAME):
            with contextlib.suppress(FileNotFoundError):  # a part that just got its name
                self._files.remove(f"{path}/{name}")
            if name == _UPLOAD_RECORD_NAME:
                self._files.sync_directory(path)
        try:
            self._files.remove_directory(path)
        except OSError as error:
            # A part that arrived meanwhile: the next start removes it, as no record is with it.
            if error.errno != errno.ENOTEMPTY:
                raise

    def slices(self, upload_id: str, parts: Sequence[Part]) -> Iterator[bytes]:
        """Their bytes, one behind the other, checked. Raises CorruptedDataError."""
        for part in parts:
            yield from part_slices(self._path(upload_id), part, self._files)

    def _load_file(self, upload: Upload, file_name: str) -> None:
        if file_name.endswith(_NEW_FILE_SUFFIX):
            self._files.remove(f"{self._path(upload.upload_id)}/{file_name}")
            return
        part = part_of_file_name(file_name)
        if part is None:
            return
        former = upload.parts.get(part.number)
        if former is None or part.stored_ms >= former.stored_ms:
            upload.parts[part.number] = part
        else:
            former = part
        if former is not None:
            self.remove_part(upload.upload_id, former)

    def _read(self, path: str) -> bytes:
        file = self._files.open(path)
        try:
            return file.read_at(0, _UPLOAD_RECORD_BYTES_MAX)
        finally:
            file.close()

    def _write(
        self, upload_id: str, temporary: str, content: Sequence[BufferView], name: str
    ) -> None:
        path = self._path(upload_id)
        file = self._files.open(f"{path}/{temporary}", create=True)
        try:
            file.write_at(0, content)
            file.sync_data()
        finally:
            file.close()
        self._files.rename(f"{path}/{temporary}", f"{path}/{name}")
        self._files.sync_directory(path)

    def _path(self, upload_id: str) -> str:
        return f"{self._directory}/{upload_id}"


class IncomingPart:
    """Bytes that come piece by piece, in a file that is nothing yet: see `MultipartUploads.incoming`."""

    def __init__(
        self,
        upload_id: str,
        temporary: str,
        *,
        alone: bool,
        files: UploadFiles,
        run: Callable[[Callable[[], None]], Coroutine[object, object, None]],
    ) -> None:
        """`alone`: it is no part of an upload. `run`: makes a call in a thread, and ends only with it."""
        self.upload_id = upload_id
        self.temporary = temporary
        self.alone = alone
        self.length = 0
        """Of what was appended."""
        self.crc32 = 0
        self._files = files
        self._run = run
        self._file: File | None = None

    async def append(self, buffers: Sequence[BufferView]) -> None:
        """These bytes come next; one call after the other. Raises UploadNotFoundError, StorageError and its kinds."""
        await self._run(partial(self._append, buffers))

    def _append(self, buffers: Sequence[BufferView]) -> None:
        if self._file is None:
            self._file = self._files.open_incoming(self.upload_id, self.temporary, alone=self.alone)
        self._file.write_at(self.length, buffers)
        for buffer in buffers:
            self.crc32 = crc32_of(buffer, self.crc32)
            self.length += len(buffer)

    def end(self, *, durably: bool) -> None:
        """No more comes. Blocking. Raises OSError."""
        if self._file is None:
            self._append(())
        assert self._file is not None, "an empty part has a file too"
        if durably:
            self._file.sync_data()
        self.close()

    def close(self) -> None:
        """Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


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
        self._leftover: dict[str, Upload] = {}
        """Those that are over and whose files could not be removed yet."""
        self._in_memory = asyncio.Semaphore(_JOINED_IN_MEMORY_MAX)
        self._part_locks = KeyedLocks[str]()
        self._changes = ChangeTasks()

    async def start(self) -> None:
        """Find what was begun before. Raises StorageError."""
        self._uploads = {one.upload_id: one for one in await self._run(self._files.load)}
        await self._end_completed_ones()
        await self._end_old_ones()

    async def close(self) -> None:
        """What is under way is over: files and engine may be closed then. Idempotent."""
        await self._changes.join()

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
        return await self._changes.run(
            self._begin(Upload(self._random.randbytes(16).hex(), record))
        )

    async def _begin(self, upload: Upload) -> Upload:
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
        _require_number(number)
        return await self._changes.run(
            self._put_part(
                upload, number, partial(self._write_part, upload, number, content, md5, checksum)
            )
        )

    def _write_part(
        self,
        upload: Upload,
        number: int,
        content: Sequence[BufferView],
        md5: str | None,
        checksum: tuple[str, str] | None,
        stored_ms: int,
    ) -> Part:
        part = _measured_part(number, content, md5, stored_ms, checksum)
        self._files.write_part(upload.upload_id, part, content, temporary=self._temporary_name())
        return part

    async def _put_part(self, upload: Upload, number: int, write: Callable[[int], Part]) -> Part:
        """`write` makes the file of the part, durably, given the time that it was stored at. In a thread."""
        async with self._part_locks.held(f"{upload.upload_id} {number}"):
            if upload.upload_id not in self._uploads:
                raise _upload_not_found(upload.upload_id)
            former = upload.parts.get(number)
            # The next start may find both: the later one has to be told by its time, whatever the clock does.
            stored_ms = max(self._wall_clock.now_ms(), former.stored_ms + 1 if former else 0)
            part = await self._run(write, stored_ms)
            if upload.upload_id not in self._uploads:
                raise _upload_not_found(upload.upload_id)
            upload.parts[number] = part
            # A completion that has begun may be joining the former one.
            if former is not None and not upload.completing:
                await self._remove_part(upload, former)
            return part

    @asynccontextmanager
    async def incoming(self, upload: Upload | None = None) -> AsyncIterator[IncomingPart]:
        """A part that comes piece by piece: of `upload`, for `put_incoming_part`, or alone, for `put_incoming`.

        What neither of them took by the end of the block leaves no file.
        """
        if upload is not None and upload.upload_id not in self._uploads:
            raise _upload_not_found(upload.upload_id)
        upload_id = self._random.randbytes(16).hex() if upload is None else upload.upload_id

        async def run(call: Callable[[], None]) -> None:
            await self._changes.run(self._run(call))

        part = IncomingPart(
            upload_id,
            self._temporary_name(),
            alone=upload is None,
            files=self._files,
            run=run,
        )
        try:
            yield part
        finally:
            await self._changes.run(self._discard(part))

    async def _discard(self, part: IncomingPart) -> None:
        def discard() -> None:
            part.close()
            if part.alone:
                self._files.remove(part.upload_id)
            else:
                self._files.remove_incoming(part.upload_id, part.temporary)

        try:
            await self._run(discard)
        except UploadNotFoundError:
            pass
        except (StorageError, StorageFullError) as error:
            # The next start removes it.
            _LOGGER.warning("bytes that count for nothing stay for now: %s", error)

    async def put_incoming_part(
        self,
        upload: Upload,
        number: int,
        incoming: IncomingPart,
        *,
        md5: str,
        checksum: tuple[str, str] | None = None,
    ) -> Part:
        """As `put_part`, of what came."""
        _require_number(number)

        def write(stored_ms: int) -> Part:
            part = Part(number, incoming.length, md5, incoming.crc32, stored_ms, checksum)
            incoming.end(durably=True)
            self._files.name_incoming(upload.upload_id, incoming.temporary, part)
            return part

        return await self._changes.run(self._put_part(upload, number, write))

    async def put_incoming(
        self,
        key: bytes,
        incoming: IncomingPart,
        found: ContentDigest,
        described: Callable[[], Description],
        *,
        condition: Condition = ALWAYS,
    ) -> IndexRecord:
        """What came alone is one object; `found` is its digest. `described` is asked when its bytes are stored.

        Raises what `VolumeEngine.put` raises, and what `described` does.
        """
        check_key(key)
        put = partial(self._engine.put_digested, key, condition=condition)
        return await self._changes.run(self._put_incoming(incoming, found, described, put))

    async def _put_incoming(
        self,
        incoming: IncomingPart,
        found: ContentDigest,
        described: Callable[[], Description],
        put: Callable[..., Coroutine[object, object, IndexRecord]],
    ) -> IndexRecord:
        part = Part(1, incoming.length, "0" * 32, incoming.crc32, 0)

        def end() -> None:
            # A kill takes it anyway: nothing of it has to be synced before it stands in a volume.
            incoming.end(durably=False)
            self._files.name_incoming(incoming.upload_id, incoming.temporary, part)

        await self._run(end)
        return await self._store(incoming.upload_id, [part], found, described, put)

    def _temporary_name(self) -> str:
        return self._random.randbytes(8).hex()

    async def _remove_part(self, upload: Upload, part: Part) -> None:
        try:
            await self._run(self._files.remove_part, upload.upload_id, part)
        except (StorageError, StorageFullError) as error:
            # The next start removes it: another one of its number is later.
            _LOGGER.warning("a part that was replaced stays for now: %s", error)

    # --- looking ---------------------------------------------------------------------------------

    def get(self, upload_id: str) -> Upload:
        """Raises UploadNotFoundError."""
        upload = self._uploads.get(upload_id)
        if upload is None:
            raise _upload_not_found(upload_id)
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
        if upload.upload_id not in self._uploads:
            raise _upload_not_found(upload.upload_id)
        if upload.completing:
            raise InvalidRequestError(f"an upload is being completed id={upload.upload_id}")
        await self._changes.run(self._abort(upload))

    async def _abort(self, upload: Upload) -> None:
        # It takes no part and begins no completion any more, and is there again if its files cannot be removed.
        del self._uploads[upload.upload_id]
        try:
            await self._run(self._files.remove, upload.upload_id)
        except UploadNotFoundError:
            return
        except BaseException:
            self._uploads[upload.upload_id] = upload
            raise

    async def complete(
        self,
        upload: Upload,
        parts: Sequence[Part],
        description: Description,
        *,
        condition: Condition = ALWAYS,
        bypass_governance: bool = False,
        is_version: Callable[[], bool] | None = None,
    ) -> IndexRecord:
        """One object of these parts, in ascending order, described as a whole. If it fails the upload is still there.

        A version id, if it gets one, is that of the upload: `completed` finds it by that. `is_version`, asked when
        the parts were read, says whether it gets one.

        Raises UploadNotFoundError, InvalidRequestError (parts; while it is completed already), CorruptedDataError, and
        what `VolumeEngine.put` raises.
        """
        if upload.upload_id not in self._uploads:
            raise _upload_not_found(upload.upload_id)
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
        return await self._changes.run(self._complete(upload, parts, description, put, is_version))

    async def _complete(
        self,
        upload: Upload,
        parts: Sequence[Part],
        description: Description,
        put: Callable[..., Coroutine[object, object, IndexRecord]],
        is_version: Callable[[], bool] | None,
    ) -> IndexRecord:
        def described() -> Description:
            if is_version is None:
                return description
            return replace(description, version_id=upload.upload_id if is_version() else None)

        try:
            record = await self._store(upload.upload_id, parts, None, described, put)
            await self._forget(upload)
        finally:
            upload.completing = False
        return record

    async def _store(
        self,
        upload_id: str,
        parts: Sequence[Part],
        found: ContentDigest | None,
        described: Callable[[], Description],
        put: Callable[..., Coroutine[object, object, IndexRecord]],
    ) -> IndexRecord:
        """`found`: the digest of all of their bytes, if it is known."""
        slices = partial(self._files.slices, upload_id, parts)
        if sum(part.length for part in parts) <= self._settings.multipart_memory_bytes_max:
            async with self._in_memory:
                content, found = await self._run(self._joined, slices, found)
                return await put(content, found, described())
        if found is None:
            found = await self._run(lambda: digest(slices(), self._settings.piece_bytes))
        volume, stored = await self._run(self._write_volume, slices, parts, found)
        description: Description | None = None
        try:
            description = described()
            record = await put((), found, description, stored=stored)
        except asyncio.CancelledError:
            # The loop ends. The put may still be in queue: compaction must not have the volume before the next start.
            volume.close()
            raise
        except BaseException as error:
            if description is None or isinstance(error, _REFUSALS):
                await self._run(self._discard_volume, volume)
            else:
                # The index may name it. If not, compaction removes it.
                await self._run(self._volumes.release, volume)
            raise
        await self._run(self._volumes.release, volume)
        return record

    def _joined(
        self, slices: Callable[[], Iterator[bytes]], found: ContentDigest | None
    ) -> tuple[list[bytes], ContentDigest]:
        content = list(slices())
        return content, found or digest(content, self._settings.piece_bytes)

    def _write_volume(
        self, slices: Callable[[], Iterator[bytes]], parts: Sequence[Part], found: ContentDigest
    ) -> tuple[OpenVolume, BlobRow]:
        """The bytes in a volume of their own, synced. In the executor."""
        now_ms = self._wall_clock.now_ms()
        draft = draft_of(found, Description(), now_ms=now_ms, settings=self._settings)
        front = encode_index_record(draft)
        volume = self._volumes.create(now_ms=now_ms, sequence_first=self._sequence_applied())
        try:
            sums = [(crc32_of(front, seed_of(volume.secret)), len(front))]
            crc = joined_crc(CRC32, sums + [(part.crc32, part.length) for part in parts])
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
            self._discard_volume(volume)
            raise
        blob_offset = offset + header.blob_offset
        return volume, BlobRow(volume.number, offset, blob_offset, found.size, 0)

    def _discard_volume(self, volume: OpenVolume) -> None:
        """Nothing names it. It may be what fills the disk, and compaction looks some time behind changes alone."""
        # If it cannot be removed, compaction has it.
        with contextlib.suppress(OSError):
            self._volumes.discard(volume)

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
        if self._leftover:
            await self._changes.run(self._remove_leftover())
        oldest_ms = self._wall_clock.now_ms() - int(self._settings.multipart_seconds_max * 1000)
        old = [one for one in self._uploads.values() if one.record.begun_ms < oldest_ms]
        for upload in old:
            if not upload.completing:
                await self._changes.run(self._forget(upload))

    async def _forget(self, upload: Upload) -> None:
        """It is over: its files are removed, if need be when the next upload begins."""
        if self._uploads.pop(upload.upload_id, None) is not None:
            self._leftover[upload.upload_id] = upload
            await self._remove_leftover()

    async def _remove_leftover(self) -> None:
        for upload_id in list(self._leftover):
            try:
                await self._run(self._files.remove, upload_id)
            except UploadNotFoundError:
                pass
            except (StorageError, StorageFullError) as error:
                _LOGGER.warning("files of an upload that is over stay for now: %s", error)
                continue
            self._leftover.pop(upload_id, None)

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
            raise storage_error_of(error, "an upload failed") from error


def _require_number(number: int) -> None:
    if not 1 <= number <= PARTS_MAX:
        raise InvalidRequestError(f"part numbers are 1 to {PARTS_MAX} {number=}")


def _measured_part(
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


def _upload_not_found(upload_id: str) -> UploadNotFoundError:
    return UploadNotFoundError(f"no such upload {upload_id=}")


def encode_upload_record(record: UploadRecord) -> bytes:
    """See the module."""
    description = record.description
    retention = None
    if description.retention is not None:
        mode, until_ms = description.retention
        retention = [mode.value, until_ms]
    fields = {
        "format": _UPLOAD_RECORD_FORMAT,
        "key": record.key.hex(),
        "begun_ms": record.begun_ms,
        "content_type": description.content_type,
        "metadata": dict(description.metadata),
        "retention": retention,
        "legal_hold": description.legal_hold,
        "notes": dict(record.notes),
    }
    return json.dumps(fields).encode()


def decode_upload_record(content: bytes) -> UploadRecord:
    """Raises CorruptedDataError."""
    try:
        fields = json.loads(content)
        if fields["format"] != _UPLOAD_RECORD_FORMAT:
            raise ValueError("another format")
        retention = fields["retention"]
        if retention is not None:
            mode, until_ms = retention
            retention = (RetentionMode(mode), int(until_ms))
        description = Description(
            content_type=str(fields["content_type"]),
            metadata=dict(fields["metadata"]),
            retention=retention,
            legal_hold=bool(fields["legal_hold"]),
        )
        key = bytes.fromhex(fields["key"])
        return UploadRecord(key, int(fields["begun_ms"]), description, dict(fields["notes"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptedDataError(f"not the record of an upload: {content[:200]!r}") from error


def part_of_file_name(name: str) -> Part | None:
    """None for other files."""
    found = _PART_NAME_PATTERN.fullmatch(name)
    if found is None:
        return None
    number, length, md5, crc32, stored_ms, algorithm, checksum = found.groups()
    return Part(
        number=int(number),
        length=int(length),
        md5=md5,
        crc32=int(crc32, 16),
        stored_ms=int(stored_ms),
        checksum=(algorithm, b64encode(bytes.fromhex(checksum)).decode()) if algorithm else None,
    )


def part_slices(directory: str, part: Part, files: FileSystem) -> Iterator[bytes]:
    """The bytes of a part; what is wrong with them is said behind the last slice.

    Blocking. Raises CorruptedDataError, OSError.
    """
    path = f"{directory}/{part.file_name()}"
    file = files.open(path)
    try:
        offset = crc32 = 0
        while piece := file.read_at(offset, _PART_SLICE_BYTES):
            crc32 = crc32_of(piece, crc32)
            offset += len(piece)
            yield piece
    finally:
        file.close()
    if offset != part.length:
        raise CorruptedDataError(f"a part has another length than its name says path={path}")
    if crc32 != part.crc32:
        raise CorruptedDataError(f"a part fails its checksum path={path}")
