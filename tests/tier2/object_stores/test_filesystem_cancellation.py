"""The filesystem store when callers leave in the middle of a call."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

from tests.contracts.object_key_suite import listed
from tests.sim.disk import SimulatedDisk
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tests.tier2.object_stores.failing_files import FailingFile, FailingFileSystem
from tests.tier2.object_stores.failing_store import World
from tier2.object_stores.filesystem import FilesystemObjectStore


async def test_a_cancelled_caller_leaves_the_store_usable(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as executor:
        world = World(tmp_path, executor)
        store = world.store
        await store.start()
        tag = await store.put_if_absent("root", b"one")
        for attempt in range(30):
            tasks = [
                asyncio.ensure_future(store.put_if_match("root", b"two", tag)),
                asyncio.ensure_future(store.put(f"object/{attempt}", [b"x" * 5000])),
                asyncio.ensure_future(store.delete(f"object/{attempt - 5}")),
            ]
            for _ in range(attempt % 7):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            found = await store.get("root")
            assert found.content in (b"one", b"two")
            if found.content == b"two":
                await store.put_if_match("root", b"one", found.tag)
    with ThreadPoolExecutor(1) as executor:
        again = World(tmp_path, executor)
        await again.store.start()
        for info in await listed(again.store, "object/"):
            assert (await again.store.get(info.key)).content == b"x" * 5000


class PausingFileSystem(FailingFileSystem):
    """Holds every new temporary file, still empty, until the test lets it go on."""

    def __init__(self) -> None:
        super().__init__()
        self.writing = threading.Event()
        self.go_on = threading.Event()

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> FailingFile:
        file = super().open(path, create=create, exclusive=exclusive)
        if Path(path).parent.name == "temporary" and "-" in Path(path).name:
            self.writing.set()
            assert self.go_on.wait(60)
        return file


async def test_h2_buffers_reused_after_a_cancelled_put_never_become_an_object(
    tmp_path: Path,
) -> None:
    files = PausingFileSystem()
    with ThreadPoolExecutor(2) as executor:
        store = FilesystemObjectStore(
            str(tmp_path / "store"), files=files, executor=executor, random=Random(1)
        )
        await store.start()
        buffer = bytearray(b"intended bytes")
        writes = [
            store.put("object", [memoryview(buffer)]),
            store.put_if_absent("root", memoryview(buffer)),
        ]
        tasks = [asyncio.ensure_future(write) for write in writes]
        assert await asyncio.to_thread(files.writing.wait, 60)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        buffer[:] = b"something else"
        files.go_on.set()
    assert await listed(World(tmp_path).store, "") == []
    assert World(tmp_path).temporary_files() == []


def test_a_start_whose_caller_gave_up_waiting_may_be_repeated() -> None:
    async def main(loop: SimLoop) -> None:
        files = SimulatedDisk().mount("process")
        store = FilesystemObjectStore("/tier2", files=files, executor=None, random=Random(1))
        for _ in range(3):
            start = loop.create_task(store.start())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            start.cancel()
            await asyncio.gather(start, return_exceptions=True)
            await asyncio.sleep(1)
        await store.start()
        await store.put("a", [b"bytes"])
        assert (await store.get("a")).content == b"bytes"
        owners = [name for name in files.list("/tier2/temporary") if name.endswith(".owner")]
        assert len(owners) == 1  # a start that went through unseen is not done a second time
        await store.close()

    run_simulation(1, main)
