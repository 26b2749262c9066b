"""Uploads in parts: files in `temp/` until they are completed into one object, or given up.

    DIR/temp/<upload id>/<part number>.<count>    one file per part; a part that is sent again replaces the other

Invariants:

- Parts are not durable, and end with the process: what is promised is promised by `complete`.
- Memory: a completed upload up to `multipart_memory_bytes_max` is put like other objects; a larger one is read slice by
  slice, for its digest and again into a volume of its own, and checked there by what was digested.
- While an upload is completed or given up, nothing else is done with it.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import ParamSpec, TypeVar

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import (
    InvalidRequestError,
    ObjectNotFoundError,
    StorageError,
    StorageFullError,
)
from segmentstore.contracts.identifiers import BufferView
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.files import File, FileSystem
from tier2.volumes.blob_record import RecordHeader, RecordKind, seed_of
from tier2.volumes.content import ContentDigest, digest
from tier2.volumes.description import Description, check_key, draft_of
from tier2.volumes.engine import VolumeEngine
from tier2.volumes.group_commit import NO_SPACE
from tier2.volumes.index_record import IndexRecord, encode_index_record
from tier2.volumes.index_rows import BlobRow
from tier2.volumes.mutations import ALWAYS, Condition
from tier2.volumes.record_copy import write_record
from tier2.volumes.settings import VolumeSettings
from tier2.volumes.volume_files import OpenVolume, VolumeFiles

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

PARTS_MAX = 10_000
_SLICE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """A part that is there."""

    number: int
    size: int
    etag: str
    """MD5 of its bytes, in hexadecimal digits, as S3 has it."""


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload that was begun."""

    upload_id: str
    key: bytes
    begun_ms: int


@dataclass(slots=True)
class _State:
    upload: Upload
    description: Description
    parts: dict[int, tuple[Part, str]] = field(default_factory=dict)
    """By number; with the file."""
    files_made: int = 0
    busy: int = 0
    """Parts that are being received."""
    ending: bool = False


class MultipartUploads:
    """The uploads of one engine; all of its callers use the same object."""

    def __init__(
        self,
        directory: str,
        *,
        engine: VolumeEngine,
        volumes: VolumeFiles,
        sequence_applied: Callable[[], int],
        files: FileSystem,
        executor: Executor | None,
        wall_clock: WallClock,
        random: Random,
        settings: VolumeSettings,
    ) -> None:
        """`directory` is emptied by whoever opens the engine."""
        self._directory = directory
        self._engine = engine
        self._volumes = volumes
        self._sequence_applied = sequence_applied
        self._files = files
        self._executor = executor
        self._wall_clock = wall_clock
        self._random = random
        self._settings = settings
        self._uploads: dict[str, _State] = {}

    # --- beginning and parts ---------------------------------------------------------------------

    async def begin(self, key: bytes, description: Description) -> Upload:
        """`description` without etag and version id: those are given at the end. Raises InvalidRequestError."""
        check_key(key)
        draft_of(ContentDigest(0, bytes(32), ()), description, now_ms=0, settings=self._settings)
        if len(self._uploads) >= self._settings.multipart_uploads_max:
            raise InvalidRequestError(f"too many uploads are under way count={len(self._uploads)}")
        upload = Upload(self._random.randbytes(16).hex(), key, self._wall_clock.now_ms())
        state = _State(upload, description)
        self._uploads[upload.upload_id] = state
        try:
            await self._run(self._files.make_directories, self._path(upload.upload_id))
        except BaseException:
            del self._uploads[upload.upload_id]
            raise
        return upload

    async def put_part(
        self, upload_id: str, number: int, content: AsyncGenerator[BufferView, None]
    ) -> Part:
        """Store a part as it arrives. Raises ObjectNotFoundError, StorageFullError."""
        state = self._state(upload_id)
        if not 1 <= number <= PARTS_MAX:
            raise InvalidRequestError(f"part numbers are 1 to {PARTS_MAX} {number=}")
        state.files_made += 1
        state.busy += 1
        path = f"{self._path(upload_id)}/{number:05d}.{state.files_made}"
        try:
            size, etag = await self._receive(path, content)
            part = Part(number, size, etag)
            replaced = state.parts.get(number)
            state.parts[number] = (part, path)
        except BaseException:
            await self._run(self._remove_file, path)
            raise
        finally:
            state.busy -= 1
        if replaced is not None:
            await self._run(self._remove_file, replaced[1])
        return part

    async def _receive(
        self, path: str, content: AsyncGenerator[BufferView, None]
    ) -> tuple[int, str]:
        md5 = hashlib.md5(usedforsecurity=False)
        size = 0
        async with aclosing(content):
            file = await self._run(partial(self._files.open, path, create=True, exclusive=True))
            try:
                async for buffer in content:
                    await self._run(self._write, file, size, buffer, md5.update)
                    size += len(buffer)
            finally:
                file.close()
        return size, md5.hexdigest()

    @staticmethod
    def _write(
        file: File, offset: int, buffer: BufferView, update: Callable[[BufferView], None]
    ) -> None:
        file.write_at(offset, [buffer])
        update(buffer)

    # --- looking ---------------------------------------------------------------------------------

    def list_parts(self, upload_id: str) -> list[Part]:
        """In order of their numbers. Raises ObjectNotFoundError."""
        return [part for _, (part, _) in sorted(self._state(upload_id).parts.items())]

    def list_uploads(self, prefix: bytes) -> list[Upload]:
        """In order of key, then of beginning."""
        found = [
            state.upload
            for state in self._uploads.values()
            if state.upload.key.startswith(prefix) and not state.ending
        ]
        return sorted(found, key=lambda upload: (upload.key, upload.begun_ms, upload.upload_id))

    def upload(self, upload_id: str) -> Upload:
        """Raises ObjectNotFoundError."""
        return self._state(upload_id).upload

    # --- the end ---------------------------------------------------------------------------------

    async def abort(self, upload_id: str) -> None:
        """Raises ObjectNotFoundError; InvalidRequestError while a part is being received."""
        state = self._end(upload_id)
        await self._forget(state)

    async def complete(
        self,
        upload_id: str,
        parts: Sequence[tuple[int, str]],
        *,
        etag: str,
        version_id: str | None = None,
        condition: Condition = ALWAYS,
        bypass_governance: bool = False,
    ) -> IndexRecord:
        """One object of the parts named by number and etag, in ascending order. If it fails the upload is still there.

        Raises ObjectNotFoundError, InvalidRequestError (parts), and what `VolumeEngine.put` raises.
        """
        chosen = self._chosen(self._state(upload_id), parts)
        state = self._end(upload_id)
        try:
            description = replace(state.description, etag=etag, version_id=version_id)
            record = await self._store(
                state.upload.key,
                chosen,
                description,
                condition=condition,
                bypass_governance=bypass_governance,
            )
        except BaseException:
            state.ending = False
            raise
        await self._forget(state)
        return record

    def _chosen(self, state: _State, parts: Sequence[tuple[int, str]]) -> list[tuple[Part, str]]:
        numbers = [number for number, _ in parts]
        if not parts or numbers != sorted(set(numbers)):
            raise InvalidRequestError("parts are named in ascending order, each once")
        chosen: list[tuple[Part, str]] = []
        for number, etag in parts:
            found = state.parts.get(number)
            if found is None or found[0].etag != etag.strip('"').lower():
                raise InvalidRequestError(f"no such part {number=} {etag=}")
            chosen.append(found)
        return chosen

    async def _store(
        self,
        key: bytes,
        chosen: list[tuple[Part, str]],
        description: Description,
        *,
        condition: Condition,
        bypass_governance: bool,
    ) -> IndexRecord:
        size = sum(part.size for part, _ in chosen)
        paths = [path for _, path in chosen]
        if size <= self._settings.multipart_memory_bytes_max:
            content = await self._run(lambda: list(self._slices(paths)))
            found = await self._run(digest, content, self._settings.piece_bytes)
            return await self._engine.put_digested(
                key,
                content,
                found,
                description,
                condition=condition,
                bypass_governance=bypass_governance,
            )
        found = await self._run(lambda: digest(self._slices(paths), self._settings.piece_bytes))
        volume, stored = await self._run(self._write_volume, paths, found)
        try:
            record = await self._engine.put_digested(
                key,
                (),
                found,
                description,
                condition=condition,
                bypass_governance=bypass_governance,
                stored=stored,
            )
        except asyncio.CancelledError:
            # The put may still be in line: compaction must not have the volume before the next start.
            volume.close()
            raise
        except BaseException:
            await self._run(self._volumes.release, volume)
            raise
        await self._run(self._volumes.release, volume)
        return record

    def _write_volume(self, paths: list[str], found: ContentDigest) -> tuple[OpenVolume, BlobRow]:
        """The bytes in a volume of their own, synced. In the executor."""
        now_ms = self._wall_clock.now_ms()
        draft = draft_of(found, Description(), now_ms=now_ms, settings=self._settings)
        front = encode_index_record(draft)
        volume = self._volumes.create(now_ms=now_ms, sequence_first=self._sequence_applied())
        try:
            crc = crc32_of(front, seed_of(volume.secret))
            for piece in self._slices(paths):
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
            write_record(volume, header, front, self._slices(paths))
            volume.sync()
        except BaseException:
            self._volumes.release(volume)
            raise
        return volume, BlobRow(volume.number, offset, offset + header.blob_offset, found.size, 0)

    def _slices(self, paths: list[str]) -> Iterator[bytes]:
        for path in paths:
            file = self._files.open(path)
            try:
                offset = 0
                while piece := file.read_at(offset, _SLICE_BYTES):
                    yield piece
                    offset += len(piece)
            finally:
                file.close()

    # --- the table -------------------------------------------------------------------------------

    def _state(self, upload_id: str) -> _State:
        state = self._uploads.get(upload_id)
        if state is None or state.ending:
            raise ObjectNotFoundError(f"no such upload {upload_id=}")
        return state

    def _end(self, upload_id: str) -> _State:
        state = self._state(upload_id)
        if state.busy:
            raise InvalidRequestError(f"a part is still being received {upload_id=}")
        state.ending = True
        return state

    async def _forget(self, state: _State) -> None:
        upload_id = state.upload.upload_id
        self._uploads.pop(upload_id, None)
        await self._run(self._remove_directory, self._path(upload_id))

    def _remove_directory(self, path: str) -> None:
        for name in self._files.list(path):
            self._files.remove(f"{path}/{name}")
        self._files.remove_directory(path)

    def _remove_file(self, path: str) -> None:
        if self._files.exists(path):
            self._files.remove(path)

    def _path(self, upload_id: str) -> str:
        return f"{self._directory}/{upload_id}"

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
            kind = StorageFullError if error.errno in NO_SPACE else StorageError
            raise kind(f"an upload failed: {error}") from error
