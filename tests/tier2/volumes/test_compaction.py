"""Compaction gives space back and nothing else away."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from segmentstore.contracts.errors import ObjectLockedError, ObjectNotFoundError
from segmentstore.runtime.files import SystemFileSystem
from tests.sim.disk import SimulatedDisk
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tests.tier2.volumes.engines import SMALL, open_small
from tests.tier2.volumes.memory_index import MemoryIndex
from tier2.volumes.compaction import CompactionPicker, Compactor
from tier2.volumes.engine import VolumeEngine
from tier2.volumes.objects import RetentionMode
from tier2.volumes.opening import OpenEngine
from tier2.volumes.scrub import VolumeScrubber
from tier2.volumes.volume_files import ScannedRecord, VolumeFiles, VolumeScan
from tier2.volumes.volume_format import RecordKind


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[OpenEngine]:
    opened = await open_small(str(tmp_path / "engine"))
    yield opened
    await opened.close()


def content_of(number: int) -> bytes:
    return Random(number).randbytes(2000)


async def fill(engine: VolumeEngine, count: int) -> None:
    for number in range(count):
        await engine.put(b"key/%03d" % number, [content_of(number)])


def volumes_of(directory: Path) -> list[Path]:
    return sorted((directory / "volumes").iterdir())


def records_of(directory: Path) -> list[tuple[RecordKind, bytes, int]]:
    """Kind, key and number of every record in every volume."""
    engine_id = (directory / "identity").read_bytes()[16:32]
    volumes = VolumeFiles(
        str(directory / "volumes"), files=SystemFileSystem(), random=Random(), engine_id=engine_id
    )
    found = []
    for number in volumes.numbers():
        header = volumes.header(number)
        assert header is not None
        file = volumes.open(number)
        for one in VolumeScan(file, secret=header.secret, size=volumes.size(number), offset=0):
            assert isinstance(one, ScannedRecord)
            found.append((one.header.kind, one.key, one.header.sequence))
        file.close()
    return found


async def test_volumes_of_which_little_is_live_are_copied_and_removed(
    opened: OpenEngine, tmp_path: Path
) -> None:
    engine = opened.engine
    await fill(engine, 60)
    before = [await engine.head(b"key/%03d" % number) for number in range(60)]
    size = sum(path.stat().st_size for path in volumes_of(tmp_path / "engine"))
    for number in range(60):
        if number % 4:
            await engine.delete(b"key/%03d" % number)
    summary = await engine.compact()
    assert len(summary.removed) >= 4
    assert summary.kept == []
    assert sum(path.stat().st_size for path in volumes_of(tmp_path / "engine")) < size / 2
    for number in range(0, 60, 4):
        found = await engine.get(b"key/%03d" % number)
        assert found.content == content_of(number)
        assert found.record == before[number], "the same record, also the same number (H69)"
    await engine.check()


async def test_an_engine_with_nothing_to_do_does_nothing(opened: OpenEngine) -> None:
    await fill(opened.engine, 30)
    for _ in range(2):
        summary = await opened.engine.compact()
        assert (summary.removed, summary.written) == ([], [])


async def test_many_small_volumes_become_one(tmp_path: Path) -> None:
    directory = tmp_path / "engine"
    for number in range(9):
        opened = await open_small(str(directory))
        await opened.engine.put(b"key/%d" % number, [b"x" * 500 + b"%d" % number])
        await opened.close()
    assert len(volumes_of(directory)) == 9
    opened = await open_small(str(directory))
    summary = await opened.engine.compact()
    assert (len(summary.removed), len(summary.written)) == (9, 1)
    for number in range(9):
        assert (await opened.engine.get(b"key/%d" % number)).content.endswith(b"%d" % number)
    await opened.engine.check()
    await opened.close()


async def test_lives_without_a_put_leave_no_volume(tmp_path: Path) -> None:
    for _ in range(5):
        opened = await open_small(str(tmp_path / "engine"))
        with pytest.raises(ObjectNotFoundError):
            await opened.engine.get(b"nothing")
        await opened.engine.delete(b"nothing")
        await opened.close()
    assert volumes_of(tmp_path / "engine") == []


async def test_bytes_that_others_name_survive_the_object_that_brought_them(
    opened: OpenEngine,
) -> None:
    engine = opened.engine
    shared = b"shared" * 500
    await engine.put(b"first", [shared])
    await fill(engine, 20)
    await engine.put(b"second", [shared])
    await engine.delete(b"first")
    for number in range(20):
        await engine.delete(b"key/%03d" % number)
    await fill(engine, 12)
    summary = await engine.compact()
    assert summary.removed
    assert (await engine.get(b"second")).content == shared
    await engine.check()


async def test_locked_objects_are_kept(opened: OpenEngine) -> None:
    engine = opened.engine
    await fill(engine, 30)
    await engine.change_lock(b"key/003", legal_hold=True)
    await engine.change_lock(b"key/004", retention=(RetentionMode.COMPLIANCE, 2_000_000))
    for number in range(30):
        if number in (3, 4):
            with pytest.raises(ObjectLockedError):
                await engine.delete(b"key/%03d" % number, bypass_governance=True)
        else:
            await engine.delete(b"key/%03d" % number)
    assert (await engine.compact()).removed
    assert (await engine.get(b"key/003")).record.legal_hold
    assert (await engine.get(b"key/004")).content == content_of(4)
    await engine.check()


async def test_h70_a_tombstone_stays_while_a_volume_may_hold_what_it_is_there_for(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "engine"
    # Never compacted for its share: what is deleted stays in its volume.
    lazy = replace(SMALL, compaction_live_share_max=0.0)
    opened = await open_small(str(directory), settings=lazy)
    await fill(opened.engine, 12)
    await opened.engine.delete(b"key/000")
    await opened.close()
    for life in range(6):
        opened = await open_small(str(directory), settings=lazy)
        await opened.engine.put(b"other", [Random(life).randbytes(300)])
        await opened.engine.compact()
        await opened.close()
    kinds = [(kind, key) for kind, key, _ in records_of(directory)]
    assert (RecordKind.PUT, b"key/000") in kinds
    assert (RecordKind.TOMBSTONE, b"key/000") in kinds
    (directory / "index").rename(directory / "elsewhere")
    opened = await open_small(str(directory))
    with pytest.raises(ObjectNotFoundError):
        await opened.engine.get(b"key/000")
    # Now the volume may go, and the tombstone with it or after it.
    for number in range(1, 12):
        await opened.engine.delete(b"key/%03d" % number)
    await opened.engine.put(b"other", [b"x" * 700])
    await opened.close()
    opened = await open_small(str(directory))
    for _ in range(3):
        await opened.engine.compact()
    await opened.close()
    assert [key for _, key, _ in records_of(directory)] == [b"other"]


async def test_h70_tombstones_do_not_wait_for_old_volumes_that_cannot_need_them(
    tmp_path: Path,
) -> None:
    opened = await open_small(str(tmp_path / "engine"))
    engine = opened.engine
    for number in range(12):
        await engine.put(b"forever/%d" % number, [content_of(1000 + number)])
    for number in range(200):
        await engine.put(b"passing/%d" % number, [content_of(number)])
        await engine.delete(b"passing/%d" % number)
    for _ in range(3):
        await engine.compact()
    await opened.close()
    opened = await open_small(str(tmp_path / "engine"))
    for _ in range(3):
        await opened.engine.compact()
    await opened.close()
    left = [key for _, key, _ in records_of(tmp_path / "engine")]
    assert len([key for key in left if key.startswith(b"forever")]) == 12
    assert len([key for key in left if key.startswith(b"passing")]) <= 30, "the newest volume's"


async def test_a_damaged_volume_stays(tmp_path: Path) -> None:
    directory = tmp_path / "engine"
    opened = await open_small(str(directory))
    await fill(opened.engine, 12)
    for number in range(1, 9):
        await opened.engine.delete(b"key/%03d" % number)
    first = volumes_of(directory)[0]
    content = bytearray(first.read_bytes())
    place = content.index(content_of(0))
    content[place + 100] ^= 1
    first.write_bytes(content)
    summary = await opened.engine.compact()
    assert summary.kept == [1]
    assert first.exists()
    assert (await opened.engine.get(b"key/009")).content == content_of(9)
    await opened.close()


async def test_h70_copies_of_a_volume_that_turned_out_damaged_do_not_outlive_it(
    tmp_path: Path,
) -> None:
    """They were not published, so nothing knows of their numbers: a tombstone would go, and they would come back."""
    settings = replace(SMALL, compaction_small_count=100)
    opened = await open_small(str(tmp_path), settings=settings)
    for number in range(20):
        await opened.engine.put(b"b/%03d" % number, [b"B" * 100 + bytes([number])])
    for number in range(10, 20):
        await opened.engine.delete(b"b/%03d" % number)
    await opened.close()
    opened = await open_small(str(tmp_path), settings=settings)
    await opened.engine.put(b"deleted", [b"k" * 150])
    for number in range(10):
        await opened.engine.put(b"a/%03d" % number, [b"A" * 100 + bytes([number])])
    await opened.engine.put(b"last", [b"z" * 150])
    await opened.close()
    opened = await open_small(str(tmp_path), settings=settings)
    for number in range(10):
        await opened.engine.delete(b"a/%03d" % number)
    path = tmp_path / "volumes" / "volume_000002.dat"
    path.write_bytes(path.read_bytes().replace(b"z" * 150, b"z" * 149 + b"!"))
    assert (await opened.engine.compact()).kept == [2]
    await opened.engine.delete(b"deleted")
    await opened.engine.delete(b"last")
    for number in range(20):
        await opened.engine.put(b"g", [b"g" * 150 + bytes([number])])
    await opened.close()
    opened = await open_small(str(tmp_path), settings=settings)
    await opened.engine.compact()
    await opened.engine.compact()
    before = [one.key for one in await opened.engine.list(b"", limit=1000)]
    await opened.close()
    again = await open_small(str(tmp_path), settings=settings, open_index=lambda _: MemoryIndex())
    assert [one.key for one in await again.engine.list(b"", limit=1000)] == before
    assert b"deleted" not in before
    await again.close()


@pytest.mark.parametrize("seed", range(4))
def test_reads_and_puts_go_on_while_volumes_are_compacted(seed: int) -> None:
    async def main(loop: SimLoop) -> None:
        disk, index = SimulatedDisk(), MemoryIndex()
        settings = replace(SMALL, compaction_batch_bytes=2500)
        opened = await open_small(
            "/machine/engine",
            files=disk.mount("one"),
            open_index=lambda _: index,
            settings=settings,
        )
        engine = opened.engine
        await fill(engine, 80)
        for number in range(80):
            if number % 3:
                await engine.delete(b"key/%03d" % number)
        random = Random(3)
        removed = 0

        async def compact() -> None:
            nonlocal removed
            removed = len((await engine.compact()).removed)

        async def read() -> None:
            for _ in range(300):
                number = random.randrange(0, 80, 3)
                assert (await engine.get(b"key/%03d" % number)).content == content_of(number)

        async def change() -> None:
            for number in range(60):
                await engine.put(b"key/%03d" % (number % 30 * 3), [content_of(number % 30 * 3)])
                await engine.delete(b"new/%d" % (number - 3))
                await engine.put(b"new/%d" % number, [content_of(number)])

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(compact())
            tasks.create_task(change())
            for _ in range(3):
                tasks.create_task(read())
        assert removed > 3
        await engine.check()
        await opened.close()

    run_simulation(seed, main)


def test_the_engine_compacts_by_itself_some_time_after_a_change_and_then_rests() -> None:
    async def main(loop: SimLoop) -> None:
        disk, index = SimulatedDisk(), MemoryIndex()
        settings = replace(
            SMALL, compaction_interval_seconds=10.0, compaction_bytes_per_second=5000
        )
        opened = await open_small(
            "/machine/engine",
            files=disk.mount("one"),
            open_index=lambda _: index,
            settings=settings,
        )
        await fill(opened.engine, 40)
        for number in range(38):
            await opened.engine.delete(b"key/%03d" % number)
        used = disk.used_bytes()
        await asyncio.sleep(9)
        assert disk.used_bytes() == used
        await asyncio.sleep(60)
        assert disk.used_bytes() < used / 2
        await asyncio.sleep(60)
        boundaries = disk.boundaries
        await asyncio.sleep(10_000)
        assert disk.boundaries == boundaries
        await opened.engine.check()
        await opened.close()

    run_simulation(1, main)


def test_compaction_in_the_background_rests_in_proportion_to_its_work() -> None:
    async def seconds_of(loop: SimLoop, share: float) -> float:
        disk, index = SimulatedDisk(), MemoryIndex()
        settings = replace(
            SMALL,
            compaction_interval_seconds=1.0,
            compaction_busy_share_max=share,
            compaction_busy_share_min=share,
        )
        opened = await open_small(
            "/machine/engine",
            files=disk.mount("one"),
            open_index=lambda _: index,
            settings=settings,
        )
        await fill(opened.engine, 40)
        used = disk.used_bytes()
        for number in range(40):
            if number % 8:
                await opened.engine.delete(b"key/%03d" % number)
        begin = loop.time()
        while disk.used_bytes() > used / 2 and loop.time() < begin + 1000:
            await asyncio.sleep(0.1)
        seconds = loop.time() - begin
        await opened.engine.check()
        await opened.close()
        return seconds

    async def main(loop: SimLoop) -> None:
        loop.executor_delay = lambda _: 0.01
        assert await seconds_of(loop, 1.0) < 10
        # Steps of 10 ms at least, of which three or more copy something.
        assert 30 < await seconds_of(loop, 0.001) < 1000

    run_simulation(1, main)


@pytest.mark.parametrize("work", ["compaction", "scrub"])
async def test_background_work_that_stops_by_a_bug_is_logged_and_told_and_the_volumes_work_on(
    work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise AssertionError("a bug")

    if work == "compaction":
        monkeypatch.setattr(Compactor, "compact", fail)
    else:
        monkeypatch.setattr(VolumeScrubber, "scrub", fail)
    settings = replace(
        SMALL,
        compaction_interval_seconds=0.0,
        scrub_bytes_per_second=1 << 20,
        scrub_delay_seconds=0.0,
    )
    opened = await open_small(str(tmp_path / "engine"), settings=settings)
    await fill(opened.engine, 3)
    async with asyncio.timeout(60):
        while not opened.engine.complaints():
            await asyncio.sleep(0.01)
    [complaint] = opened.engine.complaints()
    assert work in complaint or "scrubbed" in complaint
    assert "a bug" in complaint
    assert any(record.levelname == "CRITICAL" for record in caplog.records)
    await opened.engine.put(b"after", [b"it"])
    await opened.close()


@pytest.mark.parametrize(("kept_each", "least", "most"), [(10, 0.75, 1.0), (2, 0.3, 0.6)])
async def test_what_compaction_could_give_back_is_known_as_a_share(
    tmp_path: Path, kept_each: int, least: float, most: float
) -> None:
    index, directory = MemoryIndex(), tmp_path / "engine"
    opened = await open_small(str(directory), open_index=lambda _: index)
    await fill(opened.engine, 60)
    for number in range(60):
        if number % kept_each:
            await opened.engine.delete(b"key/%03d" % number)
    await opened.close()
    engine_id = (directory / "identity").read_bytes()[16:32]
    volumes = VolumeFiles(
        str(directory / "volumes"), files=SystemFileSystem(), random=Random(), engine_id=engine_id
    )
    choice = CompactionPicker(index=index, volumes=volumes, settings=SMALL)
    assert choice.garbage_share == 0.0
    assert choice.candidates(0)
    assert least < choice.garbage_share < most
