"""The memory store is the model of the others."""

import pytest

from segmentstore.contracts.object_store import ObjectStore
from tests.contracts.object_store_suite import ObjectStoreSuite
from tier2.object_stores.memory import MemoryObjectStore


class TestMemoryObjectStore(ObjectStoreSuite):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return MemoryObjectStore()

    @pytest.fixture
    def second_store(self, store: ObjectStore) -> ObjectStore:
        return store

    async def test_equal_contents_have_different_tags(self) -> None:
        store = MemoryObjectStore()
        tag = await store.put_if_absent("root", b"same")
        assert await store.put_if_match("root", b"same", tag) != tag
        store.check()
