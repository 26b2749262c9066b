"""A store in which nothing happens asks nothing of its object store: what is pending converges, then there is rest."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from random import Random

import pytest

from segmentstore.contracts.identifiers import BufferView
from segmentstore.contracts.object_store import ObjectInfo, ObjectStore, VersionedObject
from tests.containers.node import MemoryTiers, running
from tests.containers.test_segment_container import append
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation

HOUR_SECONDS = 3600.0


class CountingObjectStore:
    """An object store that counts what it is asked."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.requests: list[str] = []

    async def put(self, key: str, content: Sequence[BufferView]) -> None:
        self.requests.append(f"put {key}")
        await self._store.put(key, content)

    async def put_if_absent(self, key: str, content: BufferView) -> str:
        self.requests.append(f"put_if_absent {key}")
        return await self._store.put_if_absent(key, content)

    async def put_if_match(self, key: str, content: BufferView, tag: str) -> str:
        self.requests.append(f"put_if_match {key}")
        return await self._store.put_if_match(key, content, tag)

    async def get(self, key: str) -> VersionedObject:
        self.requests.append(f"get {key}")
        return await self._store.get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.requests.append(f"get_range {key}")
        return await self._store.get_range(key, start, length)

    async def size(self, key: str) -> int:
        self.requests.append(f"size {key}")
        return await self._store.size(key)

    async def delete(self, key: str) -> None:
        self.requests.append(f"delete {key}")
        await self._store.delete(key)

    def list(self, prefix: str) -> AsyncGenerator[ObjectInfo, None]:
        self.requests.append(f"list {prefix}")
        return self._store.list(prefix)

    async def close(self) -> None:
        await self._store.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_an_idle_store_asks_nothing_of_its_object_store(seed: int) -> None:
    async def main(_: SimLoop) -> None:
        random = Random(seed)
        tiers = MemoryTiers()
        objects = CountingObjectStore(tiers.object_store)
        async with running(tiers, object_store=objects) as container:
            for number in range(60):
                name = f"segment-{number}"
                await container.create(name)
                await append(container, name, random.randbytes(random.randint(1, 5000)))
                if random.random() < 0.3:
                    await container.delete(name)
                if random.random() < 0.5:
                    await container.flush()
                await asyncio.sleep(random.random() * 20)
            await asyncio.sleep(HOUR_SECONDS)
            settled = len(objects.requests)
            await asyncio.sleep(HOUR_SECONDS)
            assert objects.requests[settled:] == []
            assert settled > 60

    run_simulation(seed, main)
