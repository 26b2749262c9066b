"""Storages over object stores, as the tests of this room make them."""

from concurrent.futures import Executor
from random import Random

from segmentstore.contracts.identifiers import ContainerId, Epoch
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.runtime.clock import SystemWallClock
from tests.contracts.storage_publications import LOG_ID
from tier2.settings import StorageSettings
from tier2.tiered_storage import TieredStorage

STORE_ID = b"\x5a" * 16
SMALL = StorageSettings(
    chunk_bytes_max=4096,
    solo_chunk_bytes_min=1024,
    pack_bytes_max=8192,
    pack_chunks_max=16,
    repack_live_share_max=0.6,
    compaction_chunk_bytes=4096,
    compaction_chunks_min=4,
    compaction_growth_min=2.0,
    compaction_step_bytes=8192,
    compaction_step_segments=8,
    sst_block_bytes=256,
    sst_part_bytes=2048,
    sst_tier_bytes=1024,
    sst_fanout=3,
    sst_count_max=12,
    merge_read_bytes=512,
    sst_cache_bytes=16_384,
    record_cache_bytes=4_096,
    chunk_index_cache_bytes=8_192,
    whole_chunk_read_bytes_max=600,
    garbage_grace_seconds=0.0,
    garbage_batch_max=32,
)
"""Everything so small that splits, merges and evictions happen within a few rounds."""


class ObjectStoreBacking:
    """Owners of container 3 of 8 over one object store."""

    def __init__(
        self,
        object_store: ObjectStore,
        settings: StorageSettings | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.object_store = object_store
        self.settings = settings if settings is not None else StorageSettings()
        self.executor = executor
        self._random = Random(20_261_121)

    def make(self, *, store_id: bytes = STORE_ID, container_count: int = 8) -> TieredStorage:
        return TieredStorage(
            object_store=self.object_store,
            store_id=store_id,
            container_id=ContainerId(3),
            container_count=container_count,
            settings=self.settings,
            wall_clock=SystemWallClock(),
            random=self._random,
            executor=self.executor,
        )

    def new_owner(self) -> TieredStorage:
        return self.make()

    def new_owner_of_another_store(self) -> TieredStorage:
        return self.make(store_id=b"\xa5" * 16)

    def new_owner_with_another_count(self) -> TieredStorage:
        return self.make(container_count=9)

    async def claimed(self, epoch: int) -> TieredStorage:
        storage = self.make()
        await storage.claim(epoch=Epoch(epoch), log_id=LOG_ID)
        return storage
