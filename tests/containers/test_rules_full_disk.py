"""A log without space: what was accepted is kept, what frees space works, and service returns by itself (H52)."""

import asyncio
from asyncio import Future
from collections.abc import Sequence
from dataclasses import replace

import pytest

from containers.container_settings import CheckpointSettings, ContainerSettings
from containers.segment_container import StreamSegmentContainer
from containers.writer.backlog import FlushKind
from segmentstore.contracts.errors import LogFullError, StorageFullError
from segmentstore.contracts.identifiers import SHORT_LIVED, BufferView, LogAddress
from segmentstore.contracts.segments import AttributeUpdate
from tests.containers.node import FAST_FLUSH, MemoryTiers, running
from tests.containers.test_segment_container import append, read_all
from tier1.memory_log import MemoryDurableDataLog, MemoryLogStore
from tier2.object_stores.memory import MemoryObjectStore

PATIENT = ContainerSettings(
    writer=replace(FAST_FLUSH, flush_interval_seconds=3600.0, prompt_age_seconds=3600.0)
)


class NotingLog(MemoryDurableDataLog):
    """Notes which entries may use the reserve."""

    def __init__(self, store: MemoryLogStore, *, entry_bytes_max: int) -> None:
        super().__init__(store, entry_bytes_max=entry_bytes_max)
        self.kinds: list[bool] = []

    def append(self, entry: Sequence[BufferView], *, internal: bool = False) -> Future[LogAddress]:
        self.kinds.append(internal)
        return super().append(entry, internal=internal)


class CrowdedLog(MemoryDurableDataLog):
    """Has no space for one entry, not even in its reserve, and again for those after it."""

    def __init__(self, store: MemoryLogStore, *, entry_bytes_max: int) -> None:
        super().__init__(store, entry_bytes_max=entry_bytes_max)
        self.entries_until_full = -1
        self.taken_behind = 0

    def append(self, entry: Sequence[BufferView], *, internal: bool = False) -> Future[LogAddress]:
        if self.entries_until_full == 0:
            refused: Future[LogAddress] = asyncio.get_running_loop().create_future()
            refused.set_exception(LogFullError("no space for this one"))
            if internal:
                self.entries_until_full = -2
            return refused
        if self.entries_until_full == -2:
            self.taken_behind += 1
        elif self.entries_until_full > 0:
            self.entries_until_full -= 1
        return super().append(entry, internal=internal)


async def fill(container: StreamSegmentContainer, name: str) -> None:
    """Append until that is refused."""
    while True:
        await append(container, name, b"x" * 1000)


async def test_h52_appends_that_were_accepted_before_the_log_was_full_are_kept() -> None:
    tiers = MemoryTiers()
    log = MemoryDurableDataLog(tiers.log_store, entry_bytes_max=4096)
    async with running(tiers, settings=PATIENT, log=log) as container:
        await container.create("a")
        tiers.log_store.capacity_bytes = tiers.log_store.stored_bytes + 20_000
        async with container.open_segment("a") as segment:
            futures = [segment.append(b"x" * 1000) for _ in range(30)]
            assert [await future for future in futures] == [n * 1000 for n in range(1, 31)]
            with pytest.raises(LogFullError, match="deletes and truncates work"):
                await segment.append(b"one more")
        assert container.health().throttle == "tier1_full"
        assert await read_all(container, "a") == b"x" * 30_000


async def append_until_it_ends(tiers: MemoryTiers, log: CrowdedLog, appends: int) -> None:
    """Ends with the container, which cancels those that wait."""
    async with running(tiers, settings=PATIENT, log=log) as container:
        await container.create("a")
        log.entries_until_full = 3
        async with container.open_segment("a") as segment:
            futures = [segment.append(b"%d" % number * 1000) for number in range(appends)]
            results = await asyncio.gather(*futures, return_exceptions=True)
        assert isinstance(results[0], int), "what was written before it is acknowledged"
        assert not isinstance(results[-1], int)
        await asyncio.Event().wait()


async def test_h51_nothing_is_written_behind_a_frame_for_which_the_log_had_no_space() -> None:
    tiers = MemoryTiers()
    log = CrowdedLog(tiers.log_store, entry_bytes_max=1500)
    with pytest.raises(ExceptionGroup) as failed:
        await append_until_it_ends(tiers, log, 10)
    assert failed.group_contains(LogFullError)
    assert log.entries_until_full == -2, "the log was never full"
    assert log.taken_behind == 0
    async with running(tiers, settings=PATIENT) as container:
        content = await read_all(container, "a")
    assert content
    assert content == b"".join(b"%d" % number * 1000 for number in range(10))[: len(content)]


async def test_h52_a_checkpoint_of_several_frames_fits_into_the_reserve() -> None:
    tiers = MemoryTiers()
    log = NotingLog(tiers.log_store, entry_bytes_max=300)
    async with running(tiers, settings=PATIENT, log=log) as container:
        for number in range(20):
            await container.create(f"segment-{number}")
        tiers.log_store.capacity_bytes = tiers.log_store.stored_bytes
        log.kinds.clear()
        await container._components.processor.checkpoint()
        assert len(log.kinds) > 3
        assert all(log.kinds)


async def test_h52_a_segment_that_is_not_active_can_be_deleted_on_a_full_disk() -> None:
    tiers = MemoryTiers()
    async with running(tiers) as container:
        for name in ("a", "b"):
            await container.create(name)
            await append(container, name, b"x" * 1000)
        await container.flush()
        assert container._components.mapper.evict(2) == 2
        tiers.log_store.capacity_bytes = tiers.log_store.stored_bytes
        container._components.processor.refresh_throttle()
        await container.delete("a")
        assert await read_all(container, "b") == b"x" * 1000
        assert [found.name for found in await container.list_segments()] == ["b"]


async def test_h52_service_returns_by_itself_once_a_delete_lets_the_log_shrink() -> None:
    tiers = MemoryTiers()
    settings = replace(
        ContainerSettings(writer=FAST_FLUSH),
        checkpoints=CheckpointSettings(bytes_min=10_000, operations_max=1000),
        housekeeping_seconds=0.01,
    )
    async with running(tiers, settings=settings) as container:
        for name in ("a", "b"):
            await container.create(name)
        tiers.log_store.capacity_bytes = tiers.log_store.stored_bytes + 20_000
        with pytest.raises(LogFullError):
            await fill(container, "a")
        await container.delete("a")
        async with asyncio.timeout(60):
            while container.health().throttle:
                await asyncio.sleep(0.01)
        assert await append(container, "b", b"y") == 1


class StoreWithoutRoom(MemoryObjectStore):
    """While `is_full`, it has no room for another manifest."""

    is_full = False

    async def put_if_match(self, key: str, content: BufferView, tag: str) -> str:
        if self.is_full:
            raise StorageFullError("no space left for the manifest")
        return await super().put_if_match(key, content, tag)


async def test_h52_a_truncation_beside_a_publication_that_found_no_room_does_no_harm_if_that_lands() -> (
    None
):
    store = StoreWithoutRoom()
    quick = replace(PATIENT.writer, retry_seconds_first=0.01, retry_seconds_max=0.02)
    settings = replace(PATIENT, writer=quick)
    tiers = MemoryTiers()
    async with running(tiers, settings=settings, object_store=store) as container:
        writer = container._components.writer
        await container.create("short", [AttributeUpdate(SHORT_LIVED, 1)])
        await container.create("in the way")
        await container.flush()
        store.is_full = True
        await append(container, "short", b"published late" * 100)
        flushed = asyncio.ensure_future(container.flush())
        async with asyncio.timeout(60):
            while not writer.storage_is_full:
                await asyncio.sleep(0.01)
            await container.delete("in the way")
            while writer._kind is not FlushKind.DELETIONS:
                await asyncio.sleep(0.01)
            length = await append(container, "short", b"truncated before" * 100)
            await container.truncate("short", length)
            while writer.pending_items < 4:
                await asyncio.sleep(0.01)
            store.is_full = False
            await flushed
            await append(container, "short", b"goes on")
            await container.flush()
        container.check()
        info = await container.info("short")
        assert (info.start_offset, info.storage_length) == (length, length + len(b"goes on"))
        assert await read_all(container, "short", length) == b"goes on"
