"""Volumes as a container's object store, the default on one machine: an open engine, or one that is opened by start().

- Keys live under one prefix of the engine, so that buckets of the S3 endpoint and containers do not meet.
- A part of an object comes as the disk gives it, as from every other store: its blocks have checksums, and the
  reader looks at them. A whole object is checked here.
- The tag of an object is its sequence number: it never comes back, whatever the bytes.
- An engine is shared: a VolumeObjectStore does not close it. LateVolumes closes the one that it opened.
- Between start() and close() of LateVolumes this process holds the directory; start() that failed may be called again.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import replace
from random import Random
from typing import TypeVar

from segmentstore.contracts.errors import (
    ObjectChangedError,
    ObjectExistsError,
    StorageError,
    StorageUnavailableError,
)
from segmentstore.contracts.identifiers import BufferView
from segmentstore.contracts.object_store import ObjectInfo, VersionedObject
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.files import FileSystem
from tier2.object_stores.object_key import check_key, check_prefix, check_range
from tier2.volumes.engine import VolumeEngine
from tier2.volumes.index_database import IndexDatabase, LmdbIndex
from tier2.volumes.objects import Condition
from tier2.volumes.opening import OpenEngine, open_engine, open_engine_for_reading
from tier2.volumes.settings import VolumeSettings
from tier2.volumes.volume_files import PAST_CACHE_BYTES_MIN

_Result = TypeVar("_Result")

_NEVER_SECONDS = 1e9
_LISTING_PAGE_OBJECTS = 1000
_SUMMED_BYTES_MIN = PAST_CACHE_BYTES_MIN
"""Objects that are created with so many bytes are files, and no other object has the same: they are not hashed."""

OBJECT_PREFIX = "tier2/"
"""What the keys of a segment store begin with inside the engine."""


def only_reading(settings: VolumeSettings) -> VolumeSettings:
    """For a process that holds the volumes in order to read: it leaves no reserves behind, and moves nothing."""
    return replace(
        settings,
        reserve_bytes=0,
        compaction_reserve_bytes=0,
        compaction_interval_seconds=_NEVER_SECONDS,
        scrub_bytes_per_second=0,
    )


class VolumeObjectStore:
    """An ObjectStore over an open engine."""

    def __init__(self, *, engine: VolumeEngine, prefix: str = "") -> None:
        """`prefix` goes before every key, as it is: end it with a slash."""
        self._engine = engine
        self._prefix = prefix

    async def put(self, key: str, content: Sequence[BufferView]) -> None:
        check_key(key)
        try:
            await self._engine.put(
                self._key(key), content, condition=Condition(absent=True), unique=True
            )
        except ObjectExistsError:
            found = await self._engine.get(self._key(key))
            if found.content != b"".join(content):
                raise ObjectExistsError(f"the key holds other bytes key={key}") from None

    async def put_if_absent(self, key: str, content: BufferView) -> str:
        check_key(key)
        record = await self._engine.put(
            self._key(key),
            [content],
            condition=Condition(absent=True),
            unique=len(content) >= _SUMMED_BYTES_MIN,
        )
        return str(record.sequence)

    async def put_if_match(self, key: str, content: BufferView, tag: str) -> str:
        check_key(key)
        if not tag.isdecimal():
            raise ObjectChangedError(f"object has another version {key=!s} {tag=!s}")
        record = await self._engine.put(
            self._key(key), [content], condition=Condition(sequence=int(tag))
        )
        return str(record.sequence)

    async def get(self, key: str) -> VersionedObject:
        check_key(key)
        found = await self._engine.get(self._key(key))
        return VersionedObject(content=found.content, tag=str(found.record.sequence))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        check_key(key)
        check_range(start, length)
        found = await self._engine.get_range(self._key(key), start, length, checked=False)
        return found.content

    async def size(self, key: str) -> int:
        check_key(key)
        return (await self._engine.head(self._key(key))).size

    async def delete(self, key: str) -> None:
        check_key(key)
        await self._engine.delete(self._key(key))

    async def list(self, prefix: str) -> AsyncGenerator[ObjectInfo, None]:
        check_prefix(prefix)
        cut, after = len(self._prefix), b""
        while True:
            page = await self._engine.list(
                self._key(prefix), start_after=after, limit=_LISTING_PAGE_OBJECTS
            )
            for listed in page:
                yield ObjectInfo(key=listed.key.decode()[cut:], size=listed.record.size)
            if len(page) < _LISTING_PAGE_OBJECTS:
                return
            after = page[-1].key

    async def look(self) -> None:
        """Raises StorageError if nothing can be read now."""
        await self._engine.list(self._key(""), limit=1)

    async def close(self) -> None:
        """Nothing of its own."""

    def _key(self, key: str) -> bytes:
        return (self._prefix + key).encode()


class LateVolumes:
    """An ObjectStore in a directory of volumes; start() first, close() last."""

    def __init__(
        self,
        directory: str,
        *,
        files: FileSystem,
        executor: Executor | None,
        readers: Executor | None = None,
        wall_clock: WallClock,
        random: Random,
        settings: VolumeSettings,
        read_only: bool = False,
        open_index: Callable[[str], IndexDatabase] = LmdbIndex,
    ) -> None:
        """`read_only`: if another process has the volumes, read beside it; otherwise hold them, and change no object.

        To hold them is a start all the same: after a kill it brings the index up to the volumes, or makes it anew if it
        is damaged, and cuts off a write batch that is not there whole and was never answered.

        `open_index` opens the index in the directory that it is given; `read_only` beside another process takes LMDB.
        """
        self._directory = directory
        self._files = files
        self._executor = executor
        self._readers = readers
        self._wall_clock = wall_clock
        self._random = random
        self._settings = settings
        self._read_only = read_only
        self._open_index = open_index
        self._open: OpenEngine | None = None
        self._store: VolumeObjectStore | None = None
        self._reopening = asyncio.Lock()

    @property
    def is_open(self) -> bool:
        """Whether this process has the volumes."""
        return self._open is not None

    def complaints(self) -> Sequence[str]:
        """What the start and the scrubber found and what has stopped, for `/health`; the log has all of it."""
        if self._open is None:
            return []
        return [*self._open.replay.complaints(), *self._open.engine.complaints()]

    def metrics(self) -> Mapping[str, float]:
        """Numbers for `/metrics`."""
        scrubber = None if self._open is None else self._open.engine.scrubber
        if scrubber is None:
            return {}
        return {
            "tier2_volumes_scrubbed_bytes_total": scrubber.scrubbed_bytes,
            "tier2_volumes_scrub_passes_total": scrubber.passes,
            "tier2_volumes_scrub_damages_total": scrubber.damages,
            "tier2_volumes_last_scrubbed_seconds": scrubber.last_pass_ms / 1000,
        }

    async def start(self) -> int:
        """Raises StorageError; may be called again then."""
        assert self._open is None, "the volumes are open already"
        await self._start()
        return 0

    async def _start(self) -> None:
        try:
            self._open = await self._open_engine()
        except OSError as error:
            raise StorageError(f"the volumes cannot be opened: {error}") from error
        self._store = VolumeObjectStore(engine=self._open.engine, prefix=OBJECT_PREFIX)

    async def _open_engine(self) -> OpenEngine:
        settings = only_reading(self._settings) if self._read_only else self._settings
        try:
            return await open_engine(
                self._directory,
                files=self._files,
                open_index=self._open_index,
                executor=self._executor,
                readers=self._readers,
                wall_clock=self._wall_clock,
                random=self._random,
                settings=settings,
            )
        except StorageUnavailableError:
            if not self._read_only:
                raise
        return await open_engine_for_reading(
            self._directory,
            files=self._files,
            open_index=lambda directory: LmdbIndex(directory, read_only=True),
            executor=self._executor,
            readers=self._readers,
            wall_clock=self._wall_clock,
            random=self._random,
            settings=self._settings,
        )

    async def close(self) -> None:
        """Idempotent."""
        opened, self._open, self._store = self._open, None, None
        if opened is not None:
            await opened.close()

    async def put(self, key: str, content: Sequence[BufferView]) -> None:
        await self._started().put(key, content)

    async def put_if_absent(self, key: str, content: BufferView) -> str:
        return await self._started().put_if_absent(key, content)

    async def put_if_match(self, key: str, content: BufferView, tag: str) -> str:
        return await self._started().put_if_match(key, content, tag)

    async def get(self, key: str) -> VersionedObject:
        return await self._read(lambda store: store.get(key))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return await self._read(lambda store: store.get_range(key, start, length))

    async def size(self, key: str) -> int:
        return await self._read(lambda store: store.size(key))

    async def delete(self, key: str) -> None:
        await self._started().delete(key)

    async def list(self, prefix: str) -> AsyncGenerator[ObjectInfo, None]:
        await self._read(lambda store: store.look())
        async with aclosing(self._started().list(prefix)) as objects:
            async for info in objects:
                yield info

    async def _read(self, read: Callable[[VolumeObjectStore], Awaitable[_Result]]) -> _Result:
        """What is read beside another process is opened again, once, if that has made its index anew."""
        if self._reopening.locked():
            async with self._reopening:
                pass
        store = self._started()
        try:
            return await read(store)
        except StorageUnavailableError:
            opened = self._open
            if opened is None or opened.uploads is not None:
                raise
        async with self._reopening:
            if self._store is store:
                # One after the other: LMDB does not open a path twice in a process.
                await opened.close()
                await self._start()
        return await read(self._started())

    def _started(self) -> VolumeObjectStore:
        if self._store is None:
            raise StorageUnavailableError("the volumes are closed", state="unavailable")
        return self._store
