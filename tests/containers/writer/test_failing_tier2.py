"""A Tier 2 that fails, is full, or belongs to another owner by now. The storage writer runs in virtual time."""

import asyncio
import itertools
from collections.abc import Awaitable

import pytest

from containers.container_settings import WriterSettings
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    StorageNotPrimaryError,
    StorageUnavailableError,
)
from segmentstore.contracts.identifiers import AttributeKey, SequenceNumber
from segmentstore.contracts.storage import DataPiece
from tests.containers.writer.memory_storage import Fault, MemoryStorage
from tests.containers.writer.running_writer import flush_all, make_writer, running
from tests.containers.writer.simulated_writer import simulate
from tests.containers.writer.small_container import (
    EVENTS,
    SmallContainer,
)


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER, Fault.LATE])
def test_the_same_publication_is_handed_in_again_until_it_succeeds(fault: Fault) -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        faults = [fault] * 4
        storage.next_fault = lambda: faults.pop() if faults else Fault.NONE
        async with running(container, storage) as writer:
            segment_id = container.create("a")
            container.append(segment_id, b"x")
            flushed = asyncio.ensure_future(flush_all(container, writer))
            await asyncio.sleep(0.01)
            assert writer.statistics().state == "unavailable"
            container.append(segment_id, b"y")
            await flushed
            assert writer.statistics().state == "ok"
            assert len({id(attempt) for attempt in storage.attempts}) == 1
            await flush_all(container, writer)
            container.check_equal(storage)

    simulate(scenario)


@pytest.mark.parametrize("state", ["throttled", "credentials_expired", "clock_skew"])
def test_health_names_what_is_wrong_with_tier2_as_its_store_does(state: str) -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        refusals = [StorageUnavailableError("no", state=state)]

        def refuse_once() -> Fault:
            if refusals:
                raise refusals.pop()
            return Fault.NONE

        storage.next_fault = refuse_once
        async with running(container, storage) as writer:
            container.append(container.create("a"), b"x")
            flushed = asyncio.ensure_future(flush_all(container, writer))
            await asyncio.sleep(0.01)
            assert writer.statistics().state == state
            await flushed
            assert writer.statistics().state == "ok"

    simulate(scenario)


def test_pauses_grow_up_to_a_limit() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        times: list[float] = []

        def fail() -> Fault:
            times.append(asyncio.get_running_loop().time())
            return Fault.BEFORE

        storage.next_fault = fail
        async with running(container, storage) as writer:
            container.seal(container.create("a"))
            await asyncio.sleep(600)
            pauses = [second - first for first, second in itertools.pairwise(times)]
            assert 0.05 <= pauses[0] <= 0.1
            assert all(5 <= pause <= 10 for pause in pauses[8:])
            assert writer.statistics().failures_in_a_row == len(times)
            storage.next_fault = lambda: Fault.NONE
            await flush_all(container, writer)
            container.check_equal(storage)

    simulate(scenario)


@pytest.mark.parametrize("fault", [Fault.FULL, Fault.FULL_LATE])
def test_h52_deleting_a_segment_frees_a_full_tier_2(fault: Fault) -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        async with running(container, storage) as writer:
            full_of = container.create("full of it")
            container.append(full_of, b"x" * 1000)
            await flush_all(container, writer)
            storage.next_fault = lambda: (
                fault if full_of in storage.segments and _adds_bytes(storage) else Fault.NONE
            )
            waiting = [container.create(f"w{number}") for number in range(5)]
            for segment_id in waiting:
                container.append(segment_id, b"y" * 10, seal=True)
            while writer.statistics().state != "full":
                await asyncio.sleep(0.01)
            if fault is Fault.FULL:
                await asyncio.sleep(60)
                assert writer.statistics().state == "full"
                assert storage.garbage_collections > 0
            container.delete(waiting[2])
            container.delete(full_of)
            await flush_all(container, writer)
            container.check_equal(storage)
            assert writer.statistics().state == "ok"

    simulate(scenario)


def test_h52_truncating_a_segment_frees_a_full_tier_2() -> None:
    """The truncated segment has a few bytes pending, others have more than fits."""

    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        settings = WriterSettings(frugal_bytes_max=50)
        async with running(container, storage, settings) as writer:
            full_of = container.create("full of it")
            container.append(full_of, b"x" * 1000)
            await flush_all(container, writer)

            def is_full() -> Fault:
                start = storage.segments[full_of].record.start_offset
                return Fault.FULL if start == 0 and _added_bytes(storage) > 50 else Fault.NONE

            storage.next_fault = is_full
            for number in range(5):
                container.append(container.create(f"w{number}"), b"y" * 100, seal=True)
            container.append(full_of, b"z" * 20)
            await asyncio.sleep(30)
            assert writer.statistics().state == "full"
            container.truncate(full_of, 900)
            await flush_all(container, writer)
            container.check_equal(storage)

    simulate(scenario)


def _added_bytes(storage: MemoryStorage) -> int:
    pieces = [piece for change in storage.attempts[-1].segments for piece in change.pieces]
    return sum(len(run) for piece in pieces if isinstance(piece, DataPiece) for run in piece.runs)


def _adds_bytes(storage: MemoryStorage) -> bool:
    return any(change.pieces for change in storage.attempts[-1].segments)


def test_a_fenced_writer_ends_at_once() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        storage.next_fault = lambda: Fault.FENCED
        container.seal(container.create("a"))
        writer = await make_writer(container, storage)
        async with asyncio.TaskGroup() as group:
            flushed = group.create_task(_outcome_of_flush(writer.flush(SequenceNumber(2))))
            with pytest.raises(StorageNotPrimaryError):
                await writer.run()
            assert isinstance(await flushed, ContainerStoppedError)
        with pytest.raises(ContainerStoppedError):
            await writer.flush(SequenceNumber(2))
        assert not container.acknowledged

    simulate(scenario)


async def _outcome_of_flush(flush: Awaitable[None]) -> BaseException | None:
    try:
        await flush
    except ContainerStoppedError as error:
        return error
    return None


def test_h36_an_hour_without_tier_2_ends_in_one_catch_up() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        storage.next_fault = lambda: Fault.BEFORE
        async with running(container, storage) as writer:
            segment_ids = [container.create(f"s{number}") for number in range(20)]
            for minute in range(60):
                for segment_id in segment_ids:
                    container.append(segment_id, b"x" * 50, [(EVENTS, minute)])
                await asyncio.sleep(60)
            assert not storage.landed
            storage.next_fault = lambda: Fault.NONE
            await asyncio.sleep(25)
            container.check_equal(storage)
            assert len(storage.landed) <= 3
            assert writer.statistics().pending_bytes == 0

    simulate(scenario)


def test_a_cancelled_flush_leaves_nothing_behind() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        async with running(container, storage) as writer:
            flushed = asyncio.ensure_future(writer.flush(SequenceNumber(99)))
            await asyncio.sleep(5)
            flushed.cancel()
            await asyncio.sleep(5)
            container.append(container.create("a"), b"x")
            await asyncio.sleep(5)
            assert not storage.landed  # no flush forces it any more

    simulate(scenario)


def test_records_come_from_memory_while_remembered_and_from_tier_2_otherwise() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        settings = WriterSettings(remembered_records_max=3)
        async with running(container, storage, settings) as writer:
            segment_ids = [container.create(f"s{number}") for number in range(6)]
            await flush_all(container, writer)
            assert storage.loads == 0
            for segment_id in segment_ids[3:]:
                container.append(segment_id, b"x", [(AttributeKey(b"k" * 16), 1)])
            await flush_all(container, writer)
            assert storage.loads == 0
            for segment_id in segment_ids:
                container.append(segment_id, b"y", [(EVENTS, 3)])
            await flush_all(container, writer)
            assert storage.loads == 1
            container.check_equal(storage)

    simulate(scenario)
