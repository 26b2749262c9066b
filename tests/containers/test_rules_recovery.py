"""Rules of recovery and of the log's truncation, held by one container over memory tiers."""

from dataclasses import replace

import pytest

from containers.container_settings import ContainerSettings
from segmentstore.contracts.errors import SegmentNotFoundError, SegmentStoreError
from segmentstore.contracts.identifiers import LogAddress
from tests.containers.node import FAST_FLUSH, MemoryTiers, make_container, running
from tests.containers.test_container_faults import abandoned
from tests.containers.test_segment_container import append, read_all
from tier1.memory_log import MemoryDurableDataLog

PATIENT = ContainerSettings(
    writer=replace(FAST_FLUSH, flush_age_seconds=3600.0, prompt_age_seconds=3600.0)
)
"""Nothing is flushed unless somebody asks for it."""


class NeverShrinkingLog(MemoryDurableDataLog):
    """Its files are so large that no truncation ever frees one."""

    async def truncate(self, up_to: LogAddress) -> None:
        del up_to


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


async def test_h38_bytes_of_segments_that_have_ended_need_no_room_at_recovery() -> None:
    tiers = MemoryTiers()
    async with running(
        tiers, settings=PATIENT, log=NeverShrinkingLog(tiers.log_store)
    ) as container:
        await container.create("kept")
        await append(container, "kept", b"k" * 100_000)
        for number in range(4):
            name = f"short-lived-{number}"
            await container.create(name)
            await append(container, name, b"x" * 400_000)
            await container.flush()
        for number in range(4):
            await container.delete(f"short-lived-{number}")
        await container.flush()
    assert tiers.log_store.stored_bytes > 1_600_000
    # All that ever stood in the log is larger than this cache; what is not yet in Tier 2 fits.
    async with running(tiers, cache_bytes=1 << 20) as container:
        assert await read_all(container, "kept") == b"k" * 100_000
        assert [found.name for found in await container.list_segments()] == ["kept"]


async def test_h38_a_restart_with_too_little_memory_says_so() -> None:
    tiers = MemoryTiers()
    async with abandoned(tiers, PATIENT) as container:
        await container.create("a")
        for _ in range(4):
            await append(container, "a", b"x" * 500_000)
    small = make_container(tiers, cache_bytes=1 << 20)
    with pytest.raises(SegmentStoreError, match="start with a larger cache budget"):
        await small.start()
    async with running(tiers) as container:
        assert await read_all(container, "a") == b"x" * 2_000_000


async def test_h20_a_delete_frees_a_truncated_and_merged_segment_in_replay_as_in_life() -> None:
    tiers = MemoryTiers()
    async with abandoned(tiers, PATIENT) as container:
        for name in ("target", "source"):
            await container.create(name)
            await append(container, name, name.encode() * 1000)
        await container.seal("source")
        await container.merge("target", "source")
        await append(container, "target", b"behind")
        await container.truncate("target", 7000)
        await container.delete("target")
    async with running(tiers) as container:
        container.check()
        assert container.health().unflushed_bytes == 0
        await container.create("target")
        await append(container, "target", b"new")
        await container.flush()
        assert await read_all(container, "target") == b"new"


async def test_h28_a_checkpoint_taken_while_frames_are_in_flight_holds_what_they_hold() -> None:
    tiers = MemoryTiers()
    async with abandoned(tiers, PATIENT) as container:
        await container.create("a")
        async with container.open_segment("a") as segment:
            in_flight = segment.append(b"not committed when the checkpoint is taken")
            checkpoint = container._processor.checkpoint()
            assert segment.info().length == 0
            await checkpoint
            assert in_flight.done()
    async with running(tiers) as container:  # replay compares itself with every later checkpoint
        assert (await container.info("a")).length == 42
