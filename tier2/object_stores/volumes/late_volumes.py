"""Volumes that are opened when they are first needed, as an object store that can be started and closed.

Invariant: between start() and close() this process holds the directory; start() that failed may be called again.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import replace
from random import Random

from segmentstore.contracts.errors import StorageError, StorageUnavailableError
from segmentstore.contracts.identifiers import BufferView
from segmentstore.contracts.object_store import ObjectInfo, VersionedObject
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.files import FileSystem
from tier2.object_stores.volumes.volume_object_store import VolumeObjectStore
from tier2.volumes.index_database import IndexDatabase
from tier2.volumes.lmdb_index import LmdbIndex
from tier2.volumes.opening import OpenEngine, open_engine, open_engine_for_reading
from tier2.volumes.settings import VolumeSettings

_NEVER_SECONDS = 1e9

OBJECT_PREFIX = "tier2/"
"""What the keys of a segment store begin with inside the engine."""


def only_reading(settings: VolumeSettings) -> VolumeSettings:
    """For who holds the volumes in order to read: leaves no reserves behind, and moves nothing."""
    return replace(
        settings,
        reserve_bytes=0,
        compaction_reserve_bytes=0,
        compaction_interval_seconds=_NEVER_SECONDS,
    )


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
        """`read_only`: if another process has the volumes, read beside it; otherwise hold them, and change nothing.

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

    @property
    def is_open(self) -> bool:
        """Whether this process has the volumes."""
        return self._open is not None

    async def start(self) -> int:
        """Raises StorageError; may be called again then."""
        assert self._open is None, "the volumes are open already"
        try:
            self._open = await self._open_engine()
        except OSError as error:
            raise StorageError(f"the volumes cannot be opened: {error}") from error
        self._store = VolumeObjectStore(engine=self._open.engine, prefix=OBJECT_PREFIX)
        return 0

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
        return await self._started().get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return await self._started().get_range(key, start, length)

    async def size(self, key: str) -> int:
        return await self._started().size(key)

    async def delete(self, key: str) -> None:
        await self._started().delete(key)

    async def list(self, prefix: str) -> AsyncGenerator[ObjectInfo, None]:
        async with aclosing(self._started().list(prefix)) as objects:
            async for info in objects:
                yield info

    def _started(self) -> VolumeObjectStore:
        if self._store is None:
            raise StorageUnavailableError("the volumes are closed", state="unavailable")
        return self._store
