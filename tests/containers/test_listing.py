"""A listing is complete although segments become active while it is made."""

import asyncio

from tests.containers.node import MemoryTiers, running
from tests.containers.test_segment_container import append
from tests.tier2.storage.faulty_store import FaultyStore
from tier1.memory_log import MemoryLogStore


class PausingStore(FaultyStore):
    """Stands still before one read, until the test lets it go on."""

    def __init__(self, tiers: MemoryTiers) -> None:
        super().__init__(tiers.object_store)
        self.pauses_at = -1
        self.reads_made = 0
        self.paused = asyncio.Event()
        self.going_on = asyncio.Event()

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.reads_made += 1
        if self.reads_made == self.pauses_at:
            self.paused.set()
            await self.going_on.wait()
        return await super().get_range(key, start, length)


async def test_a_segment_that_becomes_active_during_a_listing_is_listed() -> None:
    tiers = MemoryTiers()
    names = [f"{'long' * 40}-{number:04}" for number in range(900)]
    async with running(tiers) as container:
        for name in names:
            await container.create(name)
        await container.flush()
    # A new log knows of no segment: each of them becomes active with its first append.
    tiers.log_store = MemoryLogStore(
        log_id=b"a log begun anew", follows=tiers.log_store.log_id, epoch=10
    )
    store = PausingStore(tiers)
    async with running(tiers, object_store=store) as container:
        await append(container, names[-1], b"what this reads is cached from here on")
        async with asyncio.TaskGroup() as group:
            store.pauses_at = store.reads_made + 1
            listing = group.create_task(container.list_segments(limit=2000))
            await store.paused.wait()
            await append(container, names[-2], b"x")
            store.going_on.set()
        assert [each.name for each in listing.result()] == names
