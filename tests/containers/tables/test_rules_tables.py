"""The rules of tables that need more than the door: crashes, evictions, compaction, restarts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from containers.attributes.attribute_memory import AttributeMemorySettings
from containers.container_settings import ContainerSettings
from containers.segment_container import StreamSegmentContainer
from containers.tables.settings import TableSettings
from segmentstore.contracts.errors import (
    AppendTooLargeError,
    ContainerStoppedError,
    NotATableError,
    SegmentNotFoundError,
    TableKeyNotFoundError,
    TableVersionError,
)
from segmentstore.contracts.identifiers import SegmentId
from segmentstore.contracts.tables import NO_VERSION, NOT_EXISTS, Table, TableEntry, TableKey
from tests.containers.node import FAST_FLUSH, MemoryTiers, make_container, running
from tests.contracts.table_suite import all_changes, all_entries, entry, value_of
from tier1.memory_log import MemoryDurableDataLog

FORGETFUL = ContainerSettings(
    writer=FAST_FLUSH,
    attribute_memory=AttributeMemorySettings(
        bytes_max=200_000, look_seconds=0.002, throttle_factor=1e9
    ),
    tables=TableSettings(compact_seconds=10_000.0),
    housekeeping_seconds=0.01,
)
EAGER = replace(
    FORGETFUL,
    tables=TableSettings(
        compact_seconds=10_000.0, compact_bytes_min=100, slice_bytes=500, round_bytes_max=100_000
    ),
)
SCANNING = replace(EAGER, tables=replace(EAGER.tables, known_count_max=0))


def key(number: int) -> bytes:
    return b"key-%06d" % number


def held_bytes(container: StreamSegmentContainer) -> int:
    return container.container_metadata.attribute_ledger.held_bytes


async def forget(container: StreamSegmentContainer) -> None:
    """Publish everything and drop it from memory, as the hand of the clock would in time."""
    await container.flush()
    for segment in container.container_metadata.by_id.values():
        table = segment.attributes
        for _ in range(2):
            table.sweep(segment.published_sequence_number, table.extended_count)


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
            before = container._processor.statistics().appended_operations
            outcomes = await table.update_each(
                [entry(key(n), b"%d" % n) for n in range(500)] + [entry(b"k", b"new", old + 1)]
            )
            assert container._processor.statistics().appended_operations == before + 1
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
            before = container._mapper._attribute_fetches.requests
            outcomes = await table.update_each(
                [entry(key(n), b"new", NOT_EXISTS if n % 2 else NO_VERSION) for n in range(100)]
            )
            assert [isinstance(each, int) for each in outcomes] == [n % 2 == 0 for n in range(100)]
            assert container._mapper._attribute_fetches.requests - before <= 2
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
            fetches = container._mapper._attribute_fetches
            before = fetches.requests
            futures = [table.update([entry(key(n), b"%d" % n)]) for n in range(100)]
            versions = [(await future)[0] for future in futures]
            assert versions == sorted(versions)
            assert fetches.requests - before <= 4


@pytest.mark.parametrize("settings", [EAGER, SCANNING], ids=["by index", "by scan"])
async def test_h65_compaction_keeps_versions_and_frees_the_head(
    settings: ContainerSettings,
) -> None:
    tiers = MemoryTiers()
    async with running(tiers, settings=settings) as container:
        await container.create_table("t")
        async with container.open_table("t") as table:
            versions = await table.update([entry(key(n), b"old" * 5) for n in range(100)])
            for _ in range(5):
                await table.update([entry(key(n), b"new" * 5) for n in range(50)])
            await table.remove([TableKey(key(99))])
            before = table.info()
            expected = {each.key: each for each in await all_entries(table, count=50)}
            while container._tables.compaction.is_due(
                container.container_metadata.by_id[_id(container)]
            ):
                await container._tables.compact_due()
            after = table.info()
            assert after.start_offset > before.length // 2
            assert after.entry_count == 99
            assert {each.key: each for each in await all_entries(table, count=50)} == expected
            assert expected[key(70)].version == versions[70]
            # A condition on the version from before the move still holds.
            await table.update([entry(key(70), b"moved", versions[70])])
            assert await all_changes(table, 0, count=7) == {
                **{each.key: each.value for each in expected.values()},
                key(70): b"moved",
            }
            container.check()
    async with running(tiers, settings=EAGER) as container, container.open_table("t") as table:
        assert len(await all_entries(table, count=50)) == 99
        assert await value_of(table, key(70)) == b"moved"


async def test_h65_a_client_behind_the_compaction_is_told_to_begin_again() -> None:
    async with running(MemoryTiers(), settings=EAGER) as container:
        await container.create_table("t")
        async with container.open_table("t") as table:
            for number in range(50):
                await table.update([entry(key(number % 3), b"%d" % number)])
            await container._tables.compact_due()
            assert table.info().start_offset > 0
            delta = await table.read_delta(position=0, count=100)
            assert delta.should_clear
            assert {each.key for each in delta.entries} == {key(0), key(1), key(2)}
            again = await table.read_delta(position=delta.last_position, count=100)
            assert (again.should_clear, list(again.entries)) == (False, [])


@pytest.mark.parametrize("settings", [EAGER, SCANNING], ids=["by index", "by scan"])
async def test_h65_updates_during_compaction_are_never_undone(
    settings: ContainerSettings,
) -> None:
    async with running(MemoryTiers(), settings=settings) as container:
        await container.create_table("t")
        async with container.open_table("t") as table:
            expected: dict[bytes, bytes] = {}
            await table.update([entry(key(n), b"0" * 30) for n in range(100)])
            expected.update((key(n), b"0" * 30) for n in range(100))

            written = False

            async def compact() -> None:
                while not written:
                    await container._tables.compact_due()
                    await asyncio.sleep(0)

            compacting = asyncio.ensure_future(compact())
            for number in range(1, 400):
                each = key(number * 7 % 100)
                expected[each] = b"%030d" % number
                await table.update([entry(each, expected[each])])
            written = True
            await compacting
            found = await all_entries(table, count=30)
            assert {each.key: each.value for each in found} == expected
            assert table.info().start_offset > 0


async def test_a_small_busy_table_is_freed_at_once_however_long_it_has_grown() -> None:
    tables = replace(EAGER.tables, round_bytes_max=500)
    async with running(MemoryTiers(), settings=replace(EAGER, tables=tables)) as container:
        await container.create_table("t")
        async with container.open_table("t") as table:
            await table.update([entry(b"cold", b"value")])
            for number in range(1000):
                await table.update([entry(key(number % 3), b"%03d" % number)])
            length = table.info().length
            await container._tables.compact_due()
            assert table.info().start_offset > length - 500
            expected = [b"value", b"999", b"997", b"998"]
            assert [each.value for each in await all_entries(table)] == expected
            # All keys gone: nothing of it is kept.
            await table.remove([TableKey(each.key) for each in await all_entries(table)])
            await container._tables.compact_due()
            assert table.info().start_offset == table.info().length
            assert await table.update([entry(b"k", b"v")]) == [table.info().start_offset]
            assert await all_changes(table, 0) == {b"k": b"v"}


async def test_a_table_whose_index_is_not_all_in_memory_is_compacted_by_scanning() -> None:
    async with running(MemoryTiers(), settings=EAGER) as container:
        await container.create_table("t")
        async with container.open_table("t") as table:
            await table.update([entry(b"cold", b"value")])
            await forget(container)
            for number in range(50):
                await table.update([entry(key(number % 3), b"%03d" % number)])
            await container._tables.compact_due()
            assert table.info().start_offset > 0
            assert await value_of(table, b"cold") == b"value"
            assert len(await all_entries(table)) == 4


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
        while container.recovered is None or len(tiers.log_store.entries) > 2:
            await asyncio.sleep(0.01)
    async with running(tiers, settings=FORGETFUL) as container:
        assert container.recovered is not None
        assert container.recovered.data_bytes == 0
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
        with pytest.raises(ContainerStoppedError):
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


def _id(container: StreamSegmentContainer) -> SegmentId:
    segment = container.container_metadata.get("t")
    assert segment is not None
    return segment.segment_id
