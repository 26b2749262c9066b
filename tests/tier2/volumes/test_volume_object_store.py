"""The conformance suite over volumes, with the real index and the one in memory."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.files import SystemFileSystem
from tests.contracts.object_store_suite import ObjectStoreSuite
from tests.tier2.volumes.memory_index import MemoryIndex
from tier2.object_stores.volumes import LateVolumes, VolumeObjectStore
from tier2.volumes.index_database import IndexDatabase, LmdbIndex
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


def volumes(directory: Path, executor: ThreadPoolExecutor, *, read_only: bool) -> LateVolumes:
    return LateVolumes(
        str(directory),
        files=SystemFileSystem(),
        executor=executor,
        wall_clock=SystemWallClock(),
        random=Random(),
        settings=VolumeSettings(index_delay_seconds=0.0),
        read_only=read_only,
    )


_SERVICE = """
import asyncio, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tests.tier2.volumes.test_volume_object_store import volumes

async def main():
    with ThreadPoolExecutor(4) as executor:
        service = volumes(Path(sys.argv[1]), executor, read_only=False)
        await service.start()
        if sys.argv[2] == "two":
            await service.delete("root")
        await service.put_if_absent("root", sys.argv[2].encode())
        await service.put("chunk/" + sys.argv[2], [b"c"])
        # Until other processes see it, which is a moment later.
        while service._open.engine._index.has_recent:
            await asyncio.sleep(0.01)
        print("acknowledged", flush=True)
        sys.stdin.readline()

asyncio.run(main())
"""


@contextmanager
def service(directory: Path, content: str) -> Iterator[None]:
    """Serves, and is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVICE, str(directory), content],
        cwd=Path(__file__).parents[3],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "acknowledged\n"
        yield
        process.kill()


async def test_a_reader_beside_the_service_goes_on_with_an_index_that_was_made_anew(
    tmp_path: Path,
) -> None:
    with ThreadPoolExecutor(4) as executor:
        reader = volumes(tmp_path, executor, read_only=True)
        with service(tmp_path, "one"):
            await reader.start()
            assert (await reader.get("root")).content == b"one"
        shutil.rmtree(tmp_path / "index")
        with service(tmp_path, "two"):
            found, size = await asyncio.gather(reader.get("root"), reader.size("chunk/two"))
            assert (found.content, size) == (b"two", 1)
        shutil.rmtree(tmp_path / "index")
        with service(tmp_path, "two"):
            keys = [info.key async for info in reader.list("")]
            assert keys == ["chunk/one", "chunk/two", "root"]
        await reader.close()


class TestVolumesWithLmdb(VolumeSuite):
    open_index = staticmethod(LmdbIndex)


class TestVolumesWithIndexInMemory(VolumeSuite):
    open_index = staticmethod(lambda directory: MemoryIndex())
    threads = 1
    """The index in memory is not for several."""


@pytest.mark.parametrize("what", ["are missing", "are shorter than they were"])
async def test_a_start_says_for_as_long_as_it_runs_that_volumes_are_not_as_they_were(
    tmp_path: Path, what: str
) -> None:
    """Yesterday's volumes below today's index, or one that is gone: objects are lost before one of them is read."""
    with ThreadPoolExecutor(4) as executor:
        store = volumes(tmp_path, executor, read_only=False)
        await store.start()
        await store.put("before", [bytes(100_000)])
        await store.close()
        (volume,) = (tmp_path / "volumes").iterdir()
        whole = volume.read_bytes()
        if what == "are missing":
            volume.unlink()
        else:
            volume.write_bytes(whole[: len(whole) // 2])
        store = volumes(tmp_path, executor, read_only=False)
        await store.start()
        (complaint,) = store.complaints()
        assert what in complaint
        assert "put them back" in complaint
        await store.put("behind", [b"is taken all the same"])
        await store.close()
        volume.write_bytes(whole)
        store = volumes(tmp_path, executor, read_only=False)
        await store.start()
        assert store.complaints() == []
        assert (await store.get("before")).content == bytes(100_000)
        assert (await store.get("behind")).content == b"is taken all the same"
        await store.close()
