"""One container when its tiers misbehave: it stops whole, loses nothing, and comes back as it was."""

import asyncio
from asyncio import Future
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

import pytest

from containers.container_settings import CheckpointSettings, ContainerSettings
from containers.log.checkpoints import CheckpointPolicy
from containers.metadata.container_metadata import ContainerMetadata
from containers.recovery.timely_storage import LOAD_SECONDS_MAX
from containers.segment_container import StreamSegmentContainer
from segmentstore.contracts.containers import ContainerState
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    DurableDataLogError,
    LogFullError,
    LogNotPrimaryError,
    SegmentStoreError,
    StorageError,
    StorageUnavailableError,
    TooManyActiveSegmentsError,
)
from segmentstore.contracts.identifiers import AttributeKey, BufferView, Epoch, LogAddress
from segmentstore.contracts.object_store import VersionedObject
from segmentstore.contracts.segments import AttributeUpdate, AttributeUpdateType
from tests.containers.node import FAST_FLUSH, MemoryTiers, make_container, running
from tests.containers.test_segment_container import append, read_all
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tier1.memory_log import MemoryDurableDataLog
from tier2.object_stores.memory import MemoryObjectStore
from tier2.settings import StorageSettings

QUICK_RETRIES = ContainerSettings(
    writer=replace(FAST_FLUSH, retry_seconds_first=0.01, retry_seconds_max=0.05),
    housekeeping_seconds=0.01,
)
"""A container that tries Tier 2 again at once and looks at its gauges all the time."""


class FailingLog(MemoryDurableDataLog):
    """Fails every append after `successes` more."""

    successes = 1 << 60

    def append(self, entry: Sequence[BufferView], *, internal: bool = False) -> Future[LogAddress]:
        self.successes -= 1
        if self.successes < 0:
            future: Future[LogAddress] = asyncio.get_running_loop().create_future()
            future.set_exception(DurableDataLogError("the disk said no"))
            return future
        return super().append(entry, internal=internal)


class FlakyObjectStore(MemoryObjectStore):
    """Answers nothing while `down`."""

    down = False

    async def put(self, key: str, content: Sequence[BufferView]) -> None:
        self._require_up()
        await super().put(key, content)

    async def put_if_match(self, key: str, content: BufferView, tag: str) -> str:
        self._require_up()
        return await super().put_if_match(key, content, tag)

    async def put_if_absent(self, key: str, content: BufferView) -> str:
        self._require_up()
        return await super().put_if_absent(key, content)

    def _require_up(self) -> None:
        if self.down:
            raise StorageError("tier 2 is down")


@asynccontextmanager
async def abandoned(
    tiers: MemoryTiers, settings: ContainerSettings | None = None, *, cache_bytes: int = 64 << 20
) -> AsyncIterator[StreamSegmentContainer]:
    """A running container that is never closed: its tasks just end, as with kill -9."""
    container = make_container(tiers, settings=settings, cache_bytes=cache_bytes)
    await container.start()
    task = asyncio.ensure_future(container._components.writer.run())
    try:
        yield container
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_container_that_was_never_closed_comes_back_with_every_acked_byte() -> None:
    tiers = MemoryTiers()
    async with abandoned(tiers) as container:
        await container.create("a")
        await append(container, "a", b"one", b"two")
    async with running(tiers) as container:
        assert await read_all(container, "a") == b"onetwo"


async def test_h51_when_one_frame_fails_everything_behind_it_fails_and_the_container_stops() -> (
    None
):
    tiers = MemoryTiers()
    log = FailingLog(tiers.log_store)
    small_frames = replace(
        ContainerSettings(writer=FAST_FLUSH),
        processor=replace(
            ContainerSettings().processor,
            pipeline=replace(ContainerSettings().processor.pipeline, frame_operations_max=1),
        ),
    )
    container = make_container(tiers, settings=small_frames, log=log)
    await container.start()
    running_task = asyncio.ensure_future(container.run())
    await container.create("a")
    async with container.open_segment("a") as segment:
        log.successes = 3
        futures = [segment.append(b"%d" % number) for number in range(10)]
        results = await asyncio.gather(*futures, return_exceptions=True)
    with pytest.raises(DurableDataLogError):
        await running_task
    acked = [result for result in results if isinstance(result, int)]
    assert acked == [1, 2, 3]
    assert all(isinstance(result, ContainerStoppedError) for result in results[3:])
    assert container.health().state is ContainerState.FAILED
    assert "the disk said no" in container.health().cause
    with pytest.raises(SegmentStoreError):
        await container.create("b")
    async with running(tiers) as container:
        assert (await read_all(container, "a")).startswith(b"012")


async def test_g1_a_new_owner_ends_the_old_one() -> None:
    tiers = MemoryTiers()
    old = make_container(tiers)
    await old.start()
    old_task = asyncio.ensure_future(old.run())
    await old.create("a")
    async with running(tiers) as new:
        with pytest.raises(SegmentStoreError):
            await append(old, "a", b"from the grave")
        with pytest.raises(LogNotPrimaryError):
            await old_task
        assert await read_all(new, "a") == b""


async def test_h32_recovering_twice_gives_the_same_state() -> None:
    tiers = MemoryTiers()
    counter = AttributeKey(b"counter")
    async with abandoned(tiers) as container:
        await container.create("a")
        for _ in range(3):
            update = AttributeUpdate(counter, 5, AttributeUpdateType.ACCUMULATE)
            await container.update_attributes("a", [update])
        await append(container, "a", b"x" * 1000)
    for _ in range(3):
        async with abandoned(tiers) as container:
            assert await container.attributes("a") == {counter: 15}
            assert (await container.info("a")).length == 1000
            container.check()


async def test_h33_numbers_never_return_after_a_restart() -> None:
    tiers = MemoryTiers()
    seen: list[tuple[int, int]] = []
    for round_number in range(3):
        async with abandoned(tiers) as container:
            properties = await container.create(f"s{round_number}")
            metadata = container.container_metadata
            seen.append((properties.segment_id, metadata.sequence_number))
    assert seen == sorted(set(seen))


async def test_h29_checkpoints_alone_never_make_one_due() -> None:
    policy = CheckpointPolicy(CheckpointSettings(bytes_min=100, operations_max=10))
    policy.checkpoint_taken(50)
    policy.committed(length=50, operations=1)
    assert not policy.is_due()
    assert not policy.has_new_operations()
    policy.committed(length=499, operations=1)
    assert not policy.is_due()
    policy.committed(length=1, operations=1)
    assert policy.is_due()


def test_many_frames_make_a_checkpoint_due_however_small_and_the_larger_it_is_the_more() -> None:
    policy = CheckpointPolicy(CheckpointSettings(frames_min=100, bytes_for_a_frame=10))
    for size, frames in ((0, 100), (500, 150)):
        policy.checkpoint_taken(size)
        for _ in range(frames - 1):
            policy.committed(length=1, operations=1)
        assert not policy.is_due()
        policy.committed(length=1, operations=1)
        assert policy.is_due()


async def test_h30_the_log_shrinks_once_everything_is_in_tier_2() -> None:
    tiers = MemoryTiers()
    settings = ContainerSettings(
        writer=FAST_FLUSH, checkpoints=CheckpointSettings(bytes_min=10_000, operations_max=100)
    )
    async with running(tiers, settings=settings) as container:
        await container.create("a")
        for _ in range(20):
            await append(container, "a", *[b"x" * 1000] * 20)
            await container.flush()
        async with asyncio.timeout(60):
            while tiers.log_store.stored_bytes >= 50_000:
                await asyncio.sleep(0.01)
    async with running(tiers, settings=settings) as container:
        assert (await container.info("a")).length == 400_000
        assert await read_all(container, "a") == b"x" * 400_000


async def test_h41_with_tier_2_down_at_start_known_segments_are_served_and_appended_to() -> None:
    tiers = MemoryTiers()
    store = FlakyObjectStore()
    async with running(tiers, object_store=store) as container:
        await container.create("a")
        await append(container, "a", b"before")
    store.down = True
    settings = ContainerSettings(writer=FAST_FLUSH, claim_retry_seconds=0.02)
    container = make_container(tiers, settings=settings, object_store=store)
    await container.start()
    task = asyncio.ensure_future(container.run())
    assert container.health().storage_state == "unclaimed"
    assert "down" in container.health().storage_cause
    assert await append(container, "a", b" and after") == 16
    assert await read_all(container, "a") == b"before and after"
    with pytest.raises(SegmentStoreError, match=r"has not answered since the start .* down"):
        await container.create("cannot be checked")
    store.down = False
    # Tier 2 answers again: the container ends, to be assigned again and recover with it.
    with pytest.raises(ContainerStoppedError):
        await task
    async with running(tiers, object_store=store) as container:
        assert await read_all(container, "a") == b"before and after"
        await container.flush()


class SilentObjectStore(MemoryObjectStore):
    """Answers no read of the keys with `folder` in them while it is silent."""

    def __init__(self, *, folder: str = "") -> None:
        super().__init__()
        self.is_silent = False
        self._folder = folder

    async def get(self, key: str) -> VersionedObject:
        await self._answer(key)
        return await super().get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        await self._answer(key)
        return await super().get_range(key, start, length)

    async def _answer(self, key: str) -> None:
        if self.is_silent and self._folder in key:
            await asyncio.Event().wait()


def test_h41_a_tier_2_that_says_nothing_at_start_is_not_waited_for() -> None:
    async def main(loop: SimLoop) -> None:
        tiers = MemoryTiers()
        store = SilentObjectStore()
        async with running(tiers, object_store=store) as container:
            await container.create("a")
            await append(container, "a", b"before")
        store.is_silent = True
        container = make_container(tiers, object_store=store)
        began = loop.time()
        await container.start()
        assert loop.time() - began <= 1.1 * StorageSettings().claim_seconds_max
        task = asyncio.ensure_future(container.run())
        assert container.health().storage_state == "unclaimed"
        assert await append(container, "a", b" and after") == 16
        store.is_silent = False
        # A request that was lost holds nothing up either.
        with pytest.raises(ContainerStoppedError):
            async with asyncio.timeout(2 * StorageSettings().claim_seconds_max):
                await task
        async with running(tiers, object_store=store) as container:
            assert await read_all(container, "a") == b"before and after"

    run_simulation(1, main)


def test_h41_a_tier_2_that_falls_silent_behind_the_claim_ends_the_start() -> None:
    async def main(loop: SimLoop) -> None:
        tiers = MemoryTiers()
        store = SilentObjectStore(folder="/runs/")
        async with running(tiers, object_store=store) as container:
            await container.create("a")
            await append(container, "a", b"before")
            await container.flush()
            await append(container, "a", b" and after")
        store.is_silent = True
        container = make_container(tiers, object_store=store)
        began = loop.time()
        with pytest.raises(StorageUnavailableError, match=r"does not say .* in time"):
            await container.start()
        assert loop.time() - began <= 2 * LOAD_SECONDS_MAX
        store.is_silent = False
        async with running(tiers, object_store=store) as container:
            assert await read_all(container, "a") == b"before and after"

    run_simulation(1, main)


def test_the_length_of_an_active_segment_is_told_without_a_walk_over_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scaling and retention ask so for each segment of a stream; a walk over 25,000 active ones takes 5 ms."""

    async def main(_: SimLoop) -> None:
        tiers = MemoryTiers()
        tiers.object_store = store = SilentObjectStore(folder="/runs/")
        async with running(tiers) as container:
            for name in ("a", "aa", "b"):
                await container.create(name)
                await append(container, name, name.encode())
            await container.flush()
            everything = await container.list_segments("a")
        async with running(tiers) as container:
            assert [each.name for each in everything] == ["a", "aa"]
            assert await container.list_segments("a", limit=1) == everything[:1]
            store.is_silent = True
            with monkeypatch.context() as patch:
                patch.setattr(ContainerMetadata, "names", None)
                async with asyncio.timeout(1.0):
                    assert await container.list_segments("a", limit=1) == everything[:1]
            store.is_silent = False
            assert await container.list_segments("a", "a", limit=1) == everything[1:]
            await container.delete("a")
            assert await container.list_segments("a", limit=1) == everything[1:]

    run_simulation(1, main)


@pytest.mark.parametrize("silent", ["puts", "reads"])
def test_h41_a_tier_2_that_falls_silent_under_a_flush_of_a_recovery_ends_the_start(
    silent: str,
) -> None:
    class CutOffObjectStore(MemoryObjectStore):
        """Answers until something is put, and then no more of the requests that the test names."""

        is_watched = is_cut = False

        async def put(self, key: str, content: Sequence[BufferView]) -> None:
            self.is_cut |= self.is_watched
            await self._answer("puts")
            await super().put(key, content)

        async def get_range(self, key: str, start: int, length: int) -> bytes:
            await self._answer("reads")
            return await super().get_range(key, start, length)

        async def _answer(self, requests: str) -> None:
            if self.is_cut and silent == requests:
                await asyncio.Event().wait()

    async def main(loop: SimLoop) -> None:
        tiers = MemoryTiers()
        tiers.object_store = store = CutOffObjectStore()
        patient = ContainerSettings(
            writer=replace(FAST_FLUSH, flush_interval_seconds=3600.0, prompt_age_seconds=3600.0)
        )
        async with abandoned(tiers, patient) as container:
            for name in ("a", "b", "c"):
                await container.create(name)
                await append(container, name, b"f" * 10_000)
            await container.flush()
            for _ in range(5):
                for name in ("a", "b", "c"):
                    await append(container, name, b"x" * 200_000)
        store.is_watched = True
        container = make_container(tiers, cache_bytes=1 << 20)
        began = loop.time()
        with pytest.raises(StorageUnavailableError, match="in time"):
            await container.start()
        assert store.is_cut
        assert loop.time() - began <= 120.0
        store.is_watched = store.is_cut = False
        async with running(tiers, cache_bytes=1 << 20) as container:
            for name in ("a", "b", "c"):
                assert await read_all(container, name) == b"f" * 10_000 + b"x" * 1_000_000

    run_simulation(1, main)


async def test_h36_writers_wait_while_tier_2_is_down_and_go_on_by_themselves() -> None:
    tiers = MemoryTiers()
    store = FlakyObjectStore()
    async with running(
        tiers, settings=QUICK_RETRIES, cache_bytes=4 << 20, object_store=store
    ) as container:
        await container.create("a")
        store.down = True
        async with container.open_segment("a") as segment:
            futures = [segment.append(bytes([number]) * 65536) for number in range(128)]
            async with asyncio.timeout(60):
                while not container.health().throttle:
                    await asyncio.sleep(0.005)
            assert container.health().throttle in ("tier2_unavailable", "cache_full")
            assert not futures[-1].done()
            # What frees space, and reads, go on.
            await container.truncate("a", 65536)
            async with aclosing(segment.read(65536, 10)) as entries:
                assert await (await anext(aiter(entries))).content() == b"\x01" * 10
            store.down = False
            assert await futures[-1] == 128 * 65536
        await container.flush()
        assert await read_all(container, "a", 65536) == b"".join(
            bytes([number]) * 65536 for number in range(1, 128)
        )


async def test_h35_a_seal_never_overtakes_appends_that_wait() -> None:
    tiers = MemoryTiers()
    store = FlakyObjectStore()
    async with running(
        tiers, settings=QUICK_RETRIES, cache_bytes=2 << 20, object_store=store
    ) as container:
        await container.create("a")
        store.down = True
        async with container.open_segment("a") as segment:
            futures = [segment.append(b"z" * 65536) for _ in range(64)]
            sealing = asyncio.ensure_future(container.seal("a"))
            await asyncio.sleep(0.05)
            assert not sealing.done()
            store.down = False
            assert await sealing == 64 * 65536
            assert [await future for future in futures][-1] == 64 * 65536


async def test_h52_a_full_log_refuses_appends_in_words_and_lets_deletes_through() -> None:
    tiers = MemoryTiers()
    async with running(tiers) as container:
        for name in ("a", "b"):
            await container.create(name)
        await append(container, "a", b"x" * 1000)
        await container.flush()
        tiers.log_store.capacity_bytes = tiers.log_store.stored_bytes
        container._components.processor.refresh_throttle()
        with pytest.raises(LogFullError, match="deletes and truncates work"):
            await append(container, "a", b"y")
        with pytest.raises(LogFullError):
            await container.create("c")
        with pytest.raises(LogFullError):
            await container.update_attributes("a", [AttributeUpdate(AttributeKey(b"k"), 1)])
        assert container.health().throttle == "tier1_full"
        assert "the disk of the log is full" in container.health().complaint
        await container.truncate("a", 500)
        await container.delete("b")
        assert await read_all(container, "a", 500) == b"x" * 500
        tiers.log_store.capacity_bytes = None
        container._components.processor.refresh_throttle()
        assert await append(container, "a", b"y") == 1001
        assert "full" not in container.health().complaint


async def test_h27_a_pinned_segment_is_not_evicted_and_an_idle_one_comes_back_as_it_was() -> None:
    tiers = MemoryTiers()
    settings = ContainerSettings(
        writer=FAST_FLUSH, mapper=replace(ContainerSettings().mapper, active_segments_max=10)
    )
    writer = AttributeKey(b"writer")
    async with running(tiers, settings=settings) as container:
        ids: dict[str, int] = {}
        for number in range(50):
            name = f"s{number:02}"
            ids[name] = (await container.create(name)).segment_id
            async with container.open_segment(name) as segment:
                await segment.append(
                    b"%d" % number, attribute_updates=[AttributeUpdate(writer, number)]
                )
            assert container.health().active_segments <= 10
        for name, segment_id in ids.items():
            async with container.open_segment(name) as segment:
                assert segment.segment_id == segment_id
                assert await segment.load_attributes([writer]) == {writer: int(name[1:])}
            assert await read_all(container, name) == b"%d" % int(name[1:])
        async with container.open_segment("s00") as pinned:
            for name in list(ids)[1:]:
                async with container.open_segment(name) as segment:
                    await segment.append(b"!")
            assert await pinned.append(b"still here") == 11


async def test_more_pinned_segments_than_may_be_active_are_refused_with_a_sentence() -> None:
    settings = ContainerSettings(
        writer=FAST_FLUSH, mapper=replace(ContainerSettings().mapper, active_segments_max=3)
    )
    async with running(MemoryTiers(), settings=settings) as container:
        for name in "abc":
            await container.create(name)
        async with (
            container.open_segment("a"),
            container.open_segment("b"),
            container.open_segment("c"),
        ):
            with pytest.raises(TooManyActiveSegmentsError, match="busy"):
                await container.create("d")
        await container.create("d")


async def test_h26_an_append_waits_for_an_attribute_that_left_memory_and_nothing_overtakes_it() -> (
    None
):
    tiers = MemoryTiers()
    writer = AttributeKey(b"writer")
    async with running(tiers) as container:
        await container.create("a")
        async with container.open_segment("a") as segment:
            await segment.append(b"1", attribute_updates=[AttributeUpdate(writer, 1)])
        await container.flush()
        container._components.mapper.evict(10)
        async with container.open_segment("a") as segment:
            with pytest.raises(KeyError):
                segment.pending_attribute(writer)
            update = AttributeUpdate(writer, 2, AttributeUpdateType.REPLACE_IF_EQUALS, comparison=1)
            second = segment.append(b"2", attribute_updates=[update])
            third = segment.append(b"3")
            assert [await second, await third] == [2, 3]
        assert await read_all(container, "a") == b"123"


async def test_cancelling_a_waiter_never_cancels_the_append() -> None:
    async with running(MemoryTiers()) as container:
        await container.create("a")
        async with container.open_segment("a") as segment:
            future = segment.append(b"kept")
            future.cancel()
            assert await segment.barrier() == 4
        assert await read_all(container, "a") == b"kept"


class RefusingLog(MemoryDurableDataLog):
    """Cannot be opened; takes its time to give back what it has."""

    def __init__(self, tiers: MemoryTiers) -> None:
        super().__init__(tiers.log_store)
        self.closing, self.may_close = asyncio.Event(), asyncio.Event()
        self.is_closed = False

    async def initialize(self) -> Epoch:
        raise DurableDataLogError("the disk said no")

    async def close(self) -> None:
        self.closing.set()
        await self.may_close.wait()
        await super().close()
        self.is_closed = True


async def test_a_container_that_is_taken_away_while_its_start_fails_gives_its_log_back() -> None:
    tiers = MemoryTiers()
    log = RefusingLog(tiers)
    container = make_container(tiers, log=log)
    starting = asyncio.ensure_future(container.start())
    await log.closing.wait()
    for _ in range(2):
        starting.cancel()
        await asyncio.sleep(0)
    log.may_close.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert log.is_closed, "no owner can open it for as long as the process lives"
