from contextlib import aclosing

import pytest

from segmentstore.client import Store, Table, Update
from segmentstore.client.errors import (
    AlreadyExistsError,
    NotFoundError,
    OutcomeUnknownError,
    TableConditionError,
)
from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.refusals import WrongHost
from segmentstore.codec.wire_protocol.tables import UpdateTableEntries
from segmentstore.contracts.errors import InvalidRequestError, SegmentNotFoundError
from segmentstore.contracts.tables import NOT_EXISTS
from tests.client.fake_store import FakeStore


@pytest.fixture
async def table(store: Store) -> Table:
    table = store.table("s/prices")
    await table.create(key_length=4)
    return table


async def test_what_is_put_is_got_with_its_version(table: Table) -> None:
    version = await table.put(b"aaaa", b"1")
    entry = await table.get(b"aaaa")
    assert entry is not None
    assert (entry.value, entry.version) == (b"1", version)
    assert await table.put(b"aaaa", b"2") > version
    assert await table.get(b"bbbb") is None


async def test_insert_and_replace_are_conditional(table: Table) -> None:
    version = await table.insert(b"aaaa", b"1")
    with pytest.raises(TableConditionError):
        await table.insert(b"aaaa", b"2")
    newer = await table.replace(b"aaaa", b"2", version=version)
    with pytest.raises(TableConditionError):
        await table.replace(b"aaaa", b"3", version=version)
    with pytest.raises(TableConditionError):
        await table.replace(b"none", b"3", version=newer)


async def test_removal_may_be_conditional(table: Table) -> None:
    version = await table.put(b"aaaa", b"1")
    with pytest.raises(TableConditionError):
        await table.remove(b"aaaa", version=version + 1)
    await table.remove(b"aaaa", version=version)
    await table.remove(b"aaaa")
    assert await table.get(b"aaaa") is None


async def test_h64_a_batch_is_done_whole_or_not_at_all(table: Table) -> None:
    await table.put(b"aaaa", b"1")
    with pytest.raises(TableConditionError):
        await table.update([Update(b"bbbb", b"2"), Update(b"aaaa", b"2", NOT_EXISTS)])
    assert await table.get(b"bbbb") is None
    await table.update([Update(b"bbbb", b"2"), Update(b"cccc", b"3", NOT_EXISTS)])
    entries = await table.get_all([b"cccc", b"none", b"aaaa"])
    assert [entry.value if entry else None for entry in entries] == [b"3", None, b"1"]


async def test_entries_come_in_key_order_over_pages(store: Store) -> None:
    table = store.table("s/long")
    await table.create(key_length=2)
    for number in range(1200):
        await table.put(number.to_bytes(2, "big"), b"%d" % number)
    async with aclosing(table.entries()) as entries:
        assert [int(entry.value) async for entry in entries] == list(range(1200))
    async with aclosing(table.entries(b"\0\5", b"\0\7")) as entries:
        assert [int(entry.value) async for entry in entries] == [5, 6, 7]


async def test_the_last_possible_key_ends_an_iteration(store: Store) -> None:
    table = store.table("s/edge")
    await table.create(key_length=1)
    await table.put(b"\xff", b"last")
    async with aclosing(table.entries()) as entries:
        assert [entry.key async for entry in entries] == [b"\xff"]


async def test_keys_with_one_primary_part_are_one_batch_in_any_partition(store: Store) -> None:
    table = store.table("s/wide")
    await table.create(key_length=4, secondary_key_length=2, partitions=8)
    for number in range(20):
        primary = b"%04d" % number
        await table.update([Update(primary + b"aa", b"1"), Update(primary + b"bb", b"2")])
    with pytest.raises(InvalidRequestError):
        await table.update([Update(b"%04daa" % number, b"1") for number in range(20)])
    found = await table.get_all([b"%04dbb" % number for number in range(20)])
    assert [entry.value for entry in found if entry] == [b"2"] * 20
    async with aclosing(table.entries()) as entries:
        assert len([entry async for entry in entries]) == 40


async def test_a_key_of_another_length_is_refused(table: Table) -> None:
    with pytest.raises(InvalidRequestError):
        await table.put(b"short"[:3], b"1")


async def test_tables_are_listed_and_deleted(store: Store, table: Table) -> None:
    with pytest.raises(AlreadyExistsError):
        await table.create(key_length=1)
    assert await store.scope("s").tables() == ["prices"]
    await table.delete()
    assert await store.scope("s").tables() == []
    with pytest.raises(NotFoundError):
        await table.put(b"aaaa", b"1")


async def test_a_conditional_update_that_landed_is_not_reported_as_a_conflict(
    table: Table, fake_store: FakeStore
) -> None:
    """The container stores it and stops; the next one meets it."""
    await table.config()

    def stopping(command: Command) -> Command | str | None:
        if not isinstance(command, UpdateTableEntries) or stopped:
            return None
        stopped.append(command)
        return "drop after"

    stopped: list[Command] = []
    fake_store.on_request = stopping
    with pytest.raises(OutcomeUnknownError):
        await table.insert(b"aaaa", b"mine")
    assert len(stopped) == 1
    entry = await table.get(b"aaaa")
    assert entry is not None
    assert entry.value == b"mine"


async def test_a_conditional_update_at_a_wrong_host_is_made_where_the_table_is(
    table: Table, fake_store: FakeStore
) -> None:
    await table.config()
    refused: list[Command] = []

    def elsewhere(command: Command) -> Command | None:
        if not isinstance(command, UpdateTableEntries) or refused:
            return None
        refused.append(command)
        return WrongHost(command.request_id, command.segment, "")

    fake_store.on_request = elsewhere
    await table.insert(b"aaaa", b"mine")
    assert len(refused) == 1
    entry = await table.get(b"aaaa")
    assert entry is not None
    assert entry.value == b"mine"


async def test_only_unconditional_updates_are_repeated(table: Table, fake_store: FakeStore) -> None:
    await table.config()
    whats = iter(["drop after", None, "drop after"])

    def breaking(command: Command) -> str | None:
        return next(whats) if isinstance(command, UpdateTableEntries) else None

    fake_store.on_request = breaking
    await table.put(b"aaaa", b"1")
    with pytest.raises(OutcomeUnknownError):
        await table.insert(b"bbbb", b"1")


async def test_a_version_of_a_deleted_table_changes_nothing_in_one_created_again(
    store: Store, table: Table
) -> None:
    version = await table.put(b"aaaa", b"old")
    theirs = store.table("s/prices")
    await theirs.delete()
    await theirs.create(key_length=4)
    newer = await theirs.insert(b"aaaa", b"new")
    assert newer & ((1 << 64) - 1) == version, "not the case that this is about"
    with pytest.raises(SegmentNotFoundError):
        await table.replace(b"aaaa", b"based on old", version=version)
    # Also when asked again, and of a table that was looked up anew.
    for asked in (table, table, store.table("s/prices")):
        with pytest.raises(TableConditionError):
            await asked.replace(b"aaaa", b"based on old", version=version)
        with pytest.raises(TableConditionError):
            await asked.remove(b"aaaa", version=version)
    entry = await table.get(b"aaaa")
    assert entry is not None
    assert (entry.value, entry.version) == (b"new", newer)
    async with aclosing(table.entries()) as entries:
        assert [each.version async for each in entries] == [newer]
    newest = await table.replace(b"aaaa", b"newest", version=newer)
    await table.remove(b"aaaa", version=newest)


async def test_a_table_created_again_in_another_shape_is_looked_up_anew(store: Store) -> None:
    mine, theirs = store.table("s/shape"), store.table("s/shape")
    await mine.create(key_length=2, partitions=1)
    await mine.put(b"x0", b"0")
    await theirs.delete()
    await theirs.create(key_length=2, partitions=4)
    keys = [b"%02d" % number for number in range(20)]
    for key in keys:
        await mine.put(key, b"1")
    await mine.insert(b"zz", b"1")
    await mine.remove(b"zz")
    async with aclosing(theirs.entries()) as entries:
        assert sorted([entry.key async for entry in entries]) == keys
    await theirs.delete()
    with pytest.raises(NotFoundError):
        await mine.get(b"00")
