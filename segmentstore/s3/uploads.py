"""Multipart uploads that are begun: what they are in memory, their parts in files.

    DIR/UPLOAD/upload.json       upload_record
    DIR/UPLOAD/part-...          part_files
    DIR/UPLOAD/*.new             a file that is being written

Invariants:

- Whatever was acknowledged is synced under its name before, so uploads outlive the process, and power cuts.
- A part that is sent again replaces the former one; a completion joins the parts that were there when it began.
- One completion of an upload at a time; an upload leaves when its object is stored, or when it is aborted.
"""

import asyncio
import contextlib
import errno
import logging
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from random import Random
from typing import ParamSpec, TypeVar

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import StorageError, StorageFullError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.files import FileSystem
from segmentstore.s3.failures import S3Failure
from segmentstore.s3.part_files import Part, map_parts, part_of_file_name
from segmentstore.s3.settings import EndpointSettings
from segmentstore.s3.upload_record import (
    UploadRecord,
    decode_upload_record,
    encode_upload_record,
)
from tier2.volumes.content import ContentDigest, digest

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_RECORD = "upload.json"
_NEW = ".new"
_ID = re.compile(r"[0-9a-f]{32}")
_RECORD_BYTES_MAX = 1 << 20
_LOGGER = logging.getLogger(__name__)


class Upload:
    """One upload."""

    def __init__(self, upload_id: str, record: UploadRecord) -> None:
        self.upload_id = upload_id
        self.record = record
        self.parts: dict[int, Part] = {}
        self.completing = False


class Uploads:
    """start() first."""

    def __init__(
        self,
        directory: str,
        *,
        files: FileSystem,
        executor: Executor | None,
        wall_clock: WallClock,
        random: Random,
        settings: EndpointSettings,
    ) -> None:
        self._directory = directory
        self._files = files
        self._executor = executor
        self._wall_clock = wall_clock
        self._random = random
        self._settings = settings
        self._uploads: dict[str, Upload] = {}

    async def start(self) -> None:
        """Find what was begun before; remove what was half-written. Raises StorageError."""
        self._uploads = await self._run(self._load)

    def of_bucket(self, bucket: str) -> list[Upload]:
        """By key, then by creation. O(uploads)."""
        found = (each for each in self._uploads.values() if each.record.bucket == bucket)
        return sorted(
            found,
            key=lambda each: (each.record.key.encode(), each.record.created_ms, each.upload_id),
        )

    def get(self, upload_id: str, bucket: str, key: str) -> Upload:
        """Raises S3Failure (NoSuchUpload)."""
        found = self._uploads.get(upload_id)
        if found is None or (found.record.bucket, found.record.key) != (bucket, key):
            raise _no_such_upload()
        return found

    async def create(self, record: UploadRecord) -> Upload:
        """Raises S3Failure (SlowDown at the limit), StorageError."""
        if len(self._uploads) >= self._settings.uploads_max:
            raise S3Failure("SlowDown", "There are too many uploads that are not completed.")
        upload = Upload(self._random.randbytes(16).hex(), record)
        await self._run(self._create, upload)
        self._uploads[upload.upload_id] = upload
        return upload

    async def put_part(
        self,
        upload: Upload,
        number: int,
        content: Sequence[BufferView],
        *,
        md5: str,
        checksum: tuple[str, str] | None,
    ) -> Part:
        """Raises S3Failure (NoSuchUpload), StorageError."""
        stored_ms = self._wall_clock.now_ms()
        temporary = self._random.randbytes(8).hex() + _NEW
        part = await self._run(
            self._write_part, upload, number, content, md5, checksum, stored_ms, temporary
        )
        former = upload.parts.get(number)
        upload.parts[number] = part
        # A completion that has begun may be joining the former one.
        if former is not None and former != part and not upload.completing:
            await self._run(self._remove_file, upload, former.file_name())
        return part

    async def join(
        self, upload: Upload, parts: Sequence[Part], piece_bytes: int
    ) -> tuple[list[memoryview], ContentDigest]:
        """The bytes of an object and what the engine wants to know of them. Raises CorruptedDataError, StorageError."""

        def join() -> tuple[list[memoryview], ContentDigest]:
            views = map_parts(self._path(upload), parts)
            return views, digest(views, piece_bytes)

        return await self._run(join)

    async def remove(self, upload: Upload) -> None:
        """It is completed or aborted. Raises StorageError."""
        self._uploads.pop(upload.upload_id, None)
        await self._run(self._remove, self._path(upload))

    async def abort_all(self, bucket: str) -> None:
        """Of a bucket that is gone."""
        for upload in self.of_bucket(bucket):
            await self.remove(upload)

    # --- in the executor -------------------------------------------------------------------------

    def _load(self) -> dict[str, Upload]:
        files = self._files
        files.make_directories(self._directory)
        uploads: dict[str, Upload] = {}
        for name in files.list(self._directory):
            path = f"{self._directory}/{name}"
            if not _ID.fullmatch(name) or not files.is_directory(path):
                continue
            names = files.list(path)
            if _RECORD not in names:
                self._remove(path)
                continue
            upload = Upload(name, decode_upload_record(self._read(f"{path}/{_RECORD}")))
            uploads[name] = upload
            for file_name in names:
                self._load_file(upload, file_name)
        return uploads

    def _load_file(self, upload: Upload, file_name: str) -> None:
        if file_name.endswith(_NEW):
            self._remove_file(upload, file_name)
            return
        part = part_of_file_name(file_name)
        if part is None:
            return
        former = upload.parts.get(part.number)
        if former is None or part.stored_ms >= former.stored_ms:
            upload.parts[part.number] = part
        else:
            part, former = former, part
        if former is not None:
            self._remove_file(upload, former.file_name())

    def _read(self, path: str) -> bytes:
        file = self._files.open(path)
        try:
            return file.read_at(0, _RECORD_BYTES_MAX)
        finally:
            file.close()

    def _create(self, upload: Upload) -> None:
        self._files.make_directories(self._path(upload))
        content = encode_upload_record(upload.record)
        self._write(upload, _RECORD + _NEW, [content], _RECORD)

    def _write_part(
        self,
        upload: Upload,
        number: int,
        content: Sequence[BufferView],
        md5: str,
        checksum: tuple[str, str] | None,
        stored_ms: int,
        temporary: str,
    ) -> Part:
        crc32, length = 0, 0
        for buffer in content:
            crc32 = crc32_of(buffer, crc32)
            length += len(buffer)
        part = Part(number, length, md5, crc32, stored_ms, checksum)
        try:
            self._write(upload, temporary, content, part.file_name())
        except FileNotFoundError:
            raise _no_such_upload() from None  # aborted or completed meanwhile
        return part

    def _write(
        self, upload: Upload, temporary: str, content: Sequence[BufferView], name: str
    ) -> None:
        path = self._path(upload)
        file = self._files.open(f"{path}/{temporary}", create=True)
        try:
            file.write_at(0, content)
            file.sync_data()
        finally:
            file.close()
        self._files.rename(f"{path}/{temporary}", f"{path}/{name}")
        self._files.sync_directory(path)

    def _remove(self, path: str) -> None:
        # The record first: a removal that is cut short is finished at the next start.
        names = self._files.list(path)
        for name in sorted(names, key=lambda name: name != _RECORD):
            with contextlib.suppress(FileNotFoundError):  # a part that just got its name
                self._files.remove(f"{path}/{name}")
            if name == _RECORD:
                self._files.sync_directory(path)
        try:
            self._files.remove_directory(path)
        except OSError as error:
            # A part that arrived meanwhile: the next start removes it, as no record is with it.
            if error.errno != errno.ENOTEMPTY:
                raise

    def _remove_file(self, upload: Upload, name: str) -> None:
        try:
            self._files.remove(f"{self._path(upload)}/{name}")
        except FileNotFoundError:
            _LOGGER.debug("a part was gone already name=%s", name)

    def _path(self, upload: Upload) -> str:
        return f"{self._directory}/{upload.upload_id}"

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
            raise _no_such_upload() from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFullError("no space is left for parts of uploads") from error
            raise StorageError(f"parts of uploads cannot be kept: {error}") from error


def _no_such_upload() -> S3Failure:
    return S3Failure(
        "NoSuchUpload",
        "The specified upload does not exist. It may have been aborted or completed.",
    )
