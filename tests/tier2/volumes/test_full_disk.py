"""A full disk refuses puts and nothing else, and service returns by itself."""

import asyncio
import errno
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pytest
from typing_extensions import override

from segmentstore.contracts.errors import ObjectNotFoundError, StorageError, StorageFullError
from tests.sim.disk import Boundary, SimulatedDisk
from tests.sim.loop import SimLoop
from tests.sim.power_cuts import power_cut_images
from tests.sim.simulation import run_simulation
from tests.tier2.volumes.engines import SMALL, open_small
from tests.tier2.volumes.memory_index import MemoryIndex
from tier2.volumes.engine import VolumeEngine
from tier2.volumes.mutations import SyncIndex
from tier2.volumes.objects import Condition
from tier2.volumes.opening import OpenEngine

ROOT = "/machine/engine"
PRESENT = Condition(present=True)


async def fill_up(engine: VolumeEngine, prefix: bytes) -> int:
    """Put until it is refused; how many were stored."""
    for number in range(10_000):
        try:
            await engine.put(prefix + b"%04d" % number, [b"%04d" % number * 500])
        except StorageFullError:
            return number
    raise AssertionError("the disk never filled up")


def test_h52_a_full_disk_takes_deletes_gives_back_space_and_serves_again() -> None:
    async def main(loop: SimLoop) -> None:
        disk, index = SimulatedDisk(capacity_bytes=60 * 4096), MemoryIndex()
        opened = await open_small(ROOT, files=disk.mount("one"), open_index=lambda _: index)
        engine = opened.engine
        stored = await fill_up(engine, b"a")
        assert stored > 50
        for attempt in range(20):
            with pytest.raises(StorageFullError):
                await engine.put(b"refused/%d" % attempt, [b"x" * 3000])
        volumes = disk.mount("looker").list(f"{ROOT}/volumes")
        assert len(volumes) <= stored * 2200 // 20_000 + 2, "no pile of empty volumes"
        assert (await engine.get(b"a0000")).content == b"0000" * 500
        for number in range(stored):
            if number % 10:
                await engine.delete(b"a%04d" % number)
        await engine.compact()
        again = await fill_up(engine, b"b")
        assert again > stored // 2
        await engine.check()
        await opened.close()
        opened = await open_small(ROOT, files=disk.mount("two"), open_index=lambda _: MemoryIndex())
        assert len(await opened.engine.list(b"", limit=10_000)) == -(-stored // 10) + again
        await opened.engine.check()
        await opened.close()

    run_simulation(1, main)


@pytest.mark.parametrize("seed", range(6))
def test_h52_a_full_disk_serves_again_though_no_volume_can_be_copied_as_a_whole(seed: int) -> None:
    """What is live of the smallest one is more than the reserve: it goes from its end, and kills leave nothing."""

    async def main(loop: SimLoop) -> None:
        disk, index, random = SimulatedDisk(capacity_bytes=75 * 4096), MemoryIndex(), Random(seed)
        settings = replace(SMALL, volume_bytes_max=90_000)

        async def open_it(index: MemoryIndex, name: str) -> OpenEngine:
            return await open_small(
                ROOT, files=disk.mount(name), open_index=lambda _: index, settings=settings
            )

        opened = await open_it(index, "one")
        engine = opened.engine
        stored = await fill_up(engine, b"a")
        kept = {b"a%04d" % number for number in range(stored)}
        for key in sorted(kept):
            if random.random() < 0.56:
                await engine.delete(key)
                kept.discard(key)
        with pytest.raises(StorageFullError):
            await engine.put(b"refused", [b"x" * 3000])
        for _ in range(10):
            await engine.compact()
        again = await fill_up(engine, b"b")
        assert again > stored // 5
        await engine.check()
        await opened.close()
        for left in (index, MemoryIndex()):
            opened = await open_it(left, "two")
            listed = {one.key for one in await opened.engine.list(b"a", limit=10_000)}
            assert listed == kept
            for key in kept:
                assert (await opened.engine.get(key)).content == key[1:] * 500
            assert len(await opened.engine.list(b"b", limit=10_000)) == again
            await opened.engine.check()
            await opened.close()

    run_simulation(seed, main)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_open_can_be_read_to_its_end_though_its_volume_goes_from_its_end(seed: int) -> None:
    """What was moved out of it is read where it is now, and what was deleted is whole or not found."""

    async def main(loop: SimLoop) -> None:
        disk, index, random = SimulatedDisk(capacity_bytes=75 * 4096), MemoryIndex(), Random(seed)
        settings = replace(SMALL, volume_bytes_max=90_000)
        opened = await open_small(
            ROOT, files=disk.mount("one"), open_index=lambda _: index, settings=settings
        )
        engine = opened.engine
        stored = await fill_up(engine, b"a")
        async with AsyncExitStack() as stack:
            reading = {
                key: await stack.enter_async_context(engine.opened(key))
                for key in (b"a%04d" % number for number in range(stored))
            }
            kept = set(reading)
            for key in reading:
                if random.random() < 0.56:
                    await engine.delete(key)
                    kept.discard(key)
            with pytest.raises(StorageFullError):
                await engine.put(b"refused", [b"x" * 3000])
            for _ in range(10):
                await engine.compact()
            gone = 0
            for key, one in reading.items():
                whole = key[1:] * 500
                try:
                    assert await one.read(0, 1_000) == whole[:1_000]
                    assert await one.read(1_000, 5_000) == whole[1_000:]
                except ObjectNotFoundError:
                    assert key not in kept
                    gone += 1
            assert 0 < gone < len(reading) - len(kept), "some were cut off, some removed as a whole"
        await opened.close()

    run_simulation(seed, main)


@pytest.mark.simulation
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_h52_a_power_cut_while_a_volume_goes_from_its_end_loses_and_brings_back_nothing(
    seed: int,
) -> None:
    async def main(loop: SimLoop) -> None:
        disk, index, random = SimulatedDisk(capacity_bytes=75 * 4096), MemoryIndex(), Random(seed)
        settings = replace(SMALL, volume_bytes_max=90_000)
        opened = await open_small(
            ROOT, files=disk.mount("one"), open_index=lambda _: index, settings=settings
        )
        engine = opened.engine
        stored = await fill_up(engine, b"a")
        kept = {b"a%04d" % number for number in range(stored)}
        for key in sorted(kept):
            if random.random() < 0.56:
                await engine.delete(key)
                kept.discard(key)
        cuts: list[tuple[SimulatedDisk, MemoryIndex]] = []

        def look(boundary: Boundary) -> None:
            if random.random() < 0.3:
                for _, image in power_cut_images(disk, random, subsets=1):
                    left = index.fork()
                    left.lose_unsynced(random)
                    cuts.append((image, left))

        sizes = {path: size_of(disk, path) for path in volumes_of(disk)}
        disk.on_boundary = look
        for _ in range(6):
            await engine.compact()
        disk.on_boundary = None
        assert any(
            size_of(image, path) < size
            for image, _ in cuts
            for path, size in sizes.items()
            if path in volumes_of(image)
        ), "a volume became shorter"
        await opened.close()
        for number, (image, left) in enumerate(cuts):
            indexes = [left, MemoryIndex()] if number % 3 == 0 else [left]
            for one in indexes:
                again = await open_small(
                    ROOT,
                    files=image.mount("again"),
                    open_index=partial(choose, one),
                    settings=settings,
                )
                listed = {found.key for found in await again.engine.list(b"a", limit=10_000)}
                assert listed == kept, f"{number=} {again.replay}"
                for key in kept:
                    assert (await again.engine.get(key)).content == key[1:] * 500
                report = await again.engine.verify(deep=True)
                # Without its index a start takes holes in what was being cut off for damage, and loses nothing.
                healthy = report.healthy or bool(again.replay.rebuilt)
                assert healthy, f"{number=} {again.replay} {report.problems}"
                await again.close()

    run_simulation(seed, main)


def choose(index: MemoryIndex, _: str) -> MemoryIndex:
    return index


def volumes_of(disk: SimulatedDisk) -> list[str]:
    return [f"{ROOT}/volumes/{name}" for name in disk.mount("looker").list(f"{ROOT}/volumes")]


def size_of(disk: SimulatedDisk, path: str) -> int:
    return disk.mount("looker").size(path)


@pytest.mark.parametrize("failure", [errno.ENOSPC, errno.EIO])
async def test_what_was_made_is_answered_though_the_sync_of_the_index_beside_it_fails(
    tmp_path: Path, failure: int
) -> None:
    """Compaction asks for the sync; the changes of others in its batch are durable in their volume."""

    class Unsynced(MemoryIndex):
        failing = False
        failed = 0

        @override
        def sync(self) -> None:
            if self.failing:
                self.failed += 1
                raise OSError(failure, "as the test says")
            super().sync()

    index = Unsynced()
    opened = await open_small(str(tmp_path), open_index=lambda _: index)
    engine = opened.engine
    for number in range(10):
        await engine.put(b"old/%d" % number, [b"old"])
    index.failing = True
    for number in range(10):
        key = b"old/%d" % number
        change = engine.put(key, [b"new"]) if number % 2 else engine.delete(key, condition=PRESENT)
        first, answer, sync = await asyncio.gather(
            engine.put(b"first", [b"%d" % number]),
            change,
            engine._queue.submit_all([SyncIndex()]),
            return_exceptions=True,
        )
        assert not isinstance(first, BaseException)
        assert not isinstance(answer, BaseException), answer
        assert isinstance(sync, StorageError | StorageFullError)
    assert index.failed
    index.failing = False
    await engine.check()
    await opened.close()


def test_h52_the_engine_compacts_by_itself_when_the_disk_is_full() -> None:
    async def main(loop: SimLoop) -> None:
        disk, index = SimulatedDisk(capacity_bytes=60 * 4096), MemoryIndex()
        opened = await open_small(ROOT, files=disk.mount("one"), open_index=lambda _: index)
        stored = await fill_up(opened.engine, b"a")
        for number in range(stored - 3):
            await opened.engine.delete(b"a%04d" % number)
        for _ in range(100):
            try:
                await opened.engine.put(b"again", [b"x" * 3000])
                break
            except StorageFullError:
                await asyncio.sleep(1)
        assert (await opened.engine.head(b"again")).size == 3000
        await opened.close()

    run_simulation(2, main)


@pytest.mark.parametrize("kind", ["write", "sync", "create"])
def test_h48_a_group_that_failed_is_never_found_again(kind: str) -> None:
    """Its callers do not know; everybody else has seen that it did not happen, so a rebuild must see the same."""

    async def main(loop: SimLoop) -> None:
        disk, index = SimulatedDisk(), MemoryIndex()
        opened = await open_small(ROOT, files=disk.mount("one"), open_index=lambda _: index)
        engine = opened.engine
        await engine.put(b"key", [b"old" * 1000])
        if kind == "create":
            await engine.put(b"big", [bytes(30_000)])
        disk.faults.plan(kind, errno.EIO, path_part="volume_")
        with pytest.raises(StorageError):
            await engine.put(b"key", [b"new" * 1000])
        assert (await engine.get(b"key")).content == b"old" * 1000
        await engine.put(b"other", [b"x" * 1000])
        await opened.close()
        again = await open_small(ROOT, files=disk.mount("two"), open_index=lambda _: MemoryIndex())
        assert (await again.engine.get(b"key")).content == b"old" * 1000
        assert (await again.engine.get(b"other")).content == b"x" * 1000
        await again.engine.check()
        await again.close()

    run_simulation(3, main)


def test_an_index_that_fails_refuses_changes_and_goes_on_when_it_works_again() -> None:
    class FailingIndex(MemoryIndex):
        fails = False

        def apply(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
            super().apply(changes)
            if self.fails:
                raise OSError(errno.EIO, "it may be applied or not")

    async def main(loop: SimLoop) -> None:
        disk, index = SimulatedDisk(), FailingIndex()
        opened = await open_small(ROOT, files=disk.mount("one"), open_index=lambda _: index)
        stored: list[int] = []
        for number in range(60):
            index.fails = 20 <= number < 40
            try:
                await opened.engine.put(b"key/%02d" % number, [b"%02d" % number * 500])
                stored.append(number)
            except StorageError:
                assert index.fails
        assert 20 < len(stored) < 60
        assert stored[-20:] == list(range(40, 60))
        await opened.engine.check()
        await opened.close()
        for open_index in (lambda _: index, lambda _: MemoryIndex()):
            again = await open_small(ROOT, files=disk.mount("two"), open_index=open_index)
            keys = [one.key for one in await again.engine.list(b"", limit=100)]
            assert keys == [b"key/%02d" % number for number in stored]
            await again.engine.check()
            await again.close()

    run_simulation(4, main)
