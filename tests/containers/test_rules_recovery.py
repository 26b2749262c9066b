"""Rules of recovery and of the log's truncation, held by one container over memory tiers."""

import asyncio
from dataclasses import replace

from containers.container_settings import ContainerSettings
from tests.containers.node import FAST_FLUSH, MemoryTiers, running
from tests.containers.test_container_faults import abandoned
from tests.containers.test_segment_container import append, read_all

PATIENT = ContainerSettings(
    writer=replace(FAST_FLUSH, flush_age_seconds=3600.0, prompt_age_seconds=3600.0)
)
"""Nothing is flushed unless somebody asks for it."""


async def test_h13_a_segment_that_was_evicted_and_came_back_is_flushed_after_a_crash() -> None:
    tiers = MemoryTiers()
    async with abandoned(tiers, PATIENT) as container:
        await container.create("a")
        await append(container, "a", b"first")
        await container.flush()
        assert container._mapper.evict(1) == 1
        # A checkpoint that does not name the segment: replay learns of the eviction there.
        await container._processor.checkpoint()
        await append(container, "a", b" second")
    async with running(tiers) as container:
        await container.flush()
        assert (await container.info("a")).storage_length == 12
        container.check()
    async with running(tiers) as container:
        assert await read_all(container, "a") == b"first second"
