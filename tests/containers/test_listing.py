"""A listing is complete although segments become active, or stop being it, while it is made."""

import asyncio

from tests.containers.node import MemoryTiers, running
from tests.containers.test_segment_container import append
from tests.tier2.storage.faulty_store import FaultyStore


class StoreWithPauses(FaultyStore):
    """Lets everybody else work while anything is read from it."""

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        await asyncio.sleep(0.02)
        return await super().get_range(key, start, length)


async def test_a_segment_that_becomes_active_during_a_listing_is_listed() -> None:
    tiers = MemoryTiers()
    names = [f"segment-{number:03}" for number in range(400)]
    async with running(tiers) as container:
        for name in names:
            await container.create(name)
        await container.flush()
        container._mapper.evict(len(names))
    async with running(tiers, object_store=StoreWithPauses(tiers.object_store)) as container:
        for _ in range(5):
            async with asyncio.TaskGroup() as group:
                listing = group.create_task(container.list_segments(limit=1000))
                for name in names[::7]:
                    group.create_task(append(container, name, b"x"))
            assert [each.name for each in listing.result()] == names
            await container.flush()
            container._mapper.evict(len(names))
            container._storage._segments.forget_everything()  # type: ignore[attr-defined]
