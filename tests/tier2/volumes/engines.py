"""Engines to test: on a directory or a simulated disk, small enough that everything happens soon."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.files import FileSystem, SystemFileSystem
from tier2.volumes.engine import VolumeEngine
from tier2.volumes.index_database import IndexDatabase, LmdbIndex
from tier2.volumes.objects import IndexRecord
from tier2.volumes.opening import OpenEngine, open_engine
from tier2.volumes.settings import VolumeSettings

SMALL = VolumeSettings(
    volume_bytes_max=20_000,
    inline_bytes_max=200,
    piece_bytes=1000,
    index_buffer_rows=20,
    reserve_bytes=16_384,
    compaction_reserve_bytes=16_384,
    compaction_small_count=4,
    compaction_interval_seconds=1e9,
    compaction_batch_bytes=8000,
    multipart_memory_bytes_max=3000,
    scrub_bytes_per_second=0,
)


@dataclass
class SetClock(WallClock):
    """A calendar that stands still until it is set."""

    ms: int = 1_000_000

    def now_ms(self) -> int:
        return self.ms


async def open_small(
    directory: str,
    *,
    files: FileSystem | None = None,
    open_index: Callable[[str], IndexDatabase] = LmdbIndex,
    executor: Executor | None = None,
    clock: WallClock | None = None,
    settings: VolumeSettings = SMALL,
    seed: int = 1,
) -> OpenEngine:
    return await open_engine(
        directory,
        files=files or SystemFileSystem(),
        open_index=open_index,
        executor=executor,
        wall_clock=clock or SetClock(),
        random=Random(seed),
        settings=settings,
    )


@asynccontextmanager
async def small_engine(
    directory: str, settings: VolumeSettings = SMALL
) -> AsyncIterator[VolumeEngine]:
    opened = await open_small(directory, settings=settings)
    try:
        yield opened.engine
    finally:
        await opened.close()


@dataclass
class Version:
    """What the model knows of one version."""

    version_id: str
    content: bytes | None
    """None: a delete marker."""
    sequence: int
    legal_hold: bool = False


@dataclass
class Model:
    """Keys with their versions, newest first."""

    keys: dict[bytes, list[Version]] = field(default_factory=dict)

    def put(
        self, key: bytes, version_id: str, content: bytes | None, record: IndexRecord, hold: bool
    ) -> None:
        kept = [one for one in self.keys.get(key, []) if one.version_id != version_id]
        self.keys[key] = [Version(version_id, content, record.sequence, hold), *kept]

    def remove(self, key: bytes, version_id: str) -> None:
        kept = [one for one in self.keys.get(key, []) if one.version_id != version_id]
        if kept:
            self.keys[key] = kept
        else:
            self.keys.pop(key, None)


async def require(engine: VolumeEngine, model: Model) -> None:
    """The engine holds what the model holds, and nothing else."""
    listed = await engine.list(b"", limit=100_000)
    current = {key: found[0] for key, found in model.keys.items() if found[0].content is not None}
    assert [one.key for one in listed] == sorted(current)
    for key, versions in model.keys.items():
        found = await engine.list_versions(key)
        assert [(one.version_id, one.sequence, one.legal_hold) for one in found] == [
            (one.version_id, one.sequence, one.legal_hold) for one in versions
        ], key
        for one in versions:
            if one.content is not None:
                read = await engine.get(key, version_id=one.version_id)
                assert read.content == one.content, key
    await engine.check()


async def let_run() -> None:
    for _ in range(3):
        await asyncio.sleep(0)
