"""Nobody waits for ever: whatever ends a container ends every future, and leaves no task behind."""

import asyncio
from asyncio import Future
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial

import pytest

from containers.container_settings import ContainerSettings
from containers.log.memory_state_updater import MemoryStateUpdater
from containers.operations.operation import Operation
from containers.segment_container import StreamSegmentContainer
from segmentstore.contracts.containers import ContainerState
from segmentstore.contracts.errors import (
    ContainerNotFoundError,
    ContainerStoppedError,
    DurableDataLogError,
    SegmentNotFoundError,
)
from segmentstore.contracts.identifiers import AttributeKey, BufferView, LogAddress
from segmentstore.contracts.segments import AttributeUpdate
from segmentstore.contracts.storage import SegmentRecord
from tests.containers.node import FAST_FLUSH, MemoryTiers, make_container, running
from tests.containers.test_container_faults import FlakyObjectStore
from tests.containers.test_segment_container import append, read_all
from tier1.memory_log import MemoryDurableDataLog

PATIENCE_SECONDS = 60.0
"""Only ever waited for by a test that is about to fail."""


class HeldLog(MemoryDurableDataLog):
    """Takes entries and says nothing about them while `held`."""

    held = False

    def __init__(self, tiers: MemoryTiers, *, entry_bytes_max: int = 1 << 20) -> None:
        super().__init__(tiers.log_store, entry_bytes_max=entry_bytes_max)
        self.unanswered: list[tuple[Future[LogAddress], list[bytes], bool]] = []

    def append(self, entry: Sequence[BufferView], *, internal: bool = False) -> Future[LogAddress]:
        if not self.held:
            return super().append(entry, internal=internal)
        future: Future[LogAddress] = asyncio.get_running_loop().create_future()
        self.unanswered.append((future, [bytes(piece) for piece in entry], internal))
        return future

    def go_on(self) -> None:
        self.held = False
        for future, entry, internal in self.unanswered:
            super().append(entry, internal=internal).add_done_callback(partial(_pass_on, future))
        self.unanswered.clear()

    def break_down(self) -> None:
        for future, _, _ in self.unanswered:
            future.set_exception(DurableDataLogError("the disk said no"))
            future.exception()
        self.unanswered.clear()


def _pass_on(waiter: Future[LogAddress], done: Future[LogAddress]) -> None:
    waiter.set_result(done.result())


async def ended(container: StreamSegmentContainer, run: "asyncio.Task[None]") -> BaseException:
    """What ended the container."""
    results = await asyncio.gather(run, return_exceptions=True)
    assert container.health().state is ContainerState.FAILED
    assert isinstance(results[0], BaseException)
    return results[0]


async def test_h51_an_append_that_is_half_written_when_the_log_fails_learns_of_it() -> None:
    tiers = MemoryTiers()
    log = HeldLog(tiers, entry_bytes_max=200)
    one_frame = replace(ContainerSettings().processor.pipeline, frames_in_flight_max=1)
    settings = ContainerSettings(
        writer=FAST_FLUSH, processor=replace(ContainerSettings().processor, pipeline=one_frame)
    )
    container = make_container(tiers, settings=settings, log=log)
    await container.start()
    run = asyncio.ensure_future(container.run())
    await container.create("a")
    async with container.open_segment("a") as segment:
        log.held = True
        spanning = segment.append(b"x" * 1000)
        behind = segment.append(b"y")
        while not log.unanswered:
            await asyncio.sleep(0)
        log.break_down()
        results = await asyncio.wait_for(
            asyncio.gather(spanning, behind, return_exceptions=True), PATIENCE_SECONDS
        )
    assert all(isinstance(result, ContainerStoppedError) for result in results)
    assert isinstance(await ended(container, run), DurableDataLogError)


async def test_h22_a_bug_in_a_commit_halts_before_any_future_completes_and_ends_them_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    container = make_container(MemoryTiers())
    await container.start()
    run = asyncio.ensure_future(container.run())
    await container.create("a")

    def commit(self: MemoryStateUpdater, operations: Sequence[Operation]) -> None:
        raise RuntimeError("a bug in the commit")

    async with container.open_segment("a") as segment:
        monkeypatch.setattr(MemoryStateUpdater, "commit", commit)
        futures = [segment.append(b"x") for _ in range(3)]
        results = await asyncio.wait_for(
            asyncio.gather(*futures, return_exceptions=True), PATIENCE_SECONDS
        )
    assert all(isinstance(result, ContainerStoppedError) for result in results)
    assert "a bug in the commit" in str(await ended(container, run))


class SlowObjectStore(FlakyObjectStore):
    """Its puts never end while `slow`; `under_way` counts them."""

    slow = False
    under_way = 0

    async def put(self, key: str, content: Sequence[BufferView]) -> None:
        self.under_way += 1
        try:
            if self.slow:
                await asyncio.Event().wait()
            await super().put(key, content)
        finally:
            self.under_way -= 1


async def test_h42_nothing_is_at_work_when_close_returns() -> None:
    store = SlowObjectStore()
    container = make_container(MemoryTiers(), object_store=store)
    await container.start()
    run = asyncio.ensure_future(container.run())
    await container.create("a")
    store.slow = True
    await append(container, "a", b"x" * 1000)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not store.under_way:
            await asyncio.sleep(0.001)
    await container.close()
    assert store.under_way == 0
    await run
    assert container.health().state is ContainerState.STOPPED


async def test_h58_everybody_who_waits_learns_that_the_container_stopped() -> None:
    tiers = MemoryTiers()
    store = SlowObjectStore()
    log = HeldLog(tiers)
    container = make_container(tiers, log=log, object_store=store)
    await container.start()
    run = asyncio.ensure_future(container.run())
    await container.create("a")
    await append(container, "a", b"x")
    store.slow = True
    async with container.open_segment("a") as segment, aclosing(segment.read(1, 10)) as entries:
        tail = asyncio.ensure_future((await anext(aiter(entries))).content())
        flushing = asyncio.ensure_future(container.flush())
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not store.under_way:
                await asyncio.sleep(0.001)
        log.held = True
        waiting = [
            asyncio.ensure_future(container.create("b")),
            asyncio.ensure_future(container.create("b")),
            asyncio.ensure_future(container.seal("a")),
            segment.append(b"y", attribute_updates=[AttributeUpdate(AttributeKey(b"k"), 1)]),
            segment.append(b"refused", offset=0),
            segment.barrier(),
            asyncio.ensure_future(container.flush()),
        ]
        while not log.unanswered:
            await asyncio.sleep(0)
        log.break_down()
        results = await asyncio.wait_for(
            asyncio.gather(tail, flushing, *waiting, return_exceptions=True), PATIENCE_SECONDS
        )
    assert all(isinstance(result, ContainerStoppedError) for result in results), results
    assert isinstance(await ended(container, run), DurableDataLogError)
    assert store.under_way == 0


async def test_h24_a_name_whose_deletion_is_not_durable_is_not_called_absent() -> None:
    tiers = MemoryTiers()
    log = HeldLog(tiers)
    async with running(tiers, log=log) as container:
        await container.create("a")
        log.held = True
        try:
            deleting = asyncio.ensure_future(container.delete("a"))
            while not log.unanswered:
                await asyncio.sleep(0)
            listed = await container.list_segments()
            asking = [
                asyncio.ensure_future(container.info("a")),
                asyncio.ensure_future(container.seal("a")),
                asyncio.ensure_future(append(container, "a", b"x")),
            ]
            for _ in range(20):
                await asyncio.sleep(0)
            answered = [task for task in asking if task.done()]
        finally:
            log.go_on()
        await deleting
        results = await asyncio.gather(*asking, return_exceptions=True)
        assert [found.name for found in listed] == ["a"]
        assert not answered
        assert all(isinstance(result, SegmentNotFoundError) for result in results)


async def test_h24_a_segment_whose_creation_failed_with_its_container_is_never_seen() -> None:
    tiers = MemoryTiers()
    log = HeldLog(tiers)
    container = make_container(tiers, log=log)
    await container.start()
    run = asyncio.ensure_future(container.run())
    log.held = True
    creating = asyncio.ensure_future(container.create("a"))
    while not log.unanswered:
        await asyncio.sleep(0)
    log.break_down()
    answers: list[object] = []
    while container.health().state is ContainerState.RUNNING:
        answers += await asyncio.gather(
            container.info("a"),
            container.create("a"),
            container.list_segments(),
            return_exceptions=True,
        )
    assert answers, "the container ended before anybody could ask"
    assert all(
        answer == [] or isinstance(answer, (ContainerStoppedError, ContainerNotFoundError))
        for answer in answers
    ), answers
    assert isinstance(
        (await asyncio.gather(creating, return_exceptions=True))[0], ContainerStoppedError
    )
    assert isinstance(await ended(container, run), DurableDataLogError)


async def test_h27_the_source_of_a_merge_that_waits_in_line_stays_active(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiers = MemoryTiers()
    key = AttributeKey(b"a writer of the target")
    async with running(tiers) as container:
        for name in ("target", "source"):
            await container.create(name)
            async with container.open_segment(name) as segment:
                await segment.append(name.encode(), attribute_updates=[AttributeUpdate(key, 1)])
        await container.seal("source")
        await container.flush()
        container._components.mapper.evict(2)
        storage = container._recovered.storage
        load_attributes = storage.load_attributes
        loading = asyncio.Event()

        async def load_later(*arguments: object) -> object:
            await loading.wait()
            return await load_attributes(*arguments)  # type: ignore[arg-type] # handed on as they came

        monkeypatch.setattr(storage, "load_attributes", load_later)
        async with container.open_segment("target") as target:
            waiting = target.append(b"!", attribute_updates=[AttributeUpdate(key, 2)])
            merging = asyncio.ensure_future(container.merge("target", "source"))
            async with asyncio.timeout(PATIENCE_SECONDS):
                while target.metadata.waiting_requests < 2:
                    await asyncio.sleep(0.001)
            merging.cancel()
            await asyncio.gather(merging, return_exceptions=True)
            await container.flush()
            assert container._components.mapper.evict(2) == 0
            loading.set()
            assert await waiting == 7
            assert await target.barrier() == 13
    async with running(tiers) as container:
        assert await read_all(container, "target") == b"target!source"


class NotedLog(HeldLog):
    """Says whether it was closed."""

    is_closed = False

    async def close(self) -> None:
        await super().close()
        self.is_closed = True


async def test_a_container_that_is_cancelled_twice_while_it_drains_closes_its_log() -> None:
    tiers = MemoryTiers()
    log = NotedLog(tiers)
    container = make_container(tiers, log=log)
    await container.start()
    run = asyncio.ensure_future(container.run())
    await container.create("a")
    async with container.open_segment("a") as segment:
        log.held = True
        waiting = segment.append(b"x")
        while not log.unanswered:
            await asyncio.sleep(0)
        for _ in range(2):
            run.cancel()
            await asyncio.sleep(0.01)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await container.close()
            with pytest.raises(asyncio.CancelledError):
                await run
            with pytest.raises(ContainerStoppedError):
                await waiting
    assert log.is_closed
    assert container.health().state is ContainerState.STOPPED


async def test_closing_goes_on_behind_a_part_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    tiers = MemoryTiers()
    log = NotedLog(tiers)
    container = make_container(tiers, log=log)
    await container.start()
    run = asyncio.ensure_future(container.run())

    async def close() -> None:
        raise RuntimeError("it does not close")

    monkeypatch.setattr(container._recovered.storage, "close", close)
    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(RuntimeError, match="does not close"):
            await container.close()
        await container.close()
        await run
    assert log.is_closed


async def test_who_closes_a_container_that_is_being_closed_waits_for_the_end() -> None:
    tiers = MemoryTiers()
    log = NotedLog(tiers)
    container = make_container(tiers, log=log)
    await container.start()
    run = asyncio.ensure_future(container.run())
    first = asyncio.ensure_future(container.close())
    await asyncio.sleep(0)
    await container.close()
    assert log.is_closed
    await first
    await run


async def test_what_a_container_that_stops_in_order_had_not_accepted_was_not_done() -> None:
    tiers = MemoryTiers()
    log = HeldLog(tiers)
    small_queue = replace(
        ContainerSettings().processor.pipeline, queued_bytes_max=1, frames_in_flight_max=1
    )
    settings = ContainerSettings(
        writer=FAST_FLUSH,
        processor=replace(ContainerSettings().processor, pipeline=small_queue),
    )
    container = make_container(tiers, settings=settings, log=log)
    await container.start()
    run = asyncio.ensure_future(container.run())
    await container.create("a")
    async with container.open_segment("a") as segment:
        log.held = True
        sent = segment.append(b"sent,")
        while not log.unanswered:
            await asyncio.sleep(0)
        accepted = segment.append(b"accepted")
        waiting = segment.append(b"waiting")
        behind = segment.update_attributes([AttributeUpdate(AttributeKey(b"k" * 16), 1)])
        assert segment.metadata.waiting_requests == 2
        run.cancel()
        while container.health().state is not ContainerState.STOPPING:
            await asyncio.sleep(0)
        late = [segment.append(b"late"), segment.append(b"x", offset=99)]
        log.go_on()
        assert await asyncio.wait_for(accepted, PATIENCE_SECONDS) == len(b"sent,accepted")
        assert sent.done()
        # It has finished what it had accepted, and is about to end the rest.
        late.append(segment.append(b"latest"))
        results = await asyncio.wait_for(
            asyncio.gather(waiting, behind, *late, return_exceptions=True), PATIENCE_SECONDS
        )
    assert all(isinstance(result, ContainerNotFoundError) for result in results), results
    await asyncio.gather(run, return_exceptions=True)
    async with running(tiers, log=MemoryDurableDataLog(tiers.log_store)) as next_owner:
        assert await read_all(next_owner, "a") == b"sent,accepted"


async def test_a_creation_that_was_refused_by_a_container_that_stops_is_in_no_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiers = MemoryTiers()
    log = HeldLog(tiers)
    container = make_container(tiers, log=log)
    await container.start()
    run = asyncio.ensure_future(container.run())
    await container.create("a")
    storage = container._recovered.storage
    find = storage.find
    asked, answer = asyncio.Event(), asyncio.Event()

    async def find_later(name: str) -> SegmentRecord | None:
        asked.set()
        await answer.wait()
        return await find(name)

    monkeypatch.setattr(storage, "find", find_later)
    creating = asyncio.ensure_future(container.create_table("late"))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asked.wait()
        async with container.open_segment("a") as segment:
            log.held = True
            sent = segment.append(b"sent")
            while not log.unanswered:
                await asyncio.sleep(0)
            closing = asyncio.ensure_future(container.close())
            while container.health().state is not ContainerState.STOPPING:
                await asyncio.sleep(0)
            answer.set()
            with pytest.raises(ContainerNotFoundError):
                await creating
            # One may be due at any moment.
            checkpoint = container._components.processor.checkpoint()
            log.go_on()
            assert await sent == len(b"sent")
            await checkpoint
        await closing
        await run
    async with running(tiers, log=MemoryDurableDataLog(tiers.log_store)) as next_owner:
        assert [found.name for found in await next_owner.list_segments()] == ["a"]
        await next_owner.create_table("late")


async def test_attributes_do_not_wait_for_a_container_that_failed_while_writers_were_slowed() -> (
    None
):
    tiers = MemoryTiers()
    log = HeldLog(tiers)
    always_a_little = replace(
        ContainerSettings().throttler, log_bytes_begin=0, log_bytes_stop=1 << 60
    )
    settings = ContainerSettings(
        writer=FAST_FLUSH, throttler=always_a_little, housekeeping_seconds=0.01
    )
    container = make_container(tiers, settings=settings, log=log)
    await container.start()
    run = asyncio.ensure_future(container.run())
    await container.create("a")
    processor = container._components.processor
    async with asyncio.timeout(PATIENCE_SECONDS), container.open_segment("a") as segment:
        await segment.append(b"x")
        while not processor.throttle.is_active:
            await asyncio.sleep(0.01)
        log.held = True
        truncating = asyncio.ensure_future(container.truncate("a", 1))
        while not log.unanswered:
            await asyncio.sleep(0)
        log.break_down()
        while processor.failure is None:
            await asyncio.sleep(0)
        late = segment.update_attributes([AttributeUpdate(AttributeKey(b"k" * 16), 1)])
        outcomes = await asyncio.gather(truncating, late, return_exceptions=True)
    assert [type(each) for each in outcomes] == [ContainerStoppedError] * 2
    assert isinstance(await ended(container, run), DurableDataLogError)
