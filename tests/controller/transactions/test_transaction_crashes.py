"""A controller that dies at any call of its doors, before or behind the effect, leaves nothing that cannot be finished.

Goal: no event is lost or there twice, and events stand in the order of the commits, wherever the process died.
Method: the same scenario is run again and again, dying one call later each time, until it gets through; after every
death another controller starts over what is left and finishes.
"""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial

import pytest

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.controller_records.stream_records import StreamState
from segmentstore.codec.controller_records.transaction_records import TransactionState
from segmentstore.controller.settings import ControllerSettings, TransactionSettings
from segmentstore.controller.transactions.transaction_table import (
    LoadedTransaction,
    TransactionTable,
)
from tests.controller.crashing_doors import ProcessDiedError
from tests.controller.transactions.feature_cluster import FeatureCluster, State, id_of
from tests.http.memory_segments import MemorySegments

Begun = list[api.CreateTxnResponse]

CALLS_MAX = 400


async def prepared(
    *, transactions: int, scaled: bool, segments: int = 2
) -> tuple[FeatureCluster, Begun]:
    """A stream `a` with transactions that hold two events each; scaled behind them if wanted."""
    cluster = FeatureCluster(
        settings=ControllerSettings(
            transactions=TransactionSettings(retry_seconds_min=0.0, retry_seconds_max=0.0)
        )
    )
    await cluster.start()
    await cluster.scopes.create("s")
    await cluster.create("a", segments=segments)
    begun: Begun = []
    for number in range(transactions):
        begun.append(await cluster.begin("a"))
        await cluster.write("a", begun[-1], [b"%d.0" % number, b"%d.1" % number])
    if scaled:
        await cluster.scale("a", [(0.0, 0.25), (0.25, 0.75), (0.75, 1.0)])
        for place, segment_id in enumerate(await cluster.current("a")):
            await cluster.append_event("a", segment_id, b"after %d" % place)
    return cluster, begun


async def until_dead_or_done(cluster: FeatureCluster, begun: Begun) -> None:
    """Commit all but the last transaction in order, abort the last, and wait."""
    async with cluster.finishing():
        try:
            for each in begun[:-1]:
                await cluster.commit("a", each.txnId)
            await cluster.abort("a", begun[-1].txnId)
        except ProcessDiedError:
            pass
        while not cluster.plan.dead and cluster.has_work("a"):
            await asyncio.sleep(0)
        await last_effects()


async def last_effects() -> None:
    """What was submitted before the death is done or not done: the store's operations are no coroutines of ours."""
    for _ in range(50):
        await asyncio.sleep(0)


async def finished_after_death(
    make: Callable[[], Awaitable[tuple[FeatureCluster, Begun]]], *, die_at: int, behind: bool
) -> tuple[FeatureCluster, Begun, bool]:
    """The cluster after death and recovery; whether it died."""
    cluster, begun = await make()
    cluster.plan.arm(die_at=die_at, behind=behind)
    await until_dead_or_done(cluster, begun)
    died = cluster.plan.dead
    await cluster.restart()
    async with cluster.finishing():
        # What was not answered before the death is called again, as a client would.
        for each in begun[:-1]:
            assert await cluster.commit("a", each.txnId) == api.TxnStatus.Status.SUCCESS
        assert await cluster.abort("a", begun[-1].txnId) == api.TxnStatus.Status.SUCCESS
        await cluster.settled("a")
    return cluster, begun, died


async def check(cluster: FeatureCluster, begun: Begun) -> None:
    for each in begun[:-1]:
        assert await cluster.state("a", each.txnId) == State.COMMITTED
    assert await cluster.state("a", begun[-1].txnId) == State.ABORTED
    assert not [name for name in cluster.memory_segments.names() if "transaction" in name]
    cluster.components.transaction_states.check()
    cluster.components.decisions.check()
    await cluster.check()


@pytest.mark.parametrize("behind", [False, True])
async def test_h74_a_commit_survives_death_at_any_call(behind: bool) -> None:
    for die_at in range(1, CALLS_MAX):
        cluster, begun, died = await finished_after_death(
            lambda: prepared(transactions=3, scaled=False), die_at=die_at, behind=behind
        )
        await check(cluster, begun)
        assert await cluster.read_all("a") == {0: [b"0.0", b"1.0"], 1: [b"0.1", b"1.1"]}
        if not died:
            return
    raise AssertionError("the scenario never gets through")


@pytest.mark.slow
@pytest.mark.parametrize("behind", [False, True])
async def test_h75_a_commit_behind_a_scale_survives_death_at_any_call(behind: bool) -> None:
    for die_at in range(1, CALLS_MAX):
        cluster, begun, died = await finished_after_death(
            lambda: prepared(transactions=3, scaled=True), die_at=die_at, behind=behind
        )
        await check(cluster, begun)
        events = await cluster.read_all("a")
        committed = {name: each for name, each in events.items() if any(b"." in e for e in each)}
        # One detour for both, or two detours if the first was committed alone; always in order.
        flat = [event for _, each in sorted(committed.items()) for event in each]
        assert sorted(flat) == [b"0.0", b"0.1", b"1.0", b"1.1"]
        read = await cluster.read_in_order("a")
        assert len(read) == len(set(read)) == 7
        for half in (b".0", b".1"):
            assert [e for e in read if e.endswith(half)] == [b"0" + half, b"1" + half]
        assert max(read.index(b"after %d" % place) for place in range(3)) < min(
            read.index(event) for event in flat
        )
        if not died:
            return
    raise AssertionError("the scenario never gets through")


@pytest.mark.parametrize("behind", [False, True])
async def test_a_begin_survives_death_at_any_call(behind: bool) -> None:
    for die_at in range(1, CALLS_MAX):
        cluster, _ = await prepared(transactions=0, scaled=False)
        cluster.plan.arm(die_at=die_at, behind=behind)
        try:
            await cluster.begin("a")
        except ProcessDiedError:
            await cluster.restart()
            states = cluster.components.transaction_states.known("s", "a")
            begun = states.open_ids() if states is not None else []
            # What nobody was told of is aborted like everything that nobody pings.
            async with cluster.finishing():
                for transaction_id in begun:
                    assert states is not None
                    await cluster.components.decisions.abort_quietly([states.name(transaction_id)])
                await cluster.settled("a")
            assert cluster.memory_segments.names() == [
                "s/_MARKa/0.#epoch.0",
                "s/a/0.#epoch.0",
                "s/a/1.#epoch.0",
            ]
            continue
        return
    raise AssertionError("the scenario never gets through")


async def test_h74_a_transaction_whose_segment_was_lost_is_not_reported_as_committed() -> None:
    cluster, begun = await prepared(transactions=3, scaled=False)
    lost = next(name for name in cluster.memory_segments.names() if "#transaction" in name)
    await cluster.memory_segments.delete(lost)
    async with cluster.finishing():
        for each in begun:
            await cluster.commit("a", each.txnId)
        while not cluster.components.completer.complaints():
            await asyncio.sleep(0)
        assert "gone and was not merged" in cluster.components.completer.complaints()[("s", "a")]
        for each in begun:
            assert await cluster.state("a", each.txnId) == State.COMMITTING


async def test_h74_segments_forget_transactions_only_once_they_are_recorded() -> None:
    cluster, begun = await prepared(transactions=2, scaled=False)
    async with cluster.finishing():
        await cluster.commit("a", begun[0].txnId)
        await cluster.settled("a")
    for name in cluster.memory_segments.names():
        assert not cluster.memory_segments._segments[name].merged, name


async def test_segments_forget_several_transactions_at_once() -> None:
    settings = ControllerSettings(transactions=TransactionSettings(forget_together_max=3))
    cluster = FeatureCluster(settings=settings, forget_seconds=3600.0)
    await cluster.start()
    await cluster.scopes.create("s")
    await cluster.create("a", segments=1)
    segment = cluster.memory_segments._segments["s/a/0.#epoch.0"]
    remembered = []
    async with cluster.finishing():
        for _ in range(4):
            begun = await cluster.begin("a")
            await cluster.commit("a", begun.txnId)
            while await cluster.state("a", begun.txnId) != State.COMMITTED:
                await asyncio.sleep(0)
            await last_effects()
            remembered.append(len(segment.merged))
    assert remembered == [1, 2, 0, 1]


async def test_h78_commits_and_aborts_under_way_are_taken_up_by_the_next_controller() -> None:
    cluster, begun = await prepared(transactions=3, scaled=True)
    for each in begun[:-1]:
        await cluster.commit("a", each.txnId)
    await cluster.abort("a", begun[-1].txnId)
    await cluster.restart()
    async with cluster.finishing():
        await cluster.settled("a")
    await check(cluster, begun)


async def test_a_commit_that_a_scale_overtook_half_way_is_finished_where_it_began() -> None:
    # Goal: part of a transaction is merged, the controller dies, and the stream is scaled before commits go on.
    cluster, begun = await prepared(transactions=2, scaled=False)
    await cluster.commit("a", begun[0].txnId)
    source = next(name for name in cluster.memory_segments.names() if "s/a/0.#epoch.0#" in name)
    await cluster.memory_segments.merge("s/a/0.#epoch.0", source, seal_source=True)
    await cluster.restart()
    await cluster.scale("a", [(0.0, 1.0)])
    async with cluster.finishing():
        await cluster.abort("a", begun[1].txnId)
        await cluster.settled("a")
    assert sorted(await cluster.read_in_order("a")) == [b"0.0", b"0.1"]
    await check(cluster, begun)


async def test_a_commit_behind_a_detour_goes_straight_into_the_shape_that_it_repeats() -> None:
    cluster, begun = await prepared(transactions=1, scaled=True)
    late = await cluster.begin("a")
    await cluster.write("a", late, [b"late"])
    async with cluster.finishing():
        await cluster.commit("a", begun[0].txnId)
        await cluster.settled("a")
        history = await cluster.streams.operations.history("s", "a")
        assert (await history.state()).current_epoch == 3
        await cluster.commit("a", late.txnId)
        await cluster.settled("a")
        assert (await history.state()).current_epoch == 3
    assert (await cluster.read_in_order("a"))[-1] == b"late"
    await cluster.check()


async def forget_what_is_recorded(cluster: FeatureCluster) -> None:
    """Segments forget the transactions that the table says are committed, as the dead controller may have asked."""
    async with aclosing(
        TransactionTable(tables=cluster.memory_tables).load(page_entries=9)
    ) as all_:
        async for loaded in all_:
            assert isinstance(loaded, LoadedTransaction)
            if loaded.record.state is TransactionState.COMMITTED:
                digits = f"{loaded.name.transaction_id:032x}"
                for state in cluster.memory_segments._segments.values():
                    for source in [each for each in state.merged if each.endswith(digits)]:
                        del state.merged[source]


async def test_h74_a_commit_behind_a_scale_survives_death_also_if_segments_have_forgotten_it() -> (
    None
):
    for die_at in range(1, CALLS_MAX):
        cluster, begun = await prepared(transactions=3, scaled=True)
        cluster.plan.arm(die_at=die_at, behind=True)
        await until_dead_or_done(cluster, begun)
        died = cluster.plan.dead
        cluster.before_start = forget_what_is_recorded
        await cluster.restart()
        async with cluster.finishing():
            for each in begun[:-1]:
                await cluster.commit("a", each.txnId)
            await cluster.abort("a", begun[-1].txnId)
            await cluster.settled("a")
        await check(cluster, begun)
        if not died:
            return
    raise AssertionError("the scenario never gets through")


@pytest.mark.slow
async def test_h78_a_detour_takes_in_what_one_container_has_lost_of_it_and_tier_2_still_has() -> (
    None
):
    """Containers reach Tier 2 at different moments: one segment of the detour is sealed, the other as it was before."""
    for die_at in range(1, CALLS_MAX):
        cluster, begun = await prepared(transactions=2, scaled=True)
        older = cluster.memory_segments.restarted()
        cluster.plan.arm(die_at=die_at, behind=True)
        await until_dead_or_done(cluster, begun)
        died = cluster.plan.dead
        cluster.before_start = partial(lose_the_log_of_the_second, older=older)
        await cluster.restart()
        async with cluster.finishing():
            await cluster.commit("a", begun[0].txnId)
            await cluster.abort("a", begun[1].txnId)
            await cluster.settled("a")
        read = await cluster.read_in_order("a")
        assert sorted(each for each in read if b"." in each) == [b"0.0", b"0.1"]
        if not died:
            return
    raise AssertionError("the scenario never gets through")


async def lose_the_log_of_the_second(cluster: FeatureCluster, *, older: MemorySegments) -> None:
    """If a detour is under way. Its container is as Tier 2 has it, and the store is repaired."""
    await cluster.metadata.start()
    history = await cluster.streams.operations.history("s", "a")
    state = (await history.any_state()).record
    if state is None or state.state is not StreamState.COMMITTING:
        return
    segments = cluster.memory_segments._segments
    for name in [each for each in segments if in_second(each)]:
        del segments[name]
    segments.update({name: each for name, each in older._segments.items() if in_second(name)})
    await cluster.components.repair.repair_all(in_second)
    assert (await cluster.transactions.repair()).created == []


def in_second(name: str) -> bool:
    """Of the container with the stream's second segment."""
    return name.startswith("s/a/1.")


async def test_h78_a_commit_whose_segment_was_lost_goes_on_after_a_repair_that_says_so() -> None:
    cluster, begun = await prepared(transactions=2, scaled=False)
    await cluster.commit("a", begun[0].txnId)
    names = [name for name in cluster.memory_segments.names() if "#transaction" in name]
    kept = next(name for name in names if name.startswith("s/a/0"))
    lost = next(name for name in names if name.startswith("s/a/1") and name[-9:] == kept[-9:])
    # One half is merged already and remembered, the other never reached Tier 2.
    await cluster.memory_segments.merge("s/a/0.#epoch.0", kept, seal_source=True)
    await cluster.memory_segments.delete(lost)
    assert (await cluster.transactions.repair()).created == [lost]
    assert (await cluster.transactions.repair()).created == []
    await cluster.restart()
    async with cluster.finishing():
        await cluster.abort("a", begun[1].txnId)
        await cluster.settled("a")
    assert await cluster.read_all("a") == {0: [b"0.0"], 1: []}
    await check(cluster, begun)


async def test_a_commit_that_landed_behind_everybodys_back_is_finished() -> None:
    # Its caller left, and the table was read before the batch got there: the states say that it is open.
    cluster, begun = await prepared(transactions=1, scaled=False)
    async with cluster.finishing():
        states = cluster.components.transaction_states.stream("s", "a")
        transaction_id = id_of(begun[0].txnId)
        record = states.record(transaction_id)
        await TransactionTable(tables=cluster.memory_tables).replace(
            {
                states.name(transaction_id): (
                    record,
                    dataclasses.replace(record, state=TransactionState.COMMITTING, commit_number=1),
                )
            }
        )
        assert await cluster.abort("a", begun[0].txnId) == api.TxnStatus.Status.FAILURE
        await cluster.settled("a")
    assert await cluster.state("a", begun[0].txnId) == State.COMMITTED
    assert await cluster.read_all("a") == {0: [b"0.0"], 1: [b"0.1"]}
    await cluster.check()


async def test_a_stream_is_deleted_though_the_table_has_less_than_the_states() -> None:
    # An earlier deletion was cancelled behind its batch.
    cluster, begun = await prepared(transactions=1, scaled=False)
    async with cluster.finishing():
        await cluster.commit("a", begun[0].txnId)
        await cluster.settled("a")
        states = cluster.components.transaction_states.stream("s", "a")
        await TransactionTable(tables=cluster.memory_tables).remove(
            [states.name(id_of(begun[0].txnId))]
        )
        await cluster.streams.seal("s", "a")
        await cluster.streams.delete("s", "a")
    assert cluster.components.transaction_states.known("s", "a") is None
    await cluster.check()
