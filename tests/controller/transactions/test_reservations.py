"""Transactions that are written down before anybody begins them."""

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.controller_records.transaction_records import (
    TransactionRecord,
    TransactionState,
)
from segmentstore.codec.stream_names import transaction_epoch_of
from segmentstore.controller.settings import ControllerSettings, TransactionSettings
from segmentstore.controller.transactions.reservations import Reservations, TransactionIds
from segmentstore.controller.transactions.transaction_states import Phase, StreamTransactions
from segmentstore.controller.transactions.transaction_table import (
    LoadedTransaction,
    TransactionName,
    TransactionTable,
)
from tests.controller.crashing_doors import ProcessDiedError
from tests.controller.test_interruptions import FailingPlan, Failure
from tests.controller.transactions.feature_cluster import FeatureCluster, State, id_of
from tests.controller.transactions.test_transaction_crashes import CALLS_MAX, last_effects

Status = api.TxnStatus.Status


async def cluster_with(
    *, segments: int = 1, settings: TransactionSettings | None = None
) -> FeatureCluster:
    given = settings or TransactionSettings(retry_seconds_min=0.0, retry_seconds_max=0.0)
    cluster = FeatureCluster(settings=ControllerSettings(transactions=given))
    await cluster.start()
    await cluster.scopes.create("s")
    await cluster.create("a", segments=segments)
    return cluster


def states_of(cluster: FeatureCluster) -> StreamTransactions:
    return cluster.components.transaction_states.stream("s", "a")


async def recorded(cluster: FeatureCluster) -> dict[int, TransactionState]:
    """What the table holds."""
    found: dict[int, TransactionState] = {}
    table = TransactionTable(tables=cluster.memory_tables)
    async with aclosing(table.load(page_entries=9)) as loaded:
        async for each in loaded:
            assert isinstance(each, LoadedTransaction)
            found[each.name.transaction_id] = each.record.state
    return found


async def commit_one(cluster: FeatureCluster, event: bytes) -> api.CreateTxnResponse:
    begun = await cluster.begin("a")
    await cluster.write("a", begun, [event])
    assert await cluster.commit("a", begun.txnId) == Status.SUCCESS
    await cluster.settled("a")
    return begun


async def test_a_begin_soon_behind_another_waits_for_its_segments_only() -> None:
    cluster = await cluster_with(segments=2)
    async with cluster.finishing():
        await commit_one(cluster, b"0")
        await commit_one(cluster, b"1")
        reserved = states_of(cluster).records(Phase.RESERVED)
        assert len(reserved) == 1
        before = await recorded(cluster)
        assert [before[each] for each in reserved] == [TransactionState.OPEN]
        calls = cluster.plan.count
        begun = await cluster.begin("a")
        assert cluster.plan.count == calls + 2
        assert {id_of(begun.txnId)} == reserved.keys()
        assert await recorded(cluster) == before
        await cluster.write("a", begun, [b"2"])
        await cluster.commit("a", begun.txnId)
        await cluster.settled("a")
    assert await cluster.read_in_order("a") == [b"0", b"1", b"2"]
    assert await cluster.state("a", begun.txnId) == State.COMMITTED
    cluster.components.transaction_states.check()
    cluster.components.decisions.check()
    await cluster.check()


async def test_nothing_is_reserved_where_transactions_are_rare() -> None:
    cluster = await cluster_with(settings=TransactionSettings(reserve_within_seconds=-1.0))
    async with cluster.finishing():
        for number in range(3):
            await commit_one(cluster, b"%d" % number)
    assert not states_of(cluster).ids(Phase.RESERVED)
    assert set((await recorded(cluster)).values()) == {TransactionState.COMMITTED}


async def test_many_at_once_never_get_the_same_one() -> None:
    cluster = await cluster_with()
    ids: list[int] = []

    async def client() -> None:
        for _ in range(5):
            begun = await cluster.begin("a")
            ids.append(id_of(begun.txnId))
            assert await cluster.state("a", begun.txnId) == State.OPEN
            await cluster.commit("a", begun.txnId)
            cluster.components.transaction_states.check()

    async with cluster.finishing():
        await asyncio.gather(*(client() for _ in range(8)))
        await cluster.settled("a")
    assert len(set(ids)) == 40
    assert not set(ids) & set(states_of(cluster).ids(Phase.RESERVED))
    assert len(states_of(cluster).ids(Phase.RESERVED)) <= 40
    cluster.components.transaction_states.check()


async def test_reserved_ones_are_bounded() -> None:
    cluster = await cluster_with(settings=TransactionSettings(reserved_per_stream_max=3))
    async with cluster.finishing():
        begun = [await cluster.begin("a") for _ in range(9)]
        for each in begun:
            await cluster.commit("a", each.txnId)
        await cluster.settled("a")
    assert len(states_of(cluster).ids(Phase.RESERVED)) == 3


async def test_what_was_reserved_before_a_scale_is_given_back() -> None:
    cluster = await cluster_with()
    async with cluster.finishing():
        for number in range(2):
            await commit_one(cluster, b"%d" % number)
        [old] = states_of(cluster).ids(Phase.RESERVED)
        await cluster.scale("a", [(0.0, 0.5), (0.5, 1.0)])
        begun = await cluster.begin("a")
        assert transaction_epoch_of(id_of(begun.txnId)) == 1
        assert len(begun.activeSegments) == 2
        assert not states_of(cluster).ids(Phase.RESERVED)
        assert (await recorded(cluster))[old] is TransactionState.OPEN
        await cluster.components.completer.forget_old()
        assert old not in await recorded(cluster)
        assert not states_of(cluster).ids(Phase.RETURNED)
        await cluster.abort("a", begun.txnId)
        await cluster.settled("a")


async def test_what_nobody_begins_is_removed() -> None:
    cluster = await cluster_with(settings=TransactionSettings(reserved_seconds=0.0))
    async with cluster.finishing():
        for number in range(2):
            await commit_one(cluster, b"%d" % number)
        assert TransactionState.OPEN in (await recorded(cluster)).values()
        await cluster.components.completer.forget_old()
        assert set((await recorded(cluster)).values()) == {TransactionState.COMMITTED}
        assert not states_of(cluster).ids(Phase.RESERVED)
        await commit_one(cluster, b"2")
    assert await cluster.read_in_order("a") == [b"0", b"1", b"2"]


async def test_nobody_with_a_lease_above_the_longest_gets_one() -> None:
    cluster = await cluster_with()
    async with cluster.finishing():
        for number in range(2):
            await commit_one(cluster, b"%d" % number)
        [reserved] = states_of(cluster).ids(Phase.RESERVED)
        _, staged = await cluster.transactions.begin("s", "a", lease_ms=86_400_000, open_max=10)
        assert staged != reserved
        assert states_of(cluster).record(staged).lease_ms == 86_400_000


async def test_a_stream_that_is_deleted_takes_its_reserved_ones_along() -> None:
    cluster = await cluster_with()
    async with cluster.finishing():
        for number in range(2):
            await commit_one(cluster, b"%d" % number)
        assert states_of(cluster).ids(Phase.RESERVED)
        await cluster.streams.seal("s", "a")
        await cluster.streams.delete("s", "a")
    assert await recorded(cluster) == {}
    assert cluster.components.transaction_states.known("s", "a") is None
    await cluster.check()


async def test_one_that_another_controller_ended_is_not_handed_out() -> None:
    cluster = await cluster_with()
    async with cluster.finishing():
        for number in range(2):
            await commit_one(cluster, b"%d" % number)
        [(ended, reserved)] = states_of(cluster).records(Phase.RESERVED).items()
        aborted = replace(reserved, state=TransactionState.ABORTED)
        await TransactionTable(tables=cluster.memory_tables).replace(
            {states_of(cluster).name(ended): (reserved, aborted)}
        )
        begun = await commit_one(cluster, b"2")
        assert id_of(begun.txnId) != ended
    assert await cluster.read_in_order("a") == [b"0", b"1", b"2"]
    await cluster.check()


class LeavingTable(TransactionTable):
    """Its reader leaves."""

    async def read(self, name: TransactionName) -> TransactionRecord | None:
        raise asyncio.CancelledError(name)


async def test_one_whose_taker_leaves_is_given_back() -> None:
    cluster = await cluster_with()
    async with cluster.finishing():
        for number in range(2):
            await commit_one(cluster, b"%d" % number)
    states = states_of(cluster)
    [reserved] = states.ids(Phase.RESERVED)
    taker = Reservations(
        table=LeavingTable(tables=cluster.memory_tables),
        ids=TransactionIds(random=cluster.random),
        wall_clock=cluster.clock,
        settings=TransactionSettings(),
    )
    with pytest.raises(asyncio.CancelledError):
        await taker.take(states, epoch=0, lease_ms=10_000)
    assert not states.ids(Phase.RESERVED)
    assert states.ids(Phase.RETURNED) == [reserved]
    await cluster.components.completer.forget_old()
    assert reserved not in await recorded(cluster)


async def test_a_start_takes_reserved_ones_for_open_ones_and_ends_them() -> None:
    settings = TransactionSettings(lease_ms_min=10, lease_ms_max=60_000)
    cluster = await cluster_with(settings=settings)
    async with cluster.finishing():
        for number in range(2):
            await commit_one(cluster, b"%d" % number)
    [reserved] = states_of(cluster).ids(Phase.RESERVED)
    await cluster.restart()
    assert states_of(cluster).open_ids() == [reserved]
    cluster.components.decisions.check()
    async with cluster.finishing():
        await cluster.components.decisions.abort_quietly([states_of(cluster).name(reserved)])
        await cluster.settled("a")
    assert TransactionState.OPEN not in (await recorded(cluster)).values()
    await cluster.check()


@pytest.mark.parametrize("failure", [Failure.BEFORE, Failure.BEHIND])
async def test_what_may_not_have_been_written_is_never_handed_out(failure: Failure) -> None:
    for fails_at in range(1, CALLS_MAX):
        cluster = await cluster_with()
        plan = FailingPlan(failure)
        async with cluster.finishing():
            await commit_one(cluster, b"0")
            begun = await cluster.begin("a")
            await cluster.write("a", begun, [b"1"])
            await cluster.commit("a", begun.txnId)
            # The merge, the record of the commit, what is forgotten: each of them once.
            plan.die_at = fails_at
            cluster.segments._plan = cluster.tables._plan = plan
            await cluster.settled("a")
            failed, plan.die_at = plan.count >= fails_at, 0
            written = await recorded(cluster)
            states = states_of(cluster)
            assert all(
                written.get(each) is TransactionState.OPEN for each in states.ids(Phase.RESERVED)
            )
            assert {each for each in written if written[each] is TransactionState.OPEN} <= {
                *states.ids(Phase.RESERVED),
                *states.ids(Phase.RETURNED),
            }
            await cluster.components.completer.forget_old()
            assert not states.ids(Phase.RETURNED)
            late = await cluster.begin("a")
            assert (await recorded(cluster))[id_of(late.txnId)] is TransactionState.OPEN
            await cluster.abort("a", late.txnId)
            await cluster.settled("a")
        assert await cluster.read_in_order("a") == [b"0", b"1"]
        states.check()
        if not failed:
            return
    raise AssertionError("the scenario never gets through")


@pytest.mark.parametrize("behind", [False, True])
async def test_transactions_one_behind_the_other_survive_death_at_any_call(behind: bool) -> None:
    for die_at in range(1, CALLS_MAX):
        cluster = await cluster_with(segments=2)
        begun: list[tuple[bytes, api.TxnId]] = []
        cluster.plan.arm(die_at=die_at, behind=behind)
        async with cluster.finishing():
            try:
                for event in (b"0", b"1", b"2", b"3"):
                    each = await cluster.begin("a")
                    await cluster.write("a", each, [event])
                    begun.append((event, each.txnId))
                    await cluster.commit("a", each.txnId)
                    while not cluster.plan.dead and cluster.has_work("a"):
                        await asyncio.sleep(0)
            except ProcessDiedError:
                pass
            await last_effects()
        died = cluster.plan.dead
        await cluster.restart()
        async with cluster.finishing():
            for _, txn in begun:
                assert await cluster.commit("a", txn) == Status.SUCCESS
            await cluster.components.decisions.abort_quietly(
                [states_of(cluster).name(each) for each in states_of(cluster).open_ids()]
            )
            await cluster.settled("a")
        assert await cluster.read_all("a") == {0: [event for event, _ in begun], 1: []}
        assert TransactionState.OPEN not in (await recorded(cluster)).values()
        cluster.components.transaction_states.check()
        await cluster.check()
        if not died:
            return
    raise AssertionError("the scenario never gets through")
