"""Reader groups, their state streams, and subscribers."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import pytest

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.contracts.errors import ContainerStoppedError, InvalidRequestError
from segmentstore.contracts.segments import SegmentProperties
from segmentstore.controller.errors import RetryLaterError, ScopeNotEmptyError
from tests.controller.crashing_doors import CrashPlan, ProcessDiedError
from tests.controller.transactions.feature_cluster import FeatureCluster

Create = api.CreateReaderGroupResponse.Status
Update = api.UpdateReaderGroupResponse.Status
Delete = api.DeleteReaderGroupStatus.Status
Get = api.ReaderGroupConfigResponse.Status
Consumed = api.UpdateSubscriberStatus.Status

CALLS_MAX = 200

Outcome = TypeVar("Outcome")


class HoldingPlan(CrashPlan):
    """One call takes effect when it is let go, whoever waits for it, and those behind it after it: it is a log."""

    def __init__(self, *, held: int) -> None:
        super().__init__()
        self._held = held
        self.let_go = asyncio.Event()

    async def through(self, call: Callable[[], Awaitable[Outcome]]) -> Outcome:
        self.count += 1
        if self.count >= self._held:
            await self.let_go.wait()
        return await call()


async def cluster_with_stream() -> FeatureCluster:
    cluster = FeatureCluster()
    await cluster.start()
    await cluster.scopes.create("s")
    await cluster.create("a", segments=2)
    return cluster


def config(
    group: str = "g", *, retention: int = 0, generation: int = 0, group_id: str = "id-1"
) -> api.ReaderGroupConfiguration:
    return api.ReaderGroupConfiguration(
        scope="s",
        readerGroupName=group,
        groupRefreshTimeMillis=3_000,
        automaticCheckpointIntervalMillis=30_000,
        maxOutstandingCheckpointRequest=3,
        retentionType=retention,
        generation=generation,
        readerGroupId=group_id,
        startingStreamCuts=[
            api.StreamCut(streamInfo=api.StreamInfo(scope="s", stream="a"), cut={0: 0, 1: -1})
        ],
        endingStreamCuts=[api.StreamCut(streamInfo=api.StreamInfo(scope="s", stream="a"), cut={})],
        rolloverSizeBytes=0,
    )


def info(*, group_id: str = "id-1") -> api.ReaderGroupInfo:
    return api.ReaderGroupInfo(scope="s", readerGroup="g", readerGroupId=group_id)


async def test_a_group_is_created_with_its_state_stream_and_its_configuration_is_echoed() -> None:
    cluster = await cluster_with_stream()
    created = await cluster.components.reader_groups.create(config())
    assert created.status == Create.SUCCESS
    assert created.config == config()
    assert await cluster.current("_RGg") == [0]
    read = await cluster.components.reader_groups.configuration(info())
    assert read.status == Get.SUCCESS
    assert read.config == config()


async def test_creating_a_group_again_gives_what_is_stored() -> None:
    cluster = await cluster_with_stream()
    await cluster.components.reader_groups.create(config())
    again = await cluster.components.reader_groups.create(config(retention=2, group_id="id-2"))
    assert again.status == Create.SUCCESS
    assert again.config == config()


async def test_bad_names_and_scopes_are_told() -> None:
    cluster = await cluster_with_stream()
    groups = cluster.components.reader_groups
    assert (await groups.create(config("_RGg"))).status == Create.INVALID_RG_NAME
    foreign = config()
    foreign.scope = "t"
    assert (await groups.create(foreign)).status == Create.SCOPE_NOT_FOUND
    assert (await groups.update(foreign)).status == Update.RG_NOT_FOUND
    assert (await groups.configuration(info())).status == Get.RG_NOT_FOUND
    assert (await groups.delete(info())).status == Delete.RG_NOT_FOUND
    with pytest.raises(InvalidRequestError):
        await groups.create(config(retention=9))


async def test_an_update_names_the_generation_that_it_is_based_on() -> None:
    cluster = await cluster_with_stream()
    groups = cluster.components.reader_groups
    await groups.create(config())
    updated = await groups.update(config(retention=1))
    assert (updated.status, updated.generation) == (Update.SUCCESS, 1)
    assert (await groups.update(config(retention=2))).status == Update.INVALID_CONFIG
    foreign = config(generation=1, group_id="id-2")
    assert (await groups.update(foreign)).status == Update.INVALID_CONFIG
    read = await groups.configuration(info())
    assert (read.config.generation, read.config.retentionType) == (1, 1)


async def test_a_deleted_group_leaves_nothing() -> None:
    cluster = await cluster_with_stream()
    groups = cluster.components.reader_groups
    before = cluster.memory_segments.names()
    await groups.create(config(retention=1))
    assert (await groups.delete(info(group_id="id-2"))).status == Delete.RG_NOT_FOUND
    assert (await groups.delete(info())).status == Delete.SUCCESS
    assert (await groups.configuration(info())).status == Get.RG_NOT_FOUND
    assert cluster.memory_segments.names() == before
    assert not (await subscribers(cluster)).subscribers
    assert (await groups.create(config(group_id="id-2"))).config.readerGroupId == "id-2"
    assert await cluster.current("_RGg") == [1]
    await cluster.check()


async def test_a_scope_with_a_group_is_not_empty() -> None:
    cluster = FeatureCluster()
    await cluster.start()
    await cluster.scopes.create("s")
    await cluster.create("a", segments=2)
    await cluster.components.reader_groups.create(config())
    await cluster.streams.seal("s", "a")
    await cluster.streams.delete("s", "a")
    with pytest.raises(ScopeNotEmptyError):
        await cluster.scopes.delete("s")
    await cluster.scopes.delete_with_content("s")
    assert cluster.memory_segments.names() == []


async def subscribers(cluster: FeatureCluster) -> api.SubscribersResponse:
    return await cluster.components.subscribers.list_of(cluster.info("a"))


async def fill(cluster: FeatureCluster) -> None:
    for segment_id in (0, 1):
        await cluster.append("a", segment_id, 30)


async def consume(
    cluster: FeatureCluster,
    cut: dict[int, int],
    *,
    generation: int = 0,
    group_id: str = "id-1",
    subscriber: str = "s/g",
    stream: str = "a",
) -> api.UpdateSubscriberStatus.Status:
    answer = await cluster.components.subscribers.update_cut(
        api.SubscriberStreamCut(
            subscriber=subscriber,
            generation=generation,
            readerGroupId=group_id,
            streamCut=api.StreamCut(streamInfo=cluster.info(stream), cut=cut),
        )
    )
    return answer.status


async def test_a_group_that_holds_back_retention_is_a_subscriber() -> None:
    cluster = await cluster_with_stream()
    groups = cluster.components.reader_groups
    await groups.create(config())
    assert not (await subscribers(cluster)).subscribers
    await groups.update(config(retention=2))
    assert list((await subscribers(cluster)).subscribers) == ["s/g"]
    await groups.update(config(retention=0, generation=1))
    assert not (await subscribers(cluster)).subscribers
    missing = await cluster.components.subscribers.list_of(cluster.info("b"))
    assert missing.status == api.SubscribersResponse.Status.STREAM_NOT_FOUND


async def test_a_stream_that_is_created_again_is_held_back_once_the_group_is_updated() -> None:
    cluster = await cluster_with_stream()
    groups = cluster.components.reader_groups
    await groups.create(config(retention=2))
    await cluster.streams.seal("s", "a")
    await cluster.streams.delete("s", "a")
    await cluster.create("a", segments=2)
    # The group is there already: this changes nothing.
    assert (await groups.create(config(retention=2))).status == Create.SUCCESS
    assert not (await subscribers(cluster)).subscribers
    assert (await groups.update(config(retention=2))).status == Update.SUCCESS
    assert list((await subscribers(cluster)).subscribers) == ["s/g"]


async def test_a_group_that_subscribes_again_is_not_lost_to_a_removal_that_was_on_its_way() -> None:
    cluster = await cluster_with_stream()
    groups = cluster.components.reader_groups
    await groups.create(config(retention=2))
    # Behind the record of the group, which says that it does not subscribe: the name goes out of the index.
    plan = cluster.tables._plan = HoldingPlan(held=2)
    leaving = asyncio.create_task(groups.update(config(retention=0)))
    for _ in range(100):
        await asyncio.sleep(0)
    assert plan.count == 2
    leaving.cancel()
    with suppress(asyncio.CancelledError):
        await leaving
    # Its caller is gone; the one that comes next finds the name where it wants it.
    with suppress(RetryLaterError):
        async with asyncio.timeout(60):
            again = asyncio.create_task(groups.update(config(retention=2, generation=1)))
            for _ in range(100):
                await asyncio.sleep(0)
            plan.let_go.set()
            await again
    read = (await groups.configuration(info())).config
    if read.generation == 1:
        assert (await groups.update(config(retention=2, generation=1))).status == Update.SUCCESS
    assert list((await subscribers(cluster)).subscribers) == ["s/g"]


async def test_what_a_subscriber_has_consumed_is_checked_before_it_counts() -> None:
    cluster = await cluster_with_stream()
    await cluster.components.reader_groups.create(config(retention=1))
    await fill(cluster)
    assert await consume(cluster, {0: 10, 1: 20}) == Consumed.SUCCESS
    assert await consume(cluster, {0: 5, 1: 20}) == Consumed.STREAM_CUT_NOT_VALID
    assert await consume(cluster, {0: 10}) == Consumed.STREAM_CUT_NOT_VALID
    assert await consume(cluster, {7: 10}) == Consumed.STREAM_CUT_NOT_VALID
    assert await consume(cluster, {0: 11, 1: 20}, generation=1) == Consumed.GENERATION_MISMATCH
    assert await consume(cluster, {0: 11, 1: 20}, group_id="x") == Consumed.SUBSCRIBER_NOT_FOUND
    assert await consume(cluster, {0: 9, 1: 9}, subscriber="s/h") == Consumed.SUBSCRIBER_NOT_FOUND
    assert await consume(cluster, {0: 9}, stream="b") == Consumed.STREAM_NOT_FOUND
    assert await consume(cluster, {0: 10, 1: 21}) == Consumed.SUCCESS


async def test_a_cut_behind_the_end_of_a_segment_is_refused_and_the_right_one_behind_it_is_taken() -> (
    None
):
    cluster = await cluster_with_stream()
    await cluster.components.reader_groups.create(config(retention=1))
    assert await consume(cluster, {0: 1 << 40, 1: 0}) == Consumed.STREAM_CUT_NOT_VALID
    await fill(cluster)
    assert await consume(cluster, {0: 30, 1: 31}) == Consumed.STREAM_CUT_NOT_VALID
    assert await consume(cluster, {0: 30, 1: 0}) == Consumed.SUCCESS
    # What was appended meanwhile counts, and of a segment that retention has deleted all was read.
    await cluster.append("a", 0, 1)
    assert await consume(cluster, {0: 31, 1: 30}) == Consumed.SUCCESS
    history = await cluster.streams.operations.history("s", "a")
    await cluster.memory_segments.delete(history.segment_name(0))
    assert await consume(cluster, {0: 32, 1: 30}) == Consumed.SUCCESS


async def test_a_cut_whose_segment_cannot_be_asked_about_is_no_wrong_cut() -> None:
    cluster = await cluster_with_stream()
    await cluster.components.reader_groups.create(config(retention=1))
    await fill(cluster)
    assert await consume(cluster, {0: 10, 1: 20}) == Consumed.SUCCESS

    async def down(name: str) -> SegmentProperties:
        raise ContainerStoppedError(f"the container of {name} is elsewhere")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster.memory_segments, "info", down)
        with pytest.raises(ContainerStoppedError):
            await consume(cluster, {0: 10, 1: 21})
        assert await consume(cluster, {0: 10, 1: 20}) == Consumed.SUCCESS
    assert await consume(cluster, {0: 10, 1: 21}) == Consumed.SUCCESS


async def test_the_slowest_subscriber_decides_for_every_key() -> None:
    cluster = await cluster_with_stream()
    groups = cluster.components.reader_groups
    history = await cluster.streams.operations.history("s", "a")
    assert await cluster.components.subscribers.lowest_cut(history) is None
    await groups.create(config("g", retention=1))
    await groups.create(config("h", retention=1))
    await fill(cluster)
    await consume(cluster, {0: 10, 1: 20})
    lowest = await cluster.components.subscribers.lowest_cut(history)
    assert lowest is not None
    # The other one has said nothing: it stands where its configuration starts.
    assert {each.segment_id: at for each, at in lowest.items()} == {0: 0, 1: 0}
    await consume(cluster, {0: 15, 1: 5}, subscriber="s/h")
    lowest = await cluster.components.subscribers.lowest_cut(history)
    assert lowest is not None
    assert {each.segment_id: at for each, at in lowest.items()} == {0: 10, 1: 5}


@pytest.mark.parametrize("behind", [False, True])
async def test_a_group_survives_death_at_any_call_of_its_creation_and_deletion(
    behind: bool,
) -> None:
    for die_at in range(1, CALLS_MAX):
        cluster = await cluster_with_stream()
        names = cluster.memory_segments.names()
        cluster.plan.arm(die_at=die_at, behind=behind)
        try:
            await cluster.components.reader_groups.create(config(retention=1))
            await cluster.components.reader_groups.delete(info())
        except ProcessDiedError:
            await cluster.restart()
            created = await cluster.components.reader_groups.create(config(retention=1))
            assert created.config == config(retention=1)
            assert len(await cluster.current("_RGg")) == 1
            assert list((await subscribers(cluster)).subscribers) == ["s/g"]
            await cluster.check()
            assert (await cluster.components.reader_groups.delete(info())).status == Delete.SUCCESS
            assert cluster.memory_segments.names() == names
            continue
        return
    raise AssertionError("the scenario never gets through")


async def test_h63_of_several_creates_at_once_all_get_the_configuration_of_the_first() -> None:
    cluster = await cluster_with_stream()
    created = await asyncio.gather(
        *(
            cluster.components.reader_groups.create(config(group_id=f"id-{number}"))
            for number in range(5)
        )
    )
    assert {each.config.readerGroupId for each in created} == {"id-0"}
    assert await cluster.current("_RGg") == [0]
    await cluster.check()


@pytest.mark.parametrize(
    "cut",
    [{7: 0}, {1 << 32: 0}, {0: 5}, {0: 0, 1: 1}],
    ids=["number", "epoch", "half", "behind the end"],
)
@pytest.mark.parametrize("ends", [False, True])
async def test_a_cut_that_is_none_of_its_stream_is_refused_before_anything_is_written(
    cut: dict[int, int], *, ends: bool
) -> None:
    cluster = await cluster_with_stream()
    groups = cluster.components.reader_groups
    bad = config(retention=1)
    cuts = bad.endingStreamCuts if ends else bad.startingStreamCuts
    cuts[0].cut.clear()
    cuts[0].cut.update(cut)
    with pytest.raises(InvalidRequestError):
        await groups.create(bad)
    assert (await groups.configuration(info())).status == Get.RG_NOT_FOUND
    assert (await groups.create(config(retention=1))).status == Create.SUCCESS
    with pytest.raises(InvalidRequestError):
        await groups.update(bad)
    assert (await groups.configuration(info())).config.generation == 0


async def test_a_group_with_the_cut_of_a_former_stream_holds_back_everything() -> None:
    cluster = await cluster_with_stream()
    groups = cluster.components.reader_groups
    await groups.create(config(retention=2))
    await cluster.streams.seal("s", "a")
    await cluster.streams.delete("s", "a")
    await cluster.create("a", segments=2)
    await groups.update(config(retention=2))
    history = await cluster.streams.operations.history("s", "a")
    lowest = await cluster.components.subscribers.lowest_cut(history)
    assert lowest is not None
    assert {each.segment_id: at for each, at in lowest.items()} == {2: 0, 3: 0}


async def test_a_cut_of_an_earlier_stream_of_the_name_is_refused() -> None:
    cluster = await cluster_with_stream()
    groups = cluster.components.reader_groups
    await cluster.streams.seal("s", "a")
    await cluster.streams.delete("s", "a")
    with pytest.raises(InvalidRequestError):
        await groups.create(config())
    await cluster.create("a", segments=2)
    with pytest.raises(InvalidRequestError):
        await groups.create(config())
    assert (await groups.configuration(info())).status == Get.RG_NOT_FOUND
