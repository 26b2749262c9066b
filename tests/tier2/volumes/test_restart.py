"""What an engine knows after it was closed, killed, or lost its index: all of it."""

import asyncio
import shutil
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from segmentstore.contracts.errors import ObjectNotFoundError, StorageUnavailableError
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.files import SystemFileSystem
from tests.sim.disk import SimulatedDisk
from tests.tier2.volumes.engines import SMALL, open_small
from tests.tier2.volumes.memory_index import MemoryIndex
from tier2.volumes.index import volume_key
from tier2.volumes.index_database import LmdbIndex
from tier2.volumes.objects import Description
from tier2.volumes.opening import OpenEngine, open_engine
from tier2.volumes.settings import VolumeSettings


async def opened(directory: Path) -> OpenEngine:
    return await open_engine(
        str(directory),
        files=SystemFileSystem(),
        open_index=LmdbIndex,
        executor=None,
        wall_clock=SystemWallClock(),
        random=Random(1),
        settings=VolumeSettings(volume_bytes_max=200_000),
    )


def content_of(number: int) -> bytes:
    return Random(number % 40).randbytes(100 + number % 7 * 3000)


async def fill(engine: OpenEngine) -> dict[bytes, bytes]:
    """200 puts over 120 keys, many with equal contents; every fifth key deleted again."""
    expected: dict[bytes, bytes] = {}
    for number in range(200):
        key = b"key/%03d" % (number % 120)
        content = content_of(number)
        await engine.engine.put(key, [content], metadata={"number": str(number)})
        expected[key] = content
    for number in range(0, 120, 5):
        key = b"key/%03d" % number
        await engine.engine.delete(key)
        del expected[key]
    return expected


async def require(engine: OpenEngine, expected: dict[bytes, bytes]) -> None:
    listed = await engine.engine.list(b"", limit=1000)
    assert [one.key for one in listed] == sorted(expected)
    for key, content in expected.items():
        assert (await engine.engine.get(key)).content == content


async def test_a_closed_engine_opens_with_everything(tmp_path: Path) -> None:
    engine = await opened(tmp_path / "one")
    expected = await fill(engine)
    await engine.close()
    again = await opened(tmp_path / "one")
    assert again.replay.records == 0
    await require(again, expected)
    await again.close()


@pytest.mark.parametrize("lose", ["index", "nothing"])
async def test_h68_a_killed_engine_is_rebuilt_from_its_volumes_alone(
    tmp_path: Path, lose: str
) -> None:
    engine = await opened(tmp_path / "one")
    expected = await fill(engine)
    # What kill -9 leaves: the files as they are, nobody said goodbye.
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    await engine.close()
    if lose == "index":
        shutil.rmtree(tmp_path / "two" / "index")
    again = await opened(tmp_path / "two")
    assert again.replay.records == 224 or lose == "nothing"
    assert bool(again.replay.rebuilt) == (lose == "index")
    await require(again, expected)
    with pytest.raises(ObjectNotFoundError):
        await again.engine.get(b"key/005")
    await again.engine.put(b"new", [b"later"])
    await again.close()
    last = await opened(tmp_path / "two")
    await require(last, {**expected, b"new": b"later"})
    await last.close()


async def test_h72_a_new_volume_has_no_number_of_which_an_index_still_says_something() -> None:
    """Killed between a volume's removal and its row's, then a power cut that brings the row back."""
    disk, index = SimulatedDisk(), MemoryIndex()
    root = "/machine/volumes"
    one = await open_small(
        root,
        files=disk.mount("one"),
        open_index=lambda _: index,
        settings=replace(SMALL, index_delay_seconds=1e9),
    )
    await one.engine.put(b"a", [b"x"])
    assert one.uploads is not None
    upload = await one.uploads.begin(b"large", Description())
    part = await one.uploads.put_part(upload, 1, [b"z" * 9000])
    await one.uploads.complete(upload, [part], Description(etag="e-1"))
    await one.engine.delete(b"large")
    assert (await one.engine.compact()).removed == [2]
    left, synced = index.fork(), index.fork()
    assert synced.get(volume_key(2)) is not None, "the removal is not in the database yet"
    disk.kill_all()
    two = await open_small(root, files=disk.mount("two"), open_index=lambda _: left)
    await two.engine.put(b"b", [b"answered"])
    disk.kill_all()
    three = await open_small(root, files=disk.mount("three"), open_index=lambda _: synced)
    assert (await three.engine.get(b"b")).content == b"answered"
    await three.engine.check()
    await three.close()


async def test_a_second_process_is_refused(tmp_path: Path) -> None:
    engine = await opened(tmp_path / "one")
    with ThreadPoolExecutor(1), pytest.raises(StorageUnavailableError, match="another process"):
        await opened(tmp_path / "one")
    await engine.close()


async def test_who_gives_up_opening_leaves_the_volumes_to_others(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as executor:
        for turns in range(8):
            opening = asyncio.ensure_future(open_small(str(tmp_path), executor=executor))
            for _ in range(turns):
                await asyncio.sleep(0)
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            store = await opened_in_the_end(str(tmp_path), executor)
            await store.engine.put(b"%d" % turns, [b"x"])
            await store.close()
        store = await open_small(str(tmp_path), executor=executor)
        assert len(await store.engine.list(b"", limit=100)) == 8
        await store.close()


async def opened_in_the_end(directory: str, executor: Executor) -> OpenEngine:
    """An opening whose caller has left goes on, and refuses this one until the disk has let it end."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await open_small(directory, executor=executor)
            except StorageUnavailableError:
                await asyncio.sleep(0.001)
