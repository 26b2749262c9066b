"""A staged commit goes on from wherever the controller died, and is done once however often it is called.

Method: as in test_transaction_crashes: the same scenario again and again, dying one call through the doors later each
time; another controller starts over what is left, and the driver calls commit again with the same stages.
"""

import asyncio
from contextlib import suppress

import pytest

from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.controller.settings import ControllerSettings, TransactionSettings
from segmentstore.controller.transactions.transaction_states import UNFINISHED, Phase
from tests.controller.crashing_doors import ProcessDiedError
from tests.controller.transactions.feature_cluster import FeatureCluster
from tests.controller.transactions.staging import commit, last_version, stage
from tests.controller.transactions.test_transaction_crashes import CALLS_MAX, last_effects


async def prepared(*, scaled: bool) -> tuple[FeatureCluster, list[bytes]]:
    """Three stages with two events each; the stream is scaled behind the second if wanted."""
    cluster = FeatureCluster(
        settings=ControllerSettings(
            transactions=TransactionSettings(retry_seconds_min=0.0, retry_seconds_max=0.0)
        )
    )
    await cluster.start()
    await cluster.scopes.create("s")
    await cluster.create("a", segments=2)
    stages = [await stage(cluster, [b"%d.0" % n, b"%d.1" % n]) for n in range(2)]
    if scaled:
        await cluster.scale("a", [(0.0, 0.25), (0.25, 0.75), (0.75, 1.0)])
    stages.append(await stage(cluster, [b"2.0", b"2.1"]))
    return cluster, stages


async def until_dead_or_done(cluster: FeatureCluster, stages: list[bytes]) -> None:
    async with cluster.finishing():
        with suppress(ProcessDiedError):
            await commit(cluster, stages, version=1)
        while not cluster.plan.dead and cluster.has_work("a"):
            await asyncio.sleep(0)
        await last_effects()


async def check(cluster: FeatureCluster) -> None:
    read = await cluster.read_in_order("a")
    assert sorted(read) == [b"%d.%d" % (n, half) for n in range(3) for half in range(2)]
    assert not [name for name in cluster.memory_segments.names() if "transaction" in name]
    assert await last_version(cluster) == 1
    cluster.components.transaction_states.check()
    cluster.components.decisions.check()
    await cluster.check()


@pytest.mark.parametrize("behind", [False, True])
async def test_h74_a_staged_commit_survives_death_at_any_call(behind: bool) -> None:
    for die_at in range(1, CALLS_MAX):
        cluster, stages = await prepared(scaled=False)
        cluster.plan.arm(die_at=die_at, behind=behind)
        await until_dead_or_done(cluster, stages)
        died = cluster.plan.dead
        await cluster.restart()
        cluster.components.transaction_states.check()
        async with cluster.finishing():
            await commit(cluster, stages, version=1)
            await cluster.settled("a")
            assert (await commit(cluster, stages, version=1)).completed
        await check(cluster)
        assert await cluster.read_all("a") == {
            0: [b"0.0", b"1.0", b"2.0"],
            1: [b"0.1", b"1.1", b"2.1"],
        }
        if not died:
            return
    raise AssertionError("the scenario never gets through")


@pytest.mark.parametrize("behind", [False, True])
async def test_h75_a_staged_commit_over_a_scale_survives_death_at_any_call(behind: bool) -> None:
    for die_at in range(1, CALLS_MAX):
        cluster, stages = await prepared(scaled=True)
        cluster.plan.arm(die_at=die_at, behind=behind)
        await until_dead_or_done(cluster, stages)
        died = cluster.plan.dead
        await cluster.restart()
        async with cluster.finishing():
            await commit(cluster, stages, version=1)
            await cluster.settled("a")
        await check(cluster)
        if not died:
            return
    raise AssertionError("the scenario never gets through")


@pytest.mark.parametrize("behind", [False, True])
async def test_a_driver_that_never_comes_back_leaves_all_or_nothing(behind: bool) -> None:
    outcomes: set[int] = set()
    for die_at in range(1, CALLS_MAX):
        cluster, stages = await prepared(scaled=False)
        cluster.plan.arm(die_at=die_at, behind=behind)
        await until_dead_or_done(cluster, stages)
        died = cluster.plan.dead
        await cluster.restart()
        async with cluster.finishing():
            await cluster.settled("a")
            # Another run of the job stages the same again under the same version.
            again = [await stage(cluster, [b"%d.0" % n, b"%d.1" % n]) for n in range(3)]
            events = [event for each in (await cluster.read_all("a")).values() for event in each]
            outcomes.add(len(events))
            assert (await commit(cluster, again, version=1)).duplicate == bool(events)
            await cluster.settled("a")
            for name in cluster.components.transaction_states.stream("s", "a").open_ids():
                states = cluster.components.transaction_states.stream("s", "a")
                await cluster.components.decisions.abort_quietly([states.name(name)])
            await cluster.settled("a")
        await check(cluster)
        if not died:
            # The first call through a door is the decision itself.
            assert outcomes == ({6} if behind else {0, 6})
            return
    raise AssertionError("the scenario never gets through")


async def test_h74_a_stage_whose_segment_was_lost_is_not_reported_as_committed() -> None:
    cluster, stages = await prepared(scaled=False)
    lost = next(name for name in cluster.memory_segments.names() if "#transaction" in name)
    await cluster.memory_segments.delete(lost)
    async with cluster.finishing():
        await commit(cluster, stages, version=1)
        while not cluster.components.completer.complaints():
            await asyncio.sleep(0)
        assert "gone and was not merged" in cluster.components.completer.complaints()[("s", "a")]
        assert not (await commit(cluster, stages, version=1)).completed
    assert await cluster.read_all("a") == {0: [], 1: []}


async def test_h78_a_staged_commit_whose_segment_was_lost_goes_on_after_a_repair() -> None:
    cluster, stages = await prepared(scaled=False)
    await commit(cluster, stages, version=1)
    lost = next(name for name in cluster.memory_segments.names() if "#transaction" in name)
    await cluster.memory_segments.delete(lost)
    assert (await cluster.transactions.repair()).created == [lost]
    assert (await cluster.transactions.repair()).created == []
    await cluster.restart()
    async with cluster.finishing():
        await cluster.settled("a")
    events = [event for each in (await cluster.read_all("a")).values() for event in each]
    assert len(events) == 5
    await cluster.check()


async def test_a_call_that_is_given_up_is_looked_up_before_anything_else_is_done() -> None:
    for turns in range(40):
        cluster, stages = await prepared(scaled=False)
        async with cluster.finishing():
            call = asyncio.create_task(commit(cluster, stages, version=1))
            for _ in range(turns):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            try:
                await commit(cluster, stages, version=1)
            except SegmentStoreError:
                # The cancelled call's batch landed in between: told to come back.
                await commit(cluster, stages, version=1)
            await cluster.settled("a")
        await check(cluster)


async def test_a_decision_that_landed_behind_everybodys_back_is_found_by_a_replay() -> None:
    # The call was given up and the table looked at before its batch got there; another run of the job comes back.
    cluster, stages = await prepared(scaled=False)
    states = cluster.components.transaction_states.stream("s", "a")
    opened = states.records(Phase.OPEN)
    await commit(cluster, stages, version=1)
    for transaction_id in states.ids(*UNFINISHED):
        cluster.components.transaction_states.follow_table(states.name(transaction_id), None)
    states = cluster.components.transaction_states.stream("s", "a")
    for transaction_id, record in opened.items():
        cluster.components.transaction_states.follow_table(states.name(transaction_id), record)
    async with cluster.finishing():
        again = [await stage(cluster, [b"again"])]
        answer = await commit(cluster, again, version=1)
        assert (answer.duplicate, answer.completed) == (True, False)
        await cluster.settled("a")
    await check(cluster)
