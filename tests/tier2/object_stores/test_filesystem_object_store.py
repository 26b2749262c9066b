"""The filesystem store on the operating system's files."""

from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from segmentstore.contracts.object_store import ObjectStore
from segmentstore.runtime.files import SystemFileSystem
from tests.contracts.object_store_suite import ObjectStoreSuite
from tier2.object_stores.filesystem import FilesystemObjectStore


@pytest.fixture
def executor() -> Iterator[Executor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


async def opened(root: Path, executor: Executor, seed: int) -> FilesystemObjectStore:
    store = FilesystemObjectStore(
        str(root), files=SystemFileSystem(), executor=executor, random=Random(seed)
    )
    await store.start()
    return store


class TestFilesystemObjectStore(ObjectStoreSuite):
    @pytest.fixture
    async def store(self, tmp_path: Path, executor: Executor) -> AsyncIterator[ObjectStore]:
        store = await opened(tmp_path / "store", executor, 1)
        yield store
        await store.close()

    @pytest.fixture
    async def second_store(
        self, tmp_path: Path, executor: Executor, store: ObjectStore
    ) -> AsyncIterator[ObjectStore]:
        second = await opened(tmp_path / "store", executor, 2)
        yield second
        await second.close()
