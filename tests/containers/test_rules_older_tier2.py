"""A Tier 2 that is older than the log, at every place where one could be taken for the right one (H31)."""

import asyncio
from collections import deque
from copy import deepcopy
from unittest.mock import AsyncMock

import pytest

from containers.segment_container import StreamSegmentContainer
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.identifiers import AttributeKey
from segmentstore.contracts.segments import AttributeUpdate, AttributeUpdateType
from tests.containers.node import MemoryTiers, make_container, running
from tests.containers.test_container_faults import abandoned
from tests.containers.test_rules_random_lives import RandomLives
from tests.containers.test_rules_recovery import PATIENT
from tests.containers.test_segment_container import append
from tier1.memory_log import MemoryDurableDataLog
from tier2.manifest.manifest import decode_manifest

KEY = AttributeKey(b"w" * 16)
COUNT = AttributeUpdate(KEY, 1, AttributeUpdateType.ACCUMULATE)


def changes_of(tiers: MemoryTiers) -> int:
    return decode_manifest(tiers.object_store._objects["containers/0000/root"].content).changes


async def test_h31_what_a_recovery_in_little_memory_flushes_makes_no_old_root_young(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log says how many changes there were only behind the bytes that do not fit."""
    tiers = MemoryTiers()
    async with abandoned(tiers, PATIENT) as container:
        await container.create("a")
        await container.flush()
        with monkeypatch.context() as context:
            context.setattr(container._components.source._log_truncation, "truncate", AsyncMock())
            older = deepcopy(tiers.object_store._objects)
            for _ in range(2):
                await container.update_attributes("a", [COUNT])
                await container.flush()
            checkpoint = container._components.processor.checkpoint()
            await append(container, "a", *[bytes(100_000)] * 60)
            await checkpoint
        await container.flush()
        kept = len(tiers.log_store.entries)
        while len(tiers.log_store.entries) >= kept:
            await asyncio.sleep(0)  # until the log has let go of the attributes
    newest = deepcopy(tiers.object_store._objects)
    tiers.object_store._objects = older
    before = changes_of(tiers)
    for _ in range(3):
        with pytest.raises(DataCorruptionError, match="Tier 2 is older than the log"):
            await make_container(tiers, cache_bytes=1 << 20).start()
        assert changes_of(tiers) == before
        await MemoryDurableDataLog(tiers.log_store).enable()
    tiers.object_store._objects = newest
    async with running(tiers, cache_bytes=1 << 20) as container:
        assert await container.attributes("a") == {KEY: 2}


@pytest.mark.parametrize("older_is", ["empty", "without its last change"])
@pytest.mark.parametrize("what", ["created", "appended to", "sealed", "counted", "deleted"])
async def test_h31_what_left_memory_with_a_checkpoint_is_in_tier_2_or_tier_2_is_older(
    what: str, older_is: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that does not name a segment says that Tier 2 has all of it, before the log lets go of anything."""
    tiers = MemoryTiers()
    older = deepcopy(tiers.object_store._objects)
    async with abandoned(tiers, PATIENT) as container:
        await container.create("other")
        if what != "created":
            await container.create("a")
            await append(container, "a", b"bytes")
            await container.flush()
            if older_is != "empty":
                older = deepcopy(tiers.object_store._objects)
        monkeypatch.setattr(container._components.source._log_truncation, "truncate", AsyncMock())
        match what:
            case "created":
                await container.create("a")
            case "appended to":
                await append(container, "a", b" of a")
            case "sealed":
                await container.seal("a")
            case "counted":
                await container.update_attributes("a", [COUNT])
            case _:
                await container.delete("a")
        await container.flush()
        container._components.mapper.evict(10)
        assert "a" not in container._recovered.metadata.names()
        await container._components.processor.checkpoint()
    newest = tiers.object_store._objects
    tiers.object_store._objects = older
    for _ in range(2):
        with pytest.raises(DataCorruptionError, match="Tier 2 is older than the log"):
            await make_container(tiers).start()
        await MemoryDurableDataLog(tiers.log_store).enable()
    tiers.object_store._objects = newest
    async with running(tiers) as container:
        names = [found.name for found in await container.list_segments()]
        assert names == (["other"] if what == "deleted" else ["a", "other"])


class LivesBesideOlderCopies(RandomLives):
    """After each life Tier 2 goes back to copies taken before: refused, or nothing acknowledged is missing."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.copies: deque[MemoryTiers] = deque(maxlen=4)
        self.refused = 0
        self.accepted = 0

    async def step(self, container: StreamSegmentContainer) -> None:
        await super().step(container)
        if self.random.random() < 0.1:
            copy = MemoryTiers()
            copy.object_store._objects = self.tiers.object_store._objects.copy()
            self.copies.append(copy)

    async def _live(self) -> None:
        await super()._live()
        newest = self.tiers
        for older in self.copies:
            self.tiers = MemoryTiers()
            self.tiers.log_store = deepcopy(newest.log_store)
            self.tiers.object_store._objects = older.object_store._objects.copy()
            await self._look()
        self.tiers = newest

    async def _look(self) -> None:
        try:
            container = await self.start(1 << 20)
        except DataCorruptionError as refusal:
            if "Tier 2 is older than the log" not in str(refusal):
                raise
            self.refused += 1
            return
        self.accepted += 1
        run = asyncio.ensure_future(container.run())
        try:
            await self.compare(container)
        finally:
            await container.close()
            await run


@pytest.mark.parametrize("seed", range(8, 16))
def test_h31_an_older_copy_of_tier_2_is_refused_or_nothing_is_missing(seed: int) -> None:
    lives = LivesBesideOlderCopies(seed)
    lives.live_all()
    assert lives.refused
