"""The rules of tables that need more than the door: crashes, evictions, restarts (compaction has a file of its own)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from containers.segment_container import StreamSegmentContainer
from segmentstore.contracts.errors import (
    AppendTooLargeError,
    ContainerNotFoundError,
    ContainerStoppedError,
    NotATableError,
    SegmentNotFoundError,
    TableKeyNotFoundError,
    TableVersionError,
)
from segmentstore.contracts.identifiers import AttributeKey, SegmentId
from segmentstore.contracts.storage import AttributePage
from segmentstore.contracts.tables import NO_VERSION, NOT_EXISTS, Table, TableEntry, TableKey
from tests.containers.node import MemoryTiers, make_container, running
from tests.containers.tables.forgetful import FORGETFUL, forget, key
from tests.contracts.table_suite import entry, value_of
from tier1.memory_log import MemoryDurableDataLog


def held_bytes(container: StreamSegmentContainer) -> int:
    return container.container_metadata.attribute_ledger.held_bytes


async def test_h24_a_refusal_is_not_told_before_what_it_was_judged_against_is_durable() -> None:
    async with running(MemoryTiers()) as container:
        await container.create_table("t")
        async with container.open_table("t") as table:
            accepted = table.update([entry(b"k", b"1", NOT_EXISTS)])
            refused = table.update([entry(b"k", b"2", NOT_EXISTS)])
            assert not refused.done()
            with pytest.raises(TableVersionError):
                await refused
            assert accepted.done()


@asynccontextmanager
async def table_on_a_log(
    tiers: MemoryTiers,
) -> AsyncIterator[tuple[Table, MemoryDurableDataLog]]:
    """A new table and the log of its container, which may be closed under it."""
    log = MemoryDurableDataLog(tiers.log_store)
    container = make_container(tiers, log=log)
    await container.start()
    run = asyncio.ensure_future(container.run())
    await container.create_table("t")
    try:
        async with container.open_table("t") as table:
            yield table, log
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)


async def test_h24_a_crash_takes_the_refusal_along_with_what_it_was_judged_against() -> None:
    tiers = MemoryTiers()
    async with table_on_a_log(tiers) as (table, log):
        accepted = table.update([entry(b"k", b"1", NOT_EXISTS)])
        refused = table.update([entry(b"k", b"2", NOT_EXISTS)])
        await log.close()
        outcomes = await asyncio.gather(accepted, refused, return_exceptions=True)
        assert [type(each) for each in outcomes] == [ContainerStoppedError] * 2
    async with running(tiers) as container, container.open_table("t") as table:
        assert await table.get([b"k"]) == [None]


async def test_updates_submitted_together_are_one_operation_of_the_log() -> None:
    async with running(MemoryTiers(), settings=FORGETFUL) as container:
        await container.create_table("t")
        async with container.open_table("t") as table:
            (old,) = await table.update([entry(b"k", b"old")])
            before = container._components.processor.statistics().appended_operations
            outcomes = await table.update_each(
                [entry(key(n), b"%d" % n) for n in range(500)] + [entry(b"k", b"new", old + 1)]
            )
            assert container._components.processor.statistics().appended_operations == before + 1
            assert isinstance(outcomes[-1], TableVersionError)
            assert table.info().entry_count == 501
            container.check()


async def test_h24_updates_that_are_all_refused_wait_for_what_they_were_judged_against() -> None:
    tiers = MemoryTiers()
    async with table_on_a_log(tiers) as (table, log):
        accepted = table.update([entry(b"k", b"1", NOT_EXISTS)])
        refused = table.update_each([entry(b"k", b"2", NOT_EXISTS), entry(b"x", b"3", 5)])
        assert not refused.done()
        assert [type(each) for each in await refused] == [TableVersionError, TableKeyNotFoundError]
        assert accepted.done()
        accepted = table.update([entry(b"n", b"1", NOT_EXISTS)])
        refused = table.update_each([entry(b"n", b"2", NOT_EXISTS)])
        await log.close()
        outcomes = await asyncio.gather(accepted, refused, return_exceptions=True)
        assert [type(each) for each in outcomes] == [ContainerStoppedError] * 2


async def test_h26_updates_submitted_together_wait_together_for_what_left_memory() -> None:
    async with running(MemoryTiers(), settings=FORGETFUL) as container:
        await container.create_table("t")
        async with container.open_table("t") as table:
            await table.update([entry(key(n), b"old") for n in range(1000)])
            await forget(container)
            before = container._components.mapper._attribute_fetches.requests
            outcomes = await table.update_each(
                [entry(key(n), b"new", NOT_EXISTS if n % 2 else NO_VERSION) for n in range(100)]
            )
            assert [isinstance(each, int) for each in outcomes] == [n % 2 == 0 for n in range(100)]
            assert container._components.mapper._attribute_fetches.requests - before <= 2
            assert table.info().entry_count == 1000


async def test_reads_see_committed_state_only() -> None:
    async with running(MemoryTiers()) as container:
        await container.create_table("t")
        async with container.open_table("t") as table:
            await table.update([entry(b"k", b"1")])
            pending = table.update([entry(b"k", b"2"), entry(b"new", b"1")])
            found = table.get_nowait([b"k", b"new"])
            assert found is not None
            assert [each and each.value for each in found] == [b"1", None]
            assert table.info().entry_count == 1
            await pending
            assert await value_of(table, b"k") == b"2"


async def test_h26_a_version_that_left_memory_is_fetched_before_it_is_judged() -> None:
    async with running(MemoryTiers(), settings=FORGETFUL) as container:
        await container.create_table("t")
        async with container.open_table("t") as table:
            versions = await table.update([entry(key(n), b"v") for n in range(200)])
            await forget(container)
            assert table.get_nowait([key(3)]) is None
            with pytest.raises(TableVersionError):
                await table.update([entry(key(3), b"w", NOT_EXISTS)])
            await forget(container)
            await table.update([entry(key(3), b"w", versions[3])])
            await forget(container)
            await table.update([entry(key(3), b"x"), entry(b"new", b"y")])
            assert table.info().entry_count == 201
            await table.remove([TableKey(key(n)) for n in range(100)])
            assert table.info().entry_count == 101
            container.check()


async def test_h26_batches_that_wait_for_the_index_keep_their_order_and_share_requests() -> None:
    async with running(MemoryTiers(), settings=FORGETFUL) as container:
        await container.create_table("t")
        async with container.open_table("t") as table:
            await table.update([entry(key(n), b"v") for n in range(100)])
            await forget(container)
            fetches = container._components.mapper._attribute_fetches
            before = fetches.requests
            futures = [table.update([entry(key(n), b"%d" % n)]) for n in range(100)]
            versions = [(await future)[0] for future in futures]
            assert versions == sorted(versions)
            assert fetches.requests - before <= 4


async def test_h66_a_restart_reads_neither_the_segment_nor_the_index() -> None:
    tiers = MemoryTiers()
    async with running(tiers, settings=FORGETFUL) as container:
        await container.create_table("t")
        async with container.open_table("t") as table:
            for first in range(0, 20_000, 1000):
                await table.update([entry(key(n), bytes(200)) for n in range(first, first + 1000)])
            length = table.info().length
        await container.flush()
        # Everything is published: the next checkpoint lets the log go.
        while container.recovery_summary is None or len(tiers.log_store.entries) > 2:
            await asyncio.sleep(0.01)
    async with running(tiers, settings=FORGETFUL) as container:
        assert container.recovery_summary is not None
        assert container.recovery_summary.data_bytes == 0
        before = container.metrics()["tier2_get_bytes_total"]
        assert before < length / 10
        async with container.open_table("t") as table:
            assert table.info().entry_count == 20_000
            assert await value_of(table, key(12_345)) == bytes(200)
            await table.update([entry(key(777), b"new")])
            assert table.info().entry_count == 20_000
        assert container.metrics()["tier2_get_bytes_total"] - before < length / 10
        assert held_bytes(container) < 20_000


async def test_h67_a_removed_key_stays_removed_when_its_index_has_left_memory() -> None:
    tiers = MemoryTiers()
    async with running(tiers, settings=FORGETFUL) as container:
        await container.create_table("t")
        for _ in range(8):
            async with container.open_table("t") as table:
                await table.update([entry(b"k", b"v"), entry(b"other", b"v")])
                await forget(container)
                await table.remove([TableKey(b"k")])
                await forget(container)
                assert await table.get([b"k"]) == [None]
                assert [each.key for each in (await table.read_keys(count=9)).keys] == [b"other"]
    async with running(tiers, settings=FORGETFUL) as container, container.open_table("t") as table:
        assert await table.get([b"k"]) == [None]
        assert table.info().entry_count == 1


async def test_h67_a_recreated_table_has_nothing_of_the_published_former_one() -> None:
    async with running(MemoryTiers(), settings=FORGETFUL) as container:
        await container.create_table("t")
        async with container.open_table("t") as table:
            await table.update([entry(b"k", b"v")])
        await forget(container)
        await container.delete_table("t", must_be_empty=False)
        await container.create_table("t", key_length=1)
        await forget(container)
        async with container.open_table("t") as table:
            assert await table.get([b"k"]) == [None]
            assert (await table.read_keys(count=9)).keys == []
            assert table.key_length == 1


async def test_a_table_of_a_container_that_stopped_waits_for_nothing() -> None:
    tiers = MemoryTiers()
    async with running(tiers, settings=FORGETFUL) as container:
        await container.create_table("t")
        async with container.open_table("t") as table:
            await table.update([entry(b"k", b"v")])
        await forget(container)
    async with running(tiers, settings=FORGETFUL) as container, container.open_table("t") as table:
        await container.flush()
        await container.close()
        with pytest.raises(ContainerStoppedError):
            await table.get([b"k"])
        with pytest.raises(ContainerNotFoundError):  # nothing was done
            await table.update([entry(b"k", b"w")])


async def test_a_segment_is_no_table() -> None:
    async with running(MemoryTiers()) as container:
        await container.create("s")
        with pytest.raises(NotATableError):
            async with container.open_table("s"):
                pass
        with pytest.raises(NotATableError):
            await container.delete_table("s", must_be_empty=False)
        assert (await container.info("s")).length == 0


async def test_a_table_that_was_deleted_is_not_found_through_an_old_handle() -> None:
    async with running(MemoryTiers()) as container:
        await container.create_table("t")
        async with container.open_table("t") as table:
            await table.update([entry(b"k", b"v")])
            await container.delete_table("t", must_be_empty=False)
            with pytest.raises(SegmentNotFoundError):
                table.get_nowait([b"k"])
            with pytest.raises(SegmentNotFoundError):
                await table.read_keys(count=1)
            with pytest.raises(SegmentNotFoundError):
                await table.update([entry(b"k", b"v")])


async def test_a_batch_larger_than_an_append_is_accepted_up_to_what_the_cache_holds() -> None:
    tiers = MemoryTiers()
    async with running(tiers, cache_bytes=128 << 20) as container:
        await container.create_table("t")
        async with container.open_table("t") as table:
            batch = [TableEntry(key(n), bytes(1_000_000)) for n in range(20)]
            assert len(await table.update(batch)) == 20
            assert await value_of(table, key(19)) == bytes(1_000_000)
    async with (
        running(tiers, cache_bytes=128 << 20) as container,
        container.open_table("t") as table,
    ):
        assert await value_of(table, key(0)) == bytes(1_000_000)
    async with running(MemoryTiers(), cache_bytes=16 << 20) as container:
        await container.create_table("t")
        async with container.open_table("t") as table:
            with pytest.raises(AppendTooLargeError):
                await table.update(batch)


class HeldExecutor(Executor):
    """Its jobs are done when the test says so, in any order."""

    def __init__(self) -> None:
        self._jobs: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, job: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        self._jobs.append((future, partial(job, *args, **kwargs)))
        return future

    async def wait_for_jobs(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self._jobs) < count:
                await asyncio.sleep(0)

    def do(self, number: int) -> None:
        future, job = self._jobs[number]
        future.set_result(job())


async def test_an_iteration_has_the_keys_before_it_although_an_earlier_one_sorts_for_longer() -> (
    None
):
    async with running(MemoryTiers()) as container:
        await container.create_table("t")
        async with container.open_table("t") as table:
            await table.update([entry(b"%04d" % number, b"") for number in range(3000)])
            executor = container._components.tables._executor = HeldExecutor()
            earlier = asyncio.ensure_future(table.read_keys(count=1000))
            await executor.wait_for_jobs(1)
            await table.update([entry(b"new", b"")])
            later = asyncio.ensure_future(table.read_keys(count=1000))
            await executor.wait_for_jobs(2)
            executor.do(1)
            page = await later
            executor.do(0)
            await earlier
            keys = [each.key for each in page.keys]
            while page.token:
                page = await table.read_keys(count=1000, token=page.token)
                keys += [each.key for each in page.keys]
            assert len(keys) == 3001
            assert b"new" in keys


async def test_an_iteration_has_a_key_that_is_published_while_tier_2_is_asked_and_another_one_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(MemoryTiers(), settings=FORGETFUL) as container:
        await container.create_table("t")
        async with container.open_table("t") as table:
            await table.update([entry(key(1), b""), entry(key(3), b"")])
            await forget(container)
            storage = container._recovered.storage
            scan = storage.scan_attributes

            async def overtaken(
                segment_id: SegmentId, *, start: AttributeKey, end: AttributeKey, count: int
            ) -> AttributePage:
                answer = await scan(segment_id, start=start, end=end, count=count)
                monkeypatch.undo()
                await container.flush()
                await table.update([entry(key(4), b"")])
                await table.read_keys(count=10)
                return answer

            await table.update([entry(key(2), b"")])
            monkeypatch.setattr(storage, "scan_attributes", overtaken)
            page = await table.read_keys(count=10)
            found = [each.key for each in page.keys]
            assert found[:3] == [key(1), key(2), key(3)]


@pytest.mark.parametrize("is_forgotten", [False, True])
async def test_a_page_of_long_keys_has_no_more_bytes_than_a_page_of_entries(
    *, is_forgotten: bool
) -> None:
    async with running(MemoryTiers(), settings=FORGETFUL) as container:
        await container.create_table("t")
        async with container.open_table("t") as table:
            expected = {key(number) + bytes(8_000) for number in range(300)}
            for each in sorted(expected):
                await table.update([entry(each, b"")])
            if is_forgotten:
                await forget(container)
            found: list[bytes] = []
            page = await table.read_keys(count=1_000)
            while True:
                assert sum(len(each.key) for each in page.keys) <= 1 << 20
                found += [each.key for each in page.keys]
                if not page.token:
                    break
                page = await table.read_keys(count=1_000, token=page.token)
            assert found == sorted(expected)
