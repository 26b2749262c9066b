"""The conformance suite over volumes, with the real index and the one in memory."""

from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.files import SystemFileSystem
from tests.contracts.object_store_suite import ObjectStoreSuite
from tier2.object_stores.volumes import VolumeObjectStore
from tier2.volumes.index_database import IndexDatabase, LmdbIndex, MemoryIndex
from tier2.volumes.opening import OpenEngine, open_engine
from tier2.volumes.settings import VolumeSettings


async def opened(
    directory: Path, open_index: Callable[[str], IndexDatabase], executor: ThreadPoolExecutor
) -> OpenEngine:
    return await open_engine(
        str(directory / "engine"),
        files=SystemFileSystem(),
        open_index=open_index,
        executor=executor,
        wall_clock=SystemWallClock(),
        random=Random(1),
        settings=VolumeSettings(volume_bytes_max=1 << 20),
    )


class VolumeSuite(ObjectStoreSuite):
    refuses_path_prefixes = False
    open_index: Callable[[str], IndexDatabase]
    threads = 4

    @pytest.fixture
    async def engine(self, tmp_path: Path) -> AsyncIterator[OpenEngine]:
        with ThreadPoolExecutor(type(self).threads) as executor:
            engine = await opened(tmp_path, type(self).open_index, executor)
            yield engine
            await engine.close()

    @pytest.fixture
    def store(self, engine: OpenEngine) -> VolumeObjectStore:
        return VolumeObjectStore(engine=engine.engine, prefix="tier2/")

    @pytest.fixture
    def second_store(self, engine: OpenEngine) -> VolumeObjectStore:
        return VolumeObjectStore(engine=engine.engine, prefix="tier2/")


class TestVolumesWithLmdb(VolumeSuite):
    open_index = staticmethod(LmdbIndex)


class TestVolumesWithIndexInMemory(VolumeSuite):
    open_index = staticmethod(lambda directory: MemoryIndex())
    threads = 1
    """The index in memory is not for several."""
