import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from segmentstore.contracts.errors import StorageError, StorageUnavailableError
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.runtime.files import SystemFileSystem
from tests.contracts.object_store_suite import ObjectStoreSuite
from tier2.object_stores.filesystem import FilesystemObjectStore
from tier2.object_stores.lazy_object_store import LazyObjectStore


def filesystem_store(root: Path) -> FilesystemObjectStore:
    return FilesystemObjectStore(
        str(root), files=SystemFileSystem(), executor=None, random=Random(str(root))
    )


class TestLateObjectStore(ObjectStoreSuite):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[ObjectStore]:
        store = LazyObjectStore(filesystem_store(tmp_path / "objects"))
        yield store
        await store.close()

    @pytest.fixture
    def second_store(self, store: ObjectStore) -> ObjectStore:
        return store


class AwayStore(FilesystemObjectStore):
    """Cannot be started a few times; counts the attempts."""

    failures = 2
    starts = 0

    async def start(self) -> int:
        self.starts += 1
        if self.starts <= self.failures:
            raise StorageError("not mounted")
        await asyncio.sleep(0)
        return await super().start()


def away_store(root: Path) -> AwayStore:
    return AwayStore(str(root), files=SystemFileSystem(), executor=None, random=Random(3))


async def test_h41_calls_fail_until_the_store_can_be_started_and_work_from_then_on(
    tmp_path: Path,
) -> None:
    behind = away_store(tmp_path / "objects")
    store = LazyObjectStore(behind)
    for _ in range(behind.failures):
        with pytest.raises(StorageError, match="not mounted"):
            await store.put("a", [b"x"])
    await store.put("a", [b"x"])
    assert (await store.get("a")).content == b"x"
    await store.close()


async def test_concurrent_first_calls_start_the_store_once(tmp_path: Path) -> None:
    behind = away_store(tmp_path / "objects")
    behind.failures = 0
    store = LazyObjectStore(behind)
    await asyncio.gather(*(store.put(f"a{number}", [b"x"]) for number in range(10)))
    assert behind.starts == 1
    await store.close()


async def test_closing_a_store_that_never_started_does_nothing(tmp_path: Path) -> None:
    await LazyObjectStore(filesystem_store(tmp_path / "objects")).close()
    assert not (tmp_path / "objects").exists()


async def test_a_call_behind_close_starts_nothing(tmp_path: Path) -> None:
    behind = away_store(tmp_path / "objects")
    behind.failures = 0
    store = LazyObjectStore(behind)
    await store.put("a", [b"x"])
    await store.close()
    with pytest.raises(StorageUnavailableError, match="closed"):
        await store.get("a")
    await store.close()
    assert behind.starts == 1
