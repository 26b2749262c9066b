"""Key-value tables and their segments."""

import asyncio

import pytest

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.contracts.errors import InvalidRequestError, NotATableError, SegmentNotFoundError
from segmentstore.contracts.tables import TableEntry
from segmentstore.controller.errors import ScopeNotEmptyError
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
    assert partitions(cluster) == ["s/t_kvtable/0.#epoch.0", "s/t_kvtable/1.#epoch.0"]
    for name in partitions(cluster):
        async with cluster.memory_tables.open_table(name) as table:
            assert table.key_length == 6
    segments = await tables.current_segments(info())
    assert [
        (each.segmentId.segmentId, each.segmentId.streamInfo.stream, each.minKey, each.maxKey)
        for each in segments.segmentRanges
    ] == [(0, "t", 0.0, 0.5), (1, "t", 0.5, 1.0)]
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


async def test_a_segment_of_that_name_with_other_keys_is_not_taken_over() -> None:
    cluster = await cluster_with_scope()
    await cluster.memory_tables.create_table("s/t_kvtable/0.#epoch.0")
    with pytest.raises(NotATableError):
        await cluster.components.key_value_tables.create(config())
    assert await listed(cluster) == []


async def test_tables_are_listed_page_by_page_until_an_empty_one() -> None:
    cluster = await cluster_with_scope()
    names = [f"t{number}" for number in range(5)]
    for name in names:
        await cluster.components.key_value_tables.create(config(name))
    assert await listed(cluster) == names


async def test_a_table_created_again_is_empty() -> None:
    cluster = await cluster_with_scope()
    tables = cluster.components.key_value_tables
    await tables.create(config())
    async with cluster.memory_tables.open_table("s/t_kvtable/0.#epoch.0") as table:
        await table.update([TableEntry(b"sixkey", b"value")])
    assert (await tables.delete(info())).status == Delete.SUCCESS
    assert partitions(cluster) == []
    await tables.create(config())
    async with cluster.memory_tables.open_table("s/t_kvtable/0.#epoch.0") as table:
        assert table.info().entry_count == 0


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
