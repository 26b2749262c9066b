"""The storage suite over object stores, with ordinary and with tiny limits."""

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from segmentstore.runtime.files import SystemFileSystem
from tests.contracts.storage_suite import StorageSuite
from tests.tier2.storage.backings import SMALL, ObjectStoreBacking
from tier2.object_stores.filesystem import FilesystemObjectStore
from tier2.object_stores.memory import MemoryObjectStore
from tier2.settings import StorageSettings


class TestTieredStorageInMemory(StorageSuite):
    @pytest.fixture(params=["ordinary", "tiny"])
    def backing(self, request: pytest.FixtureRequest) -> ObjectStoreBacking:
        settings = SMALL if request.param == "tiny" else StorageSettings()
        return ObjectStoreBacking(MemoryObjectStore(), settings)


class TestTieredStorageInADirectory(StorageSuite):
    @pytest.fixture
    async def backing(self, tmp_path: Path) -> AsyncIterator[ObjectStoreBacking]:
        store = FilesystemObjectStore(
            str(tmp_path / "objects"), files=SystemFileSystem(), executor=None, random=Random(1)
        )
        await store.start()
        yield ObjectStoreBacking(store)
        await store.close()
