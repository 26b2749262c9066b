"""Scopes: there once, gone when empty, and never the same table twice."""

import asyncio

import pytest

from segmentstore.codec.controller_records import record_keys
from segmentstore.codec.controller_records.scope_records import ScopeRecord, ScopeState
from segmentstore.contracts.tables import TableEntry
from segmentstore.controller.errors import (
    RetryLaterError,
    ScopeExistsError,
    ScopeNotEmptyError,
    ScopeNotFoundError,
)
from segmentstore.controller.metadata.batch import Batch
from tests.controller.cluster import Cluster


async def started() -> Cluster:
    cluster = Cluster()
    await cluster.start()
    await cluster.scopes.create("s")
    return cluster


async def test_a_scope_is_created_once() -> None:
    cluster = await started()
    with pytest.raises(ScopeExistsError):
        await cluster.scopes.create("s")
    assert (await cluster.scopes.names(after="", count=10)).names == ["s"]


async def test_h63_of_concurrent_creates_of_a_scope_exactly_one_wins() -> None:
    cluster = await started()
    outcomes = await asyncio.gather(
        *(cluster.scopes.create("t") for _ in range(8)), return_exceptions=True
    )
    assert sum(isinstance(each, ScopeExistsError) for each in outcomes) == 7
    await cluster.check()


async def test_a_scope_with_a_stream_stays() -> None:
    cluster = await started()
    await cluster.create("a")
    with pytest.raises(ScopeNotEmptyError):
        await cluster.scopes.delete("s")
    assert await cluster.current("a") == [0]


async def test_a_scope_that_is_deleted_takes_no_stream_any_more() -> None:
    cluster = await started()
    created, deleted = await asyncio.gather(
        cluster.create("a"), cluster.scopes.delete("s"), return_exceptions=True
    )
    # Whoever came first: never a stream without a scope, nor both refused.
    if deleted is None:
        assert isinstance(created, ScopeNotFoundError | RetryLaterError)
        assert cluster.memory_segments.names() == []
    else:
        assert isinstance(deleted, ScopeNotEmptyError)
        assert created is None
    await cluster.check()


async def test_a_name_in_any_registered_index_keeps_the_scope() -> None:
    cluster = await started()
    emptied: list[str] = []

    async def empty(scope: str) -> None:
        emptied.append(scope)
        table = await cluster.metadata.scope_table(scope)
        batch = Batch()
        batch.unlist_name("things", "x")
        await table.commit(batch)

    cluster.scopes.register("things", empty)
    table = await cluster.metadata.scope_table("s")
    batch = Batch()
    batch.list_name("things", "x")
    await table.commit(batch)
    with pytest.raises(ScopeNotEmptyError):
        await cluster.scopes.delete("s")
    await cluster.scopes.delete_with_content("s")
    assert emptied == ["s"]
    assert not await cluster.scopes.exists("s")


async def test_a_scope_created_again_begins_with_a_new_table() -> None:
    cluster = await started()
    await cluster.scopes.delete("s")
    with pytest.raises(ScopeNotFoundError):
        await cluster.scopes.delete("s")
    await cluster.scopes.create("s")
    assert cluster.memory_tables.names() == ["_system/_tables/s/2", "_system/_tables/scopes"]
    await cluster.restart()
    assert await cluster.scopes.exists("s")


async def test_what_deleted_scopes_leave_does_not_grow_with_their_count() -> None:
    """Their names may never come again, as those of scopes that are made for one test each."""
    cluster = await started()
    for number in range(300):
        await cluster.scopes.create(f"s{number}")
        await cluster.scopes.delete(f"s{number}")
    async with cluster.memory_tables.open_table(record_keys.SCOPES_TABLE) as table:
        page = await table.read_keys(count=1000)
    # 256 for the hashes of names, the one that is there, and the indexes.
    assert len(page.keys) <= 262


async def test_a_scope_that_an_earlier_version_deleted_gets_neither_its_table_nor_its_numbers() -> (
    None
):
    cluster = await started()
    deleted = ScopeRecord(ScopeState.DELETED, 4, 7, 1_700_000_000_000)
    async with cluster.memory_tables.open_table(record_keys.SCOPES_TABLE) as table:
        await table.update([TableEntry(b"scope/old", deleted.encode())])
    with pytest.raises(ScopeNotFoundError):
        await cluster.scopes.delete("old")
    await cluster.scopes.create("old")
    assert "_system/_tables/old/5" in cluster.memory_tables.names()
    assert await cluster.metadata.first_segment_number("old") == 7
    await cluster.scopes.delete("old")
    await cluster.scopes.create("old")
    assert "_system/_tables/old/6" in cluster.memory_tables.names()
    assert await cluster.metadata.first_segment_number("old") == 7
