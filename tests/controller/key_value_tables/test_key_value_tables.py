"""Key-value tables and their segments."""

import asyncio

import pytest

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.controller_records.key_value_table_record import (
    KeyValueTableRecord,
)
from segmentstore.codec.controller_records.scope_records import ScopeItemState
from segmentstore.contracts.errors import InvalidRequestError, SegmentNotFoundError
from segmentstore.contracts.tables import TableEntry
from segmentstore.controller.errors import PreconditionError, ScopeNotEmptyError
from segmentstore.controller.key_value_tables import TABLES_INDEX
from segmentstore.controller.metadata.batch import Batch, RecordKey
from segmentstore.controller.settings import ControllerSettings, KeyValueTableSettings
from tests.controller.crashing_doors import ProcessDiedError
from tests.controller.transactions.feature_cluster import FeatureCluster

Create = api.CreateKeyValueTableStatus.Status
Delete = api.DeleteKVTableStatus.Status
Get = api.KeyValueTableConfigResponse.Status

CALLS_MAX = 200


async def cluster_with_scope() -> FeatureCluster:
    cluster = FeatureCluster(
        settings=ControllerSettings(key_value_tables=KeyValueTableSettings(listed_per_page=2))
    )
    await cluster.start()
    await cluster.scopes.create("s")
    return cluster


def config(
    name: str = "t", *, partitions: int = 2, primary: int = 4, secondary: int = 2
) -> api.KeyValueTableConfig:
    return api.KeyValueTableConfig(
        scope="s",
        kvtName=name,
        partitionCount=partitions,
        primaryKeyLength=primary,
        secondaryKeyLength=secondary,
        rolloverSizeBytes=77,
    )


def info(name: str = "t") -> api.KeyValueTableInfo:
    return api.KeyValueTableInfo(scope="s", kvtName=name)


def partitions(cluster: FeatureCluster) -> list[str]:
    return [name for name in cluster.memory_tables.names() if "_kvtable" in name]


async def listed(cluster: FeatureCluster) -> list[str]:
    names: list[str] = []
    token = ""
    while True:
        page = await cluster.components.key_value_tables.list_in_scope(
            api.KVTablesInScopeRequest(
                scope=api.ScopeInfo(scope="s"), continuationToken=api.ContinuationToken(token=token)
            )
        )
        assert page.HasField("continuationToken")
        if not page.kvtables:
            return names
        assert page.continuationToken.token != token
        token = page.continuationToken.token
        names += [each.kvtName for each in page.kvtables]


async def test_a_table_has_segments_with_keys_of_one_length_and_even_ranges() -> None:
    cluster = await cluster_with_scope()
    tables = cluster.components.key_value_tables
    assert (await tables.create(config())).status == Create.SUCCESS
    assert partitions(cluster) == ["s/t_kvtable/1.#epoch.0", "s/t_kvtable/2.#epoch.0"]
    for name in partitions(cluster):
        async with cluster.memory_tables.open_table(name) as table:
            assert table.key_length == 6
    segments = await tables.current_segments(info())
    assert [
        (each.segmentId.segmentId, each.segmentId.streamInfo.stream, each.minKey, each.maxKey)
        for each in segments.segmentRanges
    ] == [(1, "t", 0.0, 0.5), (2, "t", 0.5, 1.0)]
    described = await tables.configuration(info())
    assert (described.status, described.config) == (Get.SUCCESS, config())


async def test_what_is_not_there_and_what_is_there_already_is_told() -> None:
    cluster = await cluster_with_scope()
    tables = cluster.components.key_value_tables
    assert (await tables.configuration(info())).status == Get.TABLE_NOT_FOUND
    assert (await tables.delete(info())).status == Delete.TABLE_NOT_FOUND
    with pytest.raises(SegmentNotFoundError):
        await tables.current_segments(info())
    assert (await tables.create(config("_t"))).status == Create.INVALID_TABLE_NAME
    foreign = config()
    foreign.scope = "x"
    assert (await tables.create(foreign)).status == Create.SCOPE_NOT_FOUND
    await tables.create(config())
    assert (await tables.create(config())).status == Create.TABLE_EXISTS
    for bad in (config(partitions=0), config(primary=0), config(secondary=9_000)):
        with pytest.raises(InvalidRequestError):
            await tables.create(bad)


async def test_a_segment_that_was_there_before_is_neither_taken_over_nor_deleted() -> None:
    cluster = await cluster_with_scope()
    tables = cluster.components.key_value_tables
    # The state of a reader group, as clients make it; what a recovery found without a record; a stream of bytes.
    others = ["s/t_kvtable/0.#epoch.0", "s/t_kvtable/2.#epoch.0"]
    await cluster.memory_tables.create_table(others[0])
    await cluster.memory_tables.create_table(others[1], key_length=6)
    async with cluster.memory_tables.open_table(others[1]) as table:
        await table.update([TableEntry(b"sixkey", b"of nobody")])
    assert (await tables.create(config())).status == Create.SUCCESS
    mine = ["s/t_kvtable/3.#epoch.0", "s/t_kvtable/4.#epoch.0"]
    assert partitions(cluster) == sorted(others + mine)
    assert (await tables.delete(info())).status == Delete.SUCCESS
    assert partitions(cluster) == others


async def test_a_name_that_is_taken_too_often_is_refused_before_anything_is_written() -> None:
    cluster = await cluster_with_scope()
    for number in range(1, 200, 2):
        await cluster.memory_tables.create_table(f"s/t_kvtable/{number}.#epoch.0")
    with pytest.raises(PreconditionError):
        await cluster.components.key_value_tables.create(config())
    await cluster.restart()
    assert await listed(cluster) == []


async def test_deleting_a_table_of_an_earlier_version_leaves_a_reader_groups_table_alone() -> None:
    """Its partitions count from 0, where clients keep the state of a group of that name."""
    cluster = await cluster_with_scope()
    table = await cluster.metadata.scope_table("s")
    key = RecordKey("table/t", KeyValueTableRecord.decode)
    record = KeyValueTableRecord(
        state=ScopeItemState.ACTIVE,
        partition_count=2,
        primary_key_bytes=4,
        secondary_key_bytes=2,
        rollover_bytes=77,
    )
    batch = Batch()
    batch.put(key, record, await table.read(key))
    batch.list_name(TABLES_INDEX, "t")
    await table.commit(batch)
    await cluster.memory_tables.create_table("s/t_kvtable/0.#epoch.0")
    await cluster.memory_tables.create_table("s/t_kvtable/1.#epoch.0", key_length=6)
    tables = cluster.components.key_value_tables
    assert (await tables.configuration(info())).config == config()
    assert (await tables.delete(info())).status == Delete.SUCCESS
    assert partitions(cluster) == ["s/t_kvtable/0.#epoch.0"]
    assert (await tables.create(config())).status == Create.SUCCESS
    assert partitions(cluster)[1:] == ["s/t_kvtable/2.#epoch.0", "s/t_kvtable/3.#epoch.0"]


async def test_tables_are_listed_page_by_page_until_an_empty_one() -> None:
    cluster = await cluster_with_scope()
    names = [f"t{number}" for number in range(5)]
    for name in names:
        await cluster.components.key_value_tables.create(config(name))
    assert await listed(cluster) == names


@pytest.mark.parametrize("scope_again", [False, True])
async def test_h20_a_table_created_again_has_none_of_its_former_segments(scope_again: bool) -> None:
    cluster = await cluster_with_scope()
    tables = cluster.components.key_value_tables
    used: set[str] = set()
    for _ in range(3):
        assert (await tables.create(config())).status == Create.SUCCESS
        now = partitions(cluster)
        assert len(now) == 2
        assert not used & set(now)
        used |= set(now)
        async with cluster.memory_tables.open_table(now[0]) as table:
            assert table.info().entry_count == 0
            await table.update([TableEntry(b"sixkey", b"value")])
        assert (await tables.delete(info())).status == Delete.SUCCESS
        assert partitions(cluster) == []
        if scope_again:
            await cluster.scopes.delete("s")
            await cluster.scopes.create("s")


async def test_a_scope_with_a_table_is_not_empty() -> None:
    cluster = await cluster_with_scope()
    await cluster.components.key_value_tables.create(config())
    with pytest.raises(ScopeNotEmptyError):
        await cluster.scopes.delete("s")
    await cluster.scopes.delete_with_content("s")
    assert partitions(cluster) == []


@pytest.mark.parametrize("behind", [False, True])
async def test_a_table_survives_death_at_any_call_of_its_creation_and_deletion(
    behind: bool,
) -> None:
    for die_at in range(1, CALLS_MAX):
        cluster = await cluster_with_scope()
        tables = cluster.components.key_value_tables
        cluster.plan.arm(die_at=die_at, behind=behind)
        try:
            await tables.create(config())
            await tables.delete(info())
        except ProcessDiedError:
            await cluster.restart()
            tables = cluster.components.key_value_tables
            there = (await tables.configuration(info())).status == Get.SUCCESS
            created = await tables.create(config())
            assert created.status == (Create.TABLE_EXISTS if there else Create.SUCCESS)
            assert len(partitions(cluster)) == 2
            assert await listed(cluster) == ["t"]
            assert (await tables.delete(info())).status == Delete.SUCCESS
            assert partitions(cluster) == []
            assert await listed(cluster) == []
            continue
        return
    raise AssertionError("the scenario never gets through")


async def test_h63_of_several_creates_at_once_exactly_one_wins() -> None:
    cluster = await cluster_with_scope()
    created = await asyncio.gather(
        *(cluster.components.key_value_tables.create(config()) for _ in range(5))
    )
    assert sorted(each.status for each in created) == [Create.SUCCESS] + 4 * [Create.TABLE_EXISTS]
    assert len(partitions(cluster)) == 2


async def test_tables_that_are_deleted_at_once_do_not_stand_in_each_others_way() -> None:
    """All of them raise the number above which the next ones begin."""
    cluster = await cluster_with_scope()
    tables = cluster.components.key_value_tables
    names = [f"t{number}" for number in range(8)]
    for place, name in enumerate(names):
        await tables.create(config(name, partitions=1 + place))
    answers = await asyncio.gather(*(tables.delete(info(name)) for name in names))
    assert [each.status for each in answers] == 8 * [Delete.SUCCESS]
    assert partitions(cluster) == []
    assert await listed(cluster) == []
