"""Records and indexes of one table: batches are whole or not at all, and listings lose nothing."""

import asyncio
from collections.abc import Sequence
from random import Random

import pytest

from segmentstore.codec.controller_records.scope_records import IndexPage
from segmentstore.contracts.tables import TableKey
from segmentstore.controller.errors import (
    IndexClosedError,
    IndexNotEmptyError,
    MetadataConflictError,
)
from segmentstore.controller.metadata.batch import Batch, RecordKey, Versioned
from segmentstore.controller.metadata.metadata_table import LEFT_AT_ONCE_MAX, MetadataTable
from segmentstore.controller.metadata.name_index import NAMES_PER_PAGE_MAX, page_key, root_key
from tests.controller.far_tables import FarTable, FarTables, turns
from tests.reference.memory_tables import MemoryTables

NOTE = RecordKey("note", IndexPage.decode)
OTHER = RecordKey("other", IndexPage.decode)


async def table_of(tables: MemoryTables) -> MetadataTable:
    await tables.create_table("records")
    return MetadataTable(tables=tables, name="records")


def page(*names: str) -> IndexPage:
    return IndexPage(names)


async def write(table: MetadataTable, *names: str, record: RecordKey[IndexPage] = NOTE) -> None:
    batch = Batch()
    batch.put(record, page(*names), await table.read(record))
    await table.commit(batch)


async def all_names(table: MetadataTable, index: str, count: int) -> list[str]:
    names: list[str] = []
    while True:
        found = await table.names(index, after=names[-1] if names else "", count=count)
        names += found.names
        if not found.more:
            return names


async def test_a_record_reads_back_with_the_version_that_replaces_it() -> None:
    table = await table_of(MemoryTables())
    await write(table, "a")
    assert (await table.read(NOTE)).record == page("a")
    await write(table, "b")
    assert (await table.read(NOTE)).record == page("b")


async def test_a_batch_that_meets_another_version_changes_nothing() -> None:
    table = await table_of(MemoryTables())
    before = await table.read(NOTE)
    await write(table, "a")
    batch = Batch()
    batch.put(OTHER, page("x"), Versioned())
    batch.put(NOTE, page("b"), before)
    batch.list_name("things", "x")
    with pytest.raises(MetadataConflictError):
        await table.commit(batch)
    assert (await table.read(OTHER)).record is None
    assert (await table.names("things", count=10)).names == []


async def test_a_removed_record_is_absent_and_leaves_no_entry() -> None:
    tables = MemoryTables()
    table = await table_of(tables)
    await write(table, "a")
    batch = Batch()
    batch.remove(NOTE, await table.read(NOTE))
    await table.commit(batch)
    assert (await table.read(NOTE)).record is None
    async with tables.open_table("records") as raw:
        assert raw.info().entry_count == 0
    await write(table, "again")
    assert (await table.read(NOTE)).record == page("again")


async def test_names_are_listed_in_order_through_many_pages() -> None:
    table = await table_of(MemoryTables())
    random = Random(1)
    expected: set[str] = set()
    for _ in range(60):
        batch = Batch()
        for _ in range(random.randint(1, 40)):
            name = f"name-{random.randint(0, 999):03d}"
            batch.list_name("things", name)
            expected.add(name)
        await table.commit(batch)
    assert await all_names(table, "things", 7) == sorted(expected)
    root = (await table.read(root_key("things"))).record
    assert root is not None
    assert len(root.pages) > 2
    root.check()


async def test_random_changes_of_an_index_leave_exactly_the_names_that_stay() -> None:
    tables = MemoryTables()
    table = await table_of(tables)
    random = Random(7)
    expected: set[str] = set()
    for round_number in range(100):
        batch = Batch()
        growing = round_number % 50 < 30
        chosen = {f"{random.randint(0, 1500):04d}" for _ in range(30)}
        for name in sorted(chosen):
            if growing or (name not in expected and random.random() < 0.1):
                batch.list_name("things", name)
                expected.add(name)
            else:
                batch.unlist_name("things", name)
                expected.discard(name)
        await table.commit(batch)
        assert await all_names(table, "things", 50) == sorted(expected)
        root = (await table.read(root_key("things"))).record
        assert root is not None
        root.check()
        for _, number in root.pages:
            held = (await table.read(page_key("things", number))).record
            assert held is not None
            held.check()
    for start in range(0, 1501, 100):
        batch = Batch()
        for number in range(start, start + 100):
            batch.unlist_name("things", f"{number:04d}")
        await table.commit(batch)
    assert await all_names(table, "things", 10) == []
    async with tables.open_table("records") as raw:
        assert raw.info().entry_count == 1


async def test_an_index_with_names_cannot_be_closed_and_a_closed_one_takes_none() -> None:
    table = await table_of(MemoryTables())
    adding = Batch()
    adding.list_name("things", "a")
    await table.commit(adding)
    closing = Batch()
    closing.close_index("things")
    with pytest.raises(IndexNotEmptyError):
        await table.commit(closing)
    taking = Batch()
    taking.unlist_name("things", "a")
    await table.commit(taking)
    await table.commit(closing)
    await table.commit(closing)
    with pytest.raises(IndexClosedError):
        await table.commit(adding)


async def test_a_batch_that_needs_an_empty_index_does_not_pass_the_first_name() -> None:
    table = await table_of(MemoryTables())
    needing = Batch()
    needing.require_empty("things")
    needing.list_name("kinds", "k")
    async with asyncio.TaskGroup() as group:
        group.create_task(table.commit(naming("a")))
        needed = group.create_task(_refused_as_not_empty(table, needing))
    assert needed.result() is (not (await table.names("kinds", count=1)).names)
    assert await _refused_as_not_empty(table, needing)
    taking = Batch()
    taking.unlist_name("things", "a")
    await table.commit(taking)
    assert not await _refused_as_not_empty(table, needing)
    await table.commit(naming("a"))
    assert await all_names(table, "kinds", 9) == ["k"]


async def _refused_as_not_empty(table: MetadataTable, batch: Batch) -> bool:
    try:
        await table.commit(batch)
    except IndexNotEmptyError:
        return True
    return False


async def test_two_controllers_that_write_one_index_both_get_their_names_in() -> None:
    tables = MemoryTables()
    first = await table_of(tables)
    second = MetadataTable(tables=tables, name="records")
    for number in range(50):
        for table, prefix in ((first, "a"), (second, "b")):
            batch = Batch()
            batch.list_name("things", f"{prefix}{number}")
            await table.commit(batch)
    assert len(await all_names(first, "things", 9)) == 100


async def full_page(table: MetadataTable) -> list[str]:
    """The names of an index of one page, which the next name splits."""
    names = [f"name-{number:03d}" for number in range(NAMES_PER_PAGE_MAX)]
    batch = Batch()
    for name in names:
        batch.list_name("things", name)
    await table.commit(batch)
    return names


def naming(name: str) -> Batch:
    batch = Batch()
    batch.list_name("things", name)
    return batch


@pytest.mark.parametrize("seed", range(24))
async def test_a_listing_loses_no_name_while_a_page_is_split(seed: int) -> None:
    random = Random(seed)
    table = await table_of(FarTables(random))
    names = await full_page(table)
    async with asyncio.TaskGroup() as group:
        group.create_task(table.commit(naming("name-000-a")))
        await turns(random.randint(0, 40))
        found = await all_names(table, "things", 1000)
    assert set(names) <= set(found)


@pytest.mark.parametrize("seed", range(24))
async def test_a_name_is_added_to_the_page_that_holds_it_while_a_split_is_on_its_way(
    seed: int,
) -> None:
    # The caller of the split has left, so nothing makes the next batch wait for it.
    random = Random(seed)
    table = await table_of(FarTables(random))
    names = await full_page(table)
    splitting = asyncio.ensure_future(table.commit(naming("name-000-a")))
    await turns(random.randint(16, 30))
    splitting.cancel()
    await asyncio.wait([splitting])
    await table.commit(naming("name-999"))
    await turns(30)
    found = await all_names(table, "things", 1000)
    assert {*names, "name-999"} <= set(found)
    root = (await table.read(root_key("things"))).record
    assert root is not None
    for place, (first, number) in enumerate(root.pages):
        held = (await table.read(page_key("things", number))).record
        assert held is not None
        assert first <= held.names[0]
        if place + 1 < len(root.pages):
            assert held.names[-1] < root.pages[place + 1][0]


async def left_removing(table: MetadataTable, record: RecordKey[IndexPage] = NOTE) -> None:
    """A caller removes a record, leaves while its batch is on its way, and the batch takes place."""
    batch = Batch()
    batch.remove(record, await table.read(record))
    removing = asyncio.ensure_future(table.commit(batch))
    await turns(3)
    removing.cancel()
    await asyncio.wait([removing])
    await turns(40)
    table.require_settled()
    assert (await table.read(record)).record is None


async def keys_in(tables: MemoryTables) -> list[bytes]:
    async with tables.open_table("records") as table:
        return [each.key for each in (await table.read_keys(count=100)).keys]


async def test_what_a_caller_removed_that_left_meanwhile_is_out_of_the_table_behind_the_next_batch() -> (
    None
):
    """Else each call of that kind left records for ever whose names do not come again."""
    tables = FarTables(Random(1))
    table = await table_of(tables)
    await write(table, "a")
    await left_removing(table)
    await write(table, "b", record=OTHER)
    assert await keys_in(tables) == [b"other"]


async def test_no_caller_waits_for_all_that_a_thousand_others_left() -> None:
    tables = FarTables(Random(1))
    table = await table_of(tables)
    records = [RecordKey(f"{number:02}", IndexPage.decode) for number in range(20)]
    for record in records:
        await write(table, "x", record=record)
    for record in records:
        await left_removing(table, record)
    left = []
    for value in ("a", "b", "c"):
        await write(table, value)
        left.append(len(await keys_in(tables)) - 1)
    assert left == [20 - LEFT_AT_ONCE_MAX, 20 - 2 * LEFT_AT_ONCE_MAX, 0]


async def test_a_caller_that_leaves_while_it_takes_out_for_others_leaves_the_rest_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove = FarTable.remove

    def remove_later(table: FarTable, keys: Sequence[TableKey]) -> "asyncio.Future[None]":
        async def later() -> None:
            await turns(10)
            await remove(table, keys)

        return asyncio.ensure_future(later())

    monkeypatch.setattr(FarTable, "remove", remove_later)
    tables = FarTables(Random(1))
    table = await table_of(tables)
    records = [RecordKey(name, IndexPage.decode) for name in ("a", "b", "c")]
    for record in records:
        await write(table, "x", record=record)
    for record in records:
        await left_removing(table, record)
    committing = asyncio.ensure_future(write(table, "x"))
    while b"a" in await keys_in(tables):
        await asyncio.sleep(0)
    committing.cancel()
    await asyncio.wait([committing])
    assert committing.cancelled()
    await write(table, "y")
    assert await keys_in(tables) == [b"note"]


async def test_what_was_written_again_behind_such_a_removal_stays() -> None:
    tables = FarTables(Random(1))
    table = await table_of(tables)
    await write(table, "a")
    await left_removing(table)
    await write(table, "b")
    await write(table, "c")
    assert (await table.read(NOTE)).record == page("c")
    assert await keys_in(tables) == [b"note"]
