"""Compaction of tables: what moves keeps its version, what is not needed is freed, no update is lost (H65)."""

import asyncio
from dataclasses import replace

import pytest

from containers.container_settings import ContainerSettings, TableSettings
from containers.segment_container import StreamSegmentContainer
from segmentstore.contracts.identifiers import SegmentId
from segmentstore.contracts.tables import TableKey
from tests.containers.node import MemoryTiers, running
from tests.containers.tables.forgetful import FORGETFUL, forget, key
from tests.contracts.table_suite import all_changes, all_entries, entry, value_of

EAGER = replace(
    FORGETFUL,
    tables=TableSettings(
        compact_seconds=10_000.0, compact_bytes_min=100, slice_bytes=500, round_bytes_max=100_000
    ),
)
SCANNING = replace(EAGER, tables=replace(EAGER.tables, known_count_max=0))


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
            while container._components.tables.compaction.is_due(
                container.container_metadata.by_id[_id(container)]
            ):
                await container._components.tables.compact_due()
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
            await container._components.tables.compact_due()
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
                    await container._components.tables.compact_due()
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
            await container._components.tables.compact_due()
            assert table.info().start_offset > length - 500
            expected = [b"value", b"999", b"997", b"998"]
            assert [each.value for each in await all_entries(table)] == expected
            # All keys gone: nothing of it is kept.
            await table.remove([TableKey(each.key) for each in await all_entries(table)])
            await container._components.tables.compact_due()
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
            await container._components.tables.compact_due()
            assert table.info().start_offset > 0
            assert await value_of(table, b"cold") == b"value"
            assert len(await all_entries(table)) == 4


def _id(container: StreamSegmentContainer) -> SegmentId:
    segment = container.container_metadata.get("t")
    assert segment is not None
    return segment.segment_id
