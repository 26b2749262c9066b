"""The scrubber of the volumes finds damage of volumes and index, names it, goes on where it was, and keeps its pace."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tier2.volumes.engines import SMALL, SetClock, open_small
from tests.tier2.volumes.memory_index import MemoryIndex
from tier2.volumes.index import current_key, decode_object_row
from tier2.volumes.index_database import LmdbIndex
from tier2.volumes.opening import OpenEngine
from tier2.volumes.scrub import VolumeScrubber

FAST = replace(SMALL, scrub_bytes_per_second=1 << 30, scrub_delay_seconds=1e9)
KEYS = [b"key/%02d" % number for number in range(40)]


def content_of(key: bytes) -> bytes:
    return key * 60


async def filled(opened: OpenEngine) -> VolumeScrubber:
    for key in KEYS:
        await opened.engine.put(key, [content_of(key)])
    await opened.engine.delete(KEYS[3])
    await opened.engine.put(KEYS[4], [b"small"])
    await opened.engine.compact()
    scrubber = opened.engine.scrubber
    assert scrubber is not None
    return scrubber


async def test_a_pass_over_sound_volumes_finds_nothing_and_says_when(tmp_path: Path) -> None:
    opened = await open_small(str(tmp_path), settings=FAST, clock=SetClock(5_000))
    scrubber = await filled(opened)
    await scrubber.scrub()
    assert (scrubber.passes, scrubber.damages, scrubber.last_pass_ms) == (1, 0, 5_000)
    assert not scrubber.findings
    size = sum(path.stat().st_size for path in (tmp_path / "volumes").iterdir())
    assert size * 0.9 < scrubber.scrubbed_bytes < 2 * size
    await opened.close()


async def test_a_flipped_bit_in_a_volume_is_named_and_counts_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened = await open_small(str(tmp_path), settings=FAST)
    scrubber = await filled(opened)
    path = next(
        path
        for path in sorted((tmp_path / "volumes").iterdir())
        if content_of(KEYS[20]) in path.read_bytes()
    )
    whole = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(whole.index(content_of(KEYS[20])) + 7)
        file.write(b"?")
    for _ in range(2):
        await scrubber.scrub()
        assert any(f"volume {int(path.stem[7:])}" in one for one in scrubber.findings)
    assert scrubber.damages == len(scrubber.findings)
    assert "the volumes are damaged" in caplog.text
    path.write_bytes(whole)
    await scrubber.scrub()
    assert not scrubber.findings
    await opened.close()


async def test_a_version_that_the_index_lost_is_named(tmp_path: Path) -> None:
    index = MemoryIndex()
    opened = await open_small(str(tmp_path), settings=FAST, open_index=lambda _: index)
    scrubber = await filled(opened)
    await asyncio.get_running_loop().run_in_executor(None, opened.engine._index.sync)
    index.apply([(current_key(KEYS[9]), None)])
    await scrubber.scrub()
    assert any("key/09" in one and "not in the index" in one for one in scrubber.findings)
    await opened.close()


async def test_a_flipped_bit_in_the_index_is_named(tmp_path: Path) -> None:
    opened = await open_small(
        str(tmp_path),
        settings=FAST,
        open_index=lambda path: LmdbIndex(path, checked_bytes_max=0),
    )
    scrubber = await filled(opened)
    await asyncio.get_running_loop().run_in_executor(None, opened.engine._index.sync)
    path = tmp_path / "index" / "data.mdb"
    whole = path.read_bytes()
    record = opened.engine._index.get(current_key(KEYS[30]))
    assert record is not None
    assert decode_object_row(record).record.size == len(content_of(KEYS[30]))
    changed = whole.replace(record, record[:-1] + bytes([record[-1] ^ 1]))
    assert changed != whole
    for at, (one, other) in enumerate(zip(whole, changed, strict=True)):
        if one != other:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([other]))
    await scrubber.scrub()
    assert any("index" in one and "checksum" in one for one in scrubber.findings)
    assert (tmp_path / "index" / "damaged").exists()
    await opened.close()
    again = await open_small(str(tmp_path), settings=FAST)
    assert (await again.engine.get(KEYS[30])).content == content_of(KEYS[30])
    await again.close()


async def test_a_pass_goes_on_behind_a_restart_with_the_volume_that_it_had_come_to(
    tmp_path: Path,
) -> None:
    slow = replace(FAST, scrub_bytes_per_second=20_000)
    opened = await open_small(str(tmp_path), settings=slow)
    scrubber = await filled(opened)
    task = asyncio.create_task(scrubber.scrub())
    async with asyncio.timeout(300):
        while not (tmp_path / "scrub").exists() or scrubber._place() < 2:
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    place = scrubber._place()
    assert place >= 2
    await opened.close()
    again = await open_small(str(tmp_path), settings=FAST)
    scrubber = again.engine.scrubber or scrubber
    assert scrubber._place() == place
    await scrubber.scrub()
    assert not scrubber.findings
    assert scrubber._place() == 0
    await again.close()


async def test_it_reads_no_faster_than_its_rate(tmp_path: Path) -> None:
    opened = await open_small(str(tmp_path), settings=replace(FAST, scrub_bytes_per_second=50_000))
    scrubber = await filled(opened)
    loop = asyncio.get_running_loop()
    begin = loop.time()
    task = asyncio.create_task(scrubber.scrub())
    await asyncio.sleep(0.4)
    assert scrubber.scrubbed_bytes <= (loop.time() - begin) * 50_000 + (64 << 10)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await opened.close()


async def test_it_runs_by_itself_and_a_rate_of_zero_switches_it_off(tmp_path: Path) -> None:
    settings = replace(FAST, scrub_delay_seconds=0.0, scrub_pass_seconds=0.01)
    opened = await open_small(str(tmp_path), settings=settings)
    scrubber = await filled(opened)
    async with asyncio.timeout(300):
        while scrubber.passes < 3:
            await asyncio.sleep(0.01)
    assert not scrubber.findings
    await opened.close()
    again = await open_small(str(tmp_path), settings=replace(settings, scrub_bytes_per_second=0))
    await asyncio.sleep(0.05)
    assert again.engine.scrubber is not None
    assert again.engine.scrubber.passes == 0
    await again.close()
