"""Objects whose key alone tells which bytes they have: chunks and runs of containers."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from segmentstore.contracts.errors import CorruptedDataError
from tests.tier2.counting_threads import CountingThreads
from tests.tier2.object_stores.failing_files import FailingFileSystem
from tests.tier2.volumes.engines import SMALL, SetClock, open_small, small_engine
from tier2.object_stores.volumes import VolumeObjectStore
from tier2.volumes.index_database import LmdbIndex
from tier2.volumes.objects import digest, digest_by_name
from tier2.volumes.opening import open_engine
from tier2.volumes.settings import VolumeSettings

MIB = 1 << 20
BYTES = Random(5).randbytes(30_000)


def stored_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in (directory / "volumes").iterdir())


def test_a_name_stands_for_the_hash_and_changes_with_the_bytes() -> None:
    hashed = digest([BYTES[:11], memoryview(BYTES)[11:]], 1000)
    named = digest_by_name(b"key", [BYTES[:11], memoryview(BYTES)[11:]], 1000)
    assert (named.size, named.pieces) == (hashed.size, hashed.pieces)
    assert named == digest_by_name(b"key", [BYTES], 1000)
    others = [
        digest_by_name(b"other", [BYTES], 1000),
        digest_by_name(b"key", [b"\0" + BYTES[1:]], 1000),
        digest_by_name(b"key", [BYTES, b"\0"], 1000),
        hashed,
    ]
    assert len({named.content_hash, *(other.content_hash for other in others)}) == 5
    assert hashed.content_hash == hashlib.sha256(BYTES).digest()


async def test_unique_objects_share_their_bytes_with_nobody(tmp_path: Path) -> None:
    async with small_engine(str(tmp_path)) as engine:
        await engine.put(b"hashed", [BYTES])
        before = stored_bytes(tmp_path)
        await engine.put(b"first", [BYTES], unique=True)
        await engine.put(b"second", [BYTES], unique=True)
        assert stored_bytes(tmp_path) > before + 2 * len(BYTES)
        await engine.put(b"hashed too", [BYTES])
        assert stored_bytes(tmp_path) < before + 3 * len(BYTES)
        await engine.delete(b"first")
        await engine.compact()
        for key in (b"second", b"hashed", b"hashed too"):
            assert (await engine.get(key)).content == BYTES
        await engine.check()


async def test_a_key_that_gets_other_bytes_after_all_never_shows_the_old_ones(
    tmp_path: Path,
) -> None:
    async with small_engine(str(tmp_path)) as engine:
        await engine.put(b"key", [BYTES], unique=True)
        await engine.delete(b"key")
        await engine.put(b"key", [BYTES[::-1]], unique=True)
        assert (await engine.get(b"key")).content == BYTES[::-1]
        await engine.check()


async def test_unique_objects_are_found_again_from_the_volumes_alone(tmp_path: Path) -> None:
    keys = [b"key/%d" % number for number in range(5)]
    async with small_engine(str(tmp_path)) as engine:
        for key in keys:
            await engine.put(key, [key * 3000], unique=True)
        records = [await engine.head(key) for key in keys]
    shutil.rmtree(tmp_path / "index")
    async with small_engine(str(tmp_path)) as engine:
        assert [await engine.head(key) for key in keys] == records
        for key in keys:
            assert (await engine.get(key)).content == key * 3000
        await engine.check()


async def test_a_part_of_a_chunk_comes_as_the_disk_gives_it_and_a_whole_object_is_checked(
    tmp_path: Path,
) -> None:
    opened = await open_small(str(tmp_path))
    store = VolumeObjectStore(engine=opened.engine)
    await store.put("key", [BYTES])
    [path] = (tmp_path / "volumes").iterdir()
    content = path.read_bytes()
    place = content.index(BYTES)
    path.write_bytes(
        content[: place + 1500] + bytes([content[place + 1500] ^ 1]) + content[place + 1501 :]
    )
    # The damaged byte is in the same piece as these, and none of them.
    assert await store.get_range("key", 1000, 500) == BYTES[1000:1500]
    assert await store.get_range("key", 29_000, 5000) == BYTES[29_000:]
    assert (await store.get_range("key", 1500, 10))[1:] == BYTES[1501:1510]
    with pytest.raises(CorruptedDataError):
        await opened.engine.get_range(b"key", 1000, 500)
    with pytest.raises(CorruptedDataError):
        await store.get_range("key", 0, len(BYTES))
    with pytest.raises(CorruptedDataError):
        await store.get("key")
    await opened.close()


@pytest.mark.parametrize("unique", [True, False])
async def test_only_long_unique_objects_go_past_the_cache_of_the_system(
    tmp_path: Path, unique: bool
) -> None:
    files = FailingFileSystem()
    opened = await open_small(str(tmp_path), files=files, settings=VolumeSettings(reserve_bytes=0))
    content = Random(6).randbytes(2 * MIB + 11)
    await opened.engine.put(b"short", [content[:100_000]], unique=unique)
    assert "write_direct" not in files.log.verbs()
    await opened.engine.put(b"long", [content[:70_000], content[70_000:]], unique=unique)
    assert ("write_direct" in files.log.verbs()) == unique
    await opened.engine.put(b"after", [b"a" * 10_000])
    assert (await opened.engine.get(b"long")).content == content
    assert (await opened.engine.get(b"after")).content == b"a" * 10_000
    assert (await opened.engine.get(b"short")).content == content[:100_000]
    await opened.engine.check()
    await opened.close()


async def test_those_who_wait_for_an_object_have_threads_of_their_own(tmp_path: Path) -> None:
    with CountingThreads() as executor, CountingThreads() as readers:
        opened = await open_engine(
            str(tmp_path),
            files=FailingFileSystem(),
            open_index=LmdbIndex,
            executor=executor,
            readers=readers,
            wall_clock=SetClock(),
            random=Random(1),
            # The database gets no rows by itself, which would be a job of a thread.
            settings=replace(SMALL, index_delay_seconds=1e9),
        )
        await opened.engine.put(b"key", [BYTES], unique=True)
        opened.engine._index.sync()  # what is still in memory takes no thread
        assert readers.jobs == 0
        before = executor.jobs
        assert (await opened.engine.get(b"key")).content == BYTES
        assert (await opened.engine.get_range(b"key", 5, 10)).content == BYTES[5:15]
        await opened.engine.head(b"key")
        await opened.engine.list(b"", limit=10)
        assert (executor.jobs, readers.jobs) == (before, 4)
        await opened.close()
