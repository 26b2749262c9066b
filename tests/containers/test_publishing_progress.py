"""Goal: a segment says how far it is in Tier 2, exactly, without being flushed for it.

Method: a container in virtual time, whose flushes come late; what it says is compared with what Tier 2 alone gives.
"""

import asyncio

from containers.container_settings import ContainerSettings
from segmentstore.contracts.identifiers import AttributeKey
from segmentstore.contracts.segments import AttributeUpdate, PublishingProgress, Segment
from tests.containers.node import MemoryTiers, running
from tests.containers.test_recovery_from_tier2_alone import lose_tier1
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tests.tier2.storage.faulty_store import FaultyStore

KEY = AttributeKey(b"an attribute key")
LATE_SECONDS = 120.0


async def change(segment: Segment, value: int) -> PublishingProgress:
    """As it is when the change is acknowledged."""
    await segment.append(b"", attribute_updates=[AttributeUpdate(KEY, value)])
    return segment.publishing()


def test_a_change_is_published_when_tier_2_alone_has_it() -> None:
    async def main(_: SimLoop) -> None:
        tiers = MemoryTiers()
        async with running(tiers, settings=ContainerSettings()) as container:
            await container.create("a")
            async with container.open_segment("a") as segment:
                first = await change(segment, 1)
                assert not first.has_published(first.committed)
                await container.flush()
                assert segment.publishing().has_published(first.committed)
                second = await change(segment, 2)
                assert second.committed > first.committed
                progress = segment.publishing()
                assert progress.has_published(first.committed)
                assert not progress.has_published(second.committed)
                await container.create("another")
                assert not segment.publishing().has_published(second.committed)
        # The next owner has not read anything of the log for Tier 2 yet.
        async with (
            running(tiers, settings=ContainerSettings()) as container,
            container.open_segment("a") as segment,
        ):
            progress = segment.publishing()
            assert progress.has_published(first.committed)
            assert not progress.has_published(second.committed)
            assert progress.committed >= second.committed
        await lose_tier1(tiers, FaultyStore(tiers.object_store))
        async with running(tiers, settings=ContainerSettings()) as container:
            assert await container.attributes("a", [KEY]) == {KEY: 1}

    run_simulation(1, main)


def test_an_idle_container_publishes_each_change_in_the_end() -> None:
    async def main(_: SimLoop) -> None:
        tiers = MemoryTiers()
        async with running(tiers, settings=ContainerSettings()) as container:
            await container.create("a")
            async with container.open_segment("a") as segment:
                last = await change(segment, 1)
                await asyncio.sleep(LATE_SECONDS)
                assert segment.publishing().has_published(last.committed)
                assert not segment.publishing().storage_is_full
        await lose_tier1(tiers, FaultyStore(tiers.object_store))
        async with running(tiers, settings=ContainerSettings()) as container:
            assert await container.attributes("a", [KEY]) == {KEY: 1}

    run_simulation(1, main)
