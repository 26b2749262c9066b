"""Damage is noticed by reads, found by verification, and never served; a damaged index is made anew."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from segmentstore.contracts.errors import CorruptedDataError, StorageError
from tests.tier2.volumes.engines import SMALL, open_small
from tests.tier2.volumes.memory_index import MemoryIndex
from tests.tier2.volumes.test_index_damage import PAGE, pages_in_use
from tier2.volumes import rebuild
from tier2.volumes.index import BLOB, CURRENT
from tier2.volumes.rebuild import Walk, native_walk, walk_in_python

CONTENTS = {b"key/%02d" % n: Random(n).randbytes(n % 4 * 1500 + 100) for n in range(16)}


async def fill(directory: Path) -> None:
    opened = await open_small(str(directory))
    for key, content in CONTENTS.items():
        await opened.engine.put(key, [content], metadata={"a": "b"})
    await opened.close()


@pytest.mark.parametrize("seed", range(25))
async def test_a_flipped_bit_anywhere_is_found_by_verification_and_never_served(
    tmp_path: Path, seed: int
) -> None:
    await fill(tmp_path)
    random = Random(seed)
    path = random.choice(sorted((tmp_path / "volumes").iterdir()))
    content = bytearray(path.read_bytes())
    place = random.randrange(len(content))
    content[place] ^= 1 << random.randrange(8)
    path.write_bytes(content)
    opened = await open_small(str(tmp_path))
    report = await opened.engine.verify(deep=True)
    padding = not report.problems
    for key, right in CONTENTS.items():
        try:
            assert (await opened.engine.get(key)).content == right
        except CorruptedDataError:
            assert report.problems
    await opened.close()
    # Zeros that fill up a record belong to nobody.
    assert not padding or place % 8 or content[place] & (content[place] - 1) == 0


async def test_verification_finds_what_the_index_has_wrong(tmp_path: Path) -> None:
    await fill(tmp_path)
    opened = await open_small(str(tmp_path))
    index = opened.engine._index
    assert (await opened.engine.verify(deep=False)).healthy
    blob = next(iter(index.scan(BLOB, BLOB + b"\xff" * 33, 1)))
    index.apply([(blob[0], None)])
    report = await opened.engine.verify(deep=False)
    assert any("no row" in problem for problem in report.problems)
    index.apply([(blob[0], blob[1][:-1] + b"\x07")])
    report = await opened.engine.verify(deep=False)
    assert report.problems == ["references of bytes are miscounted"]
    index.apply([blob])
    row = index.get(CURRENT + b"key/01")
    assert row is not None
    index.apply([(CURRENT + b"key/02", row)])
    report = await opened.engine.verify(deep=False)
    assert any("another record" in problem for problem in report.problems)
    await opened.close()


async def test_verification_finds_what_the_index_has_lost(tmp_path: Path) -> None:
    """A row that is gone, one that is back, and one of an older object: nothing in the index itself is wrong."""
    opened = await open_small(str(tmp_path))
    engine, index = opened.engine, opened.engine._index
    key, other = CURRENT + b"key", CURRENT + b"other"
    await engine.put(b"key", [b"one"], metadata={"a": "b"})
    first = index.get(key)
    await engine.put(b"key", [b"two"])
    second = index.get(key)
    await engine.put(b"other", [b"x"])
    removed = index.get(other)
    await engine.delete(b"other")
    report = await engine.verify(deep=True)
    assert report.healthy
    assert report.records_compared
    for row_key, row, right, what in (
        (key, None, second, "not in the index"),
        (key, first, second, "older"),
        (other, removed, None, "deleted"),
    ):
        index.apply([(row_key, row)])
        problems = (await engine.verify(deep=True)).problems
        assert any(what in problem for problem in problems), problems
        index.apply([(row_key, right)])
    assert (await engine.verify(deep=True)).healthy
    await opened.close()


@pytest.mark.parametrize("walk", [native_walk(), walk_in_python])
async def test_a_damaged_index_is_moved_aside_and_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, walk: Walk | None
) -> None:
    if walk is None:
        pytest.skip("it was not built, or is switched off")
    monkeypatch.setattr(rebuild, "FASTEST_WALK", walk)
    await fill(tmp_path)
    data = tmp_path / "index" / "data.mdb"
    data.write_bytes(b"nonsense" * (data.stat().st_size // 8))
    opened = await open_small(str(tmp_path))
    assert "damaged" in opened.replay.rebuilt
    assert (tmp_path / "index.damaged-1" / "data.mdb").read_bytes().startswith(b"nonsense")
    for key, right in CONTENTS.items():
        assert (await opened.engine.get(key)).content == right
    await opened.engine.check()
    await opened.close()


_LIFE = """
import asyncio, sys
from tests.tier2.volumes.engines import open_small

async def main():
    opened = await open_small(sys.argv[1])
    print(opened.replay.rebuilt)
    for number in range(400):
        key = b"k%04d" % number
        if sys.argv[2] == "fill":
            await opened.engine.put(key, [key * 20])
        else:
            assert (await opened.engine.get(key)).content == key * 20
    await opened.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("share", [0.01, 0.3, 0.6, 0.95])
async def test_an_index_file_that_was_cut_short_is_made_anew(tmp_path: Path, share: float) -> None:
    """A look behind its end would be SIGBUS: at each start, without a word."""

    def live(what: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", _LIFE, str(tmp_path), what],
            cwd=Path(__file__).parents[3],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout

    live("fill")
    path = tmp_path / "index" / "data.mdb"
    used, _ = pages_in_use(path.parent)
    # Pages behind the last one in use are free, and not needed.
    os.truncate(path, int(PAGE * (max(used) + 1) * share))
    assert "damaged" in live("read")
    assert live("read").strip() == ""


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


async def test_damage_at_the_end_of_an_old_volume_is_said_by_a_rebuild(tmp_path: Path) -> None:
    """It is no group that a cut tore: its number is lower than others."""
    for life in range(2):
        opened = await open_small(str(tmp_path))
        await opened.engine.put(b"%d" % life, [b"x" * 100], metadata={"a": "b"})
        await opened.close()
    path = tmp_path / "volumes" / "volume_000001.dat"
    size = path.stat().st_size
    flip(path, size - 40)
    shutil.rmtree(tmp_path / "index")
    opened = await open_small(str(tmp_path))
    assert [number for number, _ in opened.replay.damaged] == [1]
    assert path.stat().st_size == size
    assert not (await opened.engine.verify(deep=True)).healthy
    await opened.close()


@pytest.mark.parametrize("index_is_lost", [False, True])
async def test_damage_in_the_last_group_but_one_leaves_the_last(
    tmp_path: Path, *, index_is_lost: bool
) -> None:
    """A group is written when the one before it was synced: the damage is no torn write."""
    path, ends = tmp_path / "volumes" / "volume_000001.dat", list[int]()
    index = MemoryIndex()
    # It has none of their rows, however long the disk takes.
    quiet = replace(SMALL, index_delay_seconds=1e9)
    opened = await open_small(str(tmp_path), open_index=lambda _: index, settings=quiet)
    for number in range(3):
        await opened.engine.put(b"%d" % number, [b"x" * 100], metadata={"a": "b"})
        ends.append(path.stat().st_size)
    left = index.fork()
    await opened.close()
    flip(path, ends[1] - 40)
    left = MemoryIndex() if index_is_lost else left
    opened = await open_small(str(tmp_path), open_index=lambda _: left)
    assert [one.key for one in await opened.engine.list(b"", limit=10)] == [b"0", b"1", b"2"]
    with pytest.raises(CorruptedDataError):
        await opened.engine.get(b"1")
    assert [number for number, _ in opened.replay.damaged] == [1]
    await opened.close()


async def test_whoever_comes_behind_an_index_that_turned_out_damaged_is_told(
    tmp_path: Path,
) -> None:
    """Its damage is met by nobody's change: rows are written to it after a delay."""

    class Damaged(MemoryIndex):
        is_damaged = False
        met = 0

        def apply(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
            if self.is_damaged:
                self.met += 1
                raise CorruptedDataError("a page of the index is damaged")
            super().apply(changes)

    index = Damaged()
    settings = replace(SMALL, index_delay_seconds=0.001)
    opened = await open_small(str(tmp_path), open_index=lambda _: index, settings=settings)
    index.is_damaged = True
    await opened.engine.put(b"key", [b"durable in its volume"])
    async with asyncio.timeout(60):
        while not index.met:
            await asyncio.sleep(0.001)
        with pytest.raises(CorruptedDataError):
            await opened.engine.delete(b"key")
    index.is_damaged = False
    await opened.engine.put(b"other", [b"x"])
    assert (await opened.engine.get(b"key")).content == b"durable in its volume"
    await opened.close()


async def test_volumes_of_another_store_are_refused_and_the_index_stays(tmp_path: Path) -> None:
    await fill(tmp_path / "one")
    await fill(tmp_path / "two")
    (tmp_path / "two" / "identity").write_bytes(b"")
    other = await open_small(str(tmp_path / "three"), seed=77)
    await other.engine.put(b"x", [b"y" * 500])
    await other.close()
    foreign = tmp_path / "three" / "volumes" / "volume_000001.dat"
    before = (tmp_path / "one" / "index" / "data.mdb").read_bytes()
    (tmp_path / "one" / "volumes" / "volume_000099.dat").write_bytes(foreign.read_bytes())
    with pytest.raises(CorruptedDataError, match="another"):
        await open_small(str(tmp_path / "one"))
    assert (tmp_path / "one" / "index" / "data.mdb").read_bytes() == before
    with pytest.raises(CorruptedDataError, match="identity"):
        await open_small(str(tmp_path / "two"))


async def test_a_volume_with_a_damaged_header_is_still_read_through_the_index(
    tmp_path: Path,
) -> None:
    await fill(tmp_path)
    path = tmp_path / "volumes" / "volume_000001.dat"
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    opened = await open_small(str(tmp_path))
    for key, right in CONTENTS.items():
        assert (await opened.engine.get(key)).content == right
    for key in CONTENTS:
        await opened.engine.delete(key)
    await opened.engine.compact()
    assert path.exists(), "nobody knows what is in it"
    assert not (await opened.engine.verify(deep=False)).healthy
    await opened.close()


async def test_a_volume_whose_header_became_zeros_is_no_empty_one(tmp_path: Path) -> None:
    await fill(tmp_path)
    path = tmp_path / "volumes" / "volume_000001.dat"
    path.write_bytes(bytes(64) + path.read_bytes()[64:])
    shutil.rmtree(tmp_path / "index")
    opened = await open_small(str(tmp_path))
    assert opened.replay.unreadable == [1]
    await opened.engine.compact()
    assert path.exists(), "nobody knows what is in it"
    await opened.close()


async def test_a_volume_whose_creation_was_cut_off_goes(tmp_path: Path) -> None:
    await fill(tmp_path)
    for number, length in ((7, 0), (8, 10), (9, 64)):
        (tmp_path / "volumes" / f"volume_{number:06d}.dat").write_bytes(bytes(length))
    opened = await open_small(str(tmp_path))
    assert opened.replay.unreadable == []
    assert {7, 8, 9} <= set((await opened.engine.compact()).removed)
    await opened.close()


async def test_a_stray_file_among_the_volumes_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(tmp_path)
    volumes = tmp_path / "volumes"
    first = (volumes / "volume_000001.dat").read_bytes()
    strays = (
        "volume_000001_copy.dat",
        "volume_1.dat",
        "volume_00000\u0661.dat",
        "volume_.dat",
        "x",
    )
    for name in strays:
        (volumes / name).write_bytes(first)
    opened = await open_small(str(tmp_path))
    for key, right in CONTENTS.items():
        assert (await opened.engine.get(key)).content == right
        await opened.engine.delete(key)
    await opened.engine.compact()
    assert all((volumes / name).read_bytes() == first for name in strays)
    assert caplog.text.count("volume_000001_copy.dat") == 1
    await opened.close()


_WRITER = """
import asyncio, sys
from random import Random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tests.tier2.volumes.engines import open_small

async def main():
    with ThreadPoolExecutor(4) as executor:
        opened = await open_small(sys.argv[1], executor=executor)
        life = int(sys.argv[2])

        async def write(name):
            for number in range(100_000):
                key = b"%d/%d" % (name, number % 10)
                await opened.engine.put(key, [b"%d %d" % (life, number) + b"." * (name * 900)])
                print(key.decode(), life, number, flush=True)
                if number % 7 == 0:
                    await opened.engine.delete(b"%d/passing" % name)
                    await opened.engine.put(b"%d/passing" % name, [b"x" * 3000 + b"%d" % number])

        async def compact():
            while True:
                await opened.engine.compact()
                await asyncio.sleep(0.02)

        async with asyncio.TaskGroup() as tasks:
            for name in range(4):
                tasks.create_task(write(name))
            tasks.create_task(compact())

asyncio.run(main())
"""


@pytest.mark.slow
async def test_kill_9_under_load_loses_nothing_that_was_answered(tmp_path: Path) -> None:
    answered: dict[bytes, tuple[int, int]] = {}
    random = Random(1)
    for life in range(5):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(tmp_path / "engine"), str(life)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        assert writer.stdout is not None
        for _ in range(random.randrange(100, 600)):
            key, its_life, number = writer.stdout.readline().split()
            answered[key.encode()] = (int(its_life), int(number))
        os.kill(writer.pid, signal.SIGKILL)
        writer.stdout.close()
        writer.wait()
        opened = await open_small(str(tmp_path / "engine"))
        for written_key, written in answered.items():
            content = (await opened.engine.get(written_key)).content
            found = tuple(int(word) for word in content.split(b".")[0].split())
            assert found >= written, written_key
        await opened.engine.check()
        await opened.close()


async def test_reading_a_volume_that_is_gone_is_damage_in_words(tmp_path: Path) -> None:
    await fill(tmp_path)
    opened = await open_small(str(tmp_path))
    for path in (tmp_path / "volumes").iterdir():
        path.unlink()
    with pytest.raises(StorageError, match="missing"):
        await opened.engine.get(b"key/03")
    await opened.close()
