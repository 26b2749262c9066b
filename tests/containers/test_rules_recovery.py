"""Rules of recovery and of the log's truncation, held by one container over memory tiers."""

import asyncio
from dataclasses import replace

import pytest

from containers.container_settings import ContainerSettings
from segmentstore.contracts.errors import SegmentNotFoundError
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


async def test_h18_a_published_source_of_a_deleted_target_leaves_tier_2_after_a_crash() -> None:
    tiers = MemoryTiers()
    async with abandoned(tiers, PATIENT) as container:
        await container.create("source")
        await append(container, "source", b"published")
        await container.flush()
        await container.create("target")
        await container.seal("source")
        await container.merge("target", "source")
        await container.delete("target")
    async with running(tiers) as container:
        await container.flush()
        assert await container.list_segments() == []
        assert container.health().active_segments == 0
    async with running(tiers) as container:
        assert await container.list_segments() == []


async def test_h18_a_chain_of_sources_that_tier_2_never_had_is_forgotten_with_its_target() -> None:
    tiers = MemoryTiers()
    async with abandoned(tiers, PATIENT) as container:
        for name in ("a", "b", "c"):
            await container.create(name)
            await append(container, name, b"bytes of " + name.encode())
        for source, target in (("a", "b"), ("b", "c")):
            await container.seal(source)
            await container.merge(target, source)
        await container.delete("c")
        await container.create("other")
    async with running(tiers) as container:
        await container.flush()
        assert [found.name for found in await container.list_segments()] == ["other"]
        assert container.health().unflushed_bytes == 0


async def test_h3_a_name_deleted_twice_does_not_come_back_while_tier_2_has_the_first() -> None:
    tiers = MemoryTiers()
    async with abandoned(tiers, PATIENT) as container:
        await container.create("a")
        await append(container, "a", b"published")
        await container.flush()
        await container.delete("a")
        await container.create("a")
        await container.delete("a")
    async with abandoned(tiers, PATIENT) as container:
        assert await container.list_segments() == []
        with pytest.raises(SegmentNotFoundError):
            await container.info("a")
        with pytest.raises(SegmentNotFoundError):
            await container.seal("a")
        assert (await container.create("a")).length == 0
        await container.flush()
        assert await read_all(container, "a") == b""
