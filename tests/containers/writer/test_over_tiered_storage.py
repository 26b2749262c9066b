"""The same random lives over the real Tier 2: TieredStorage on an object store that fails before or after effect."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from random import Random

import pytest

from containers.writer.storage_writer import StorageWriter
from segmentstore.contracts.errors import StorageError
from segmentstore.contracts.identifiers import BufferView, ContainerId, Epoch
from segmentstore.contracts.object_store import ObjectInfo, VersionedObject
from segmentstore.contracts.storage import ClaimedManifest, SegmentRecord, Storage
from segmentstore.runtime.clock import SystemWallClock
from tests.containers.writer.memory_storage import Stored
from tests.containers.writer.random_life import RandomLife
from tests.sim.simulation import run_simulation
from tier2.object_stores.memory import MemoryObjectStore
from tier2.settings import StorageSettings
from tier2.tiered_storage import TieredStorage

_SETTINGS = StorageSettings(
    chunk_bytes_max=256,
    solo_chunk_bytes_min=64,
    pack_bytes_max=512,
    sst_block_bytes=256,
    sst_part_bytes=2048,
    sst_tier_bytes=1024,
    sst_fanout=3,
    sst_count_max=12,
    garbage_grace_seconds=0.0,
)


class FlakyObjectStore:
    """An object store that answers some calls with an error, half of them after they happened."""

    def __init__(self, random: Random) -> None:
        self._store = MemoryObjectStore()
        self._random = random
        self.probability = 0.0

    def _fails(self) -> bool:
        return self._random.random() < self.probability

    def _maybe_fail(self) -> None:
        if self._fails():
            raise StorageError("injected")

    async def put(self, key: str, content: Sequence[BufferView]) -> None:
        self._maybe_fail()
        await self._store.put(key, content)
        self._maybe_fail()

    async def put_if_absent(self, key: str, content: BufferView) -> str:
        self._maybe_fail()
        tag = await self._store.put_if_absent(key, content)
        self._maybe_fail()
        return tag

    async def put_if_match(self, key: str, content: BufferView, tag: str) -> str:
        self._maybe_fail()
        tag = await self._store.put_if_match(key, content, tag)
        self._maybe_fail()
        return tag

    async def get(self, key: str) -> VersionedObject:
        self._maybe_fail()
        return await self._store.get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self._maybe_fail()
        return await self._store.get_range(key, start, length)

    async def size(self, key: str) -> int:
        self._maybe_fail()
        return await self._store.size(key)

    async def delete(self, key: str) -> None:
        self._maybe_fail()
        await self._store.delete(key)

    def list(self, prefix: str) -> AsyncGenerator[ObjectInfo, None]:
        return self._store.list(prefix)

    async def close(self) -> None: ...


class TieredLife(RandomLife):
    def __init__(self, seed: int) -> None:
        super().__init__(seed, StorageWriter)
        self.object_store = FlakyObjectStore(Random(seed))
        self.object_store.probability = self.fault_probability / 8
        self.tiered: TieredStorage | None = None
        self.epoch = 0

    async def new_owner(self) -> tuple[Storage, ClaimedManifest]:
        while True:
            self.epoch += 1
            self.tiered = TieredStorage(
                object_store=self.object_store,
                store_id=b"s" * 16,
                container_id=ContainerId(1),
                container_count=4,
                settings=_SETTINGS,
                wall_clock=SystemWallClock(),
                random=Random(self.epoch),
                executor=None,
            )
            try:
                claimed = await self.tiered.claim(epoch=Epoch(self.epoch), log_id=b"l" * 16)
            except StorageError:
                continue
            await self.look_at_tier_2()
            return self.tiered, claimed

    async def look_at_tier_2(self) -> None:
        assert self.tiered is not None
        probability, self.object_store.probability = self.object_store.probability, 0.0
        self.storage.segments.clear()
        self.storage.catalog.clear()
        listing = self.tiered.list_segments("", "")
        async with aclosing(listing) as records:
            async for record in records:
                self.storage.segments[record.segment_id] = await self._read(record)
                self.storage.catalog[record.name] = record.segment_id
        self.object_store.probability = probability

    async def _read(self, record: SegmentRecord) -> Stored:
        assert self.tiered is not None
        content = bytearray(record.start_offset)
        while len(content) < record.length:
            found = await self.tiered.read(record.segment_id, len(content), record.length)
            content += found.content[len(content) - found.offset :]
        del content[record.length :]
        attributes = await self.tiered.load_attributes(record.segment_id, None)
        return Stored(record, content, dict(attributes))

    def calm(self) -> None:
        super().calm()
        self.object_store.probability = 0.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_every_random_life_ends_with_tiered_storage_equal_to_the_container(seed: int) -> None:
    life = TieredLife(seed)
    run_simulation(seed, lambda _: life.live())
