"""The remembered states are old: something is on its way behind it, or another controller was at work."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import pytest

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.controller_records.stream_records import StreamState
from segmentstore.codec.controller_records.transaction_records import (
    TransactionRecord,
    TransactionState,
)
from segmentstore.contracts.errors import ContainerStoppedError, LogFullError
from segmentstore.controller.errors import RetryLaterError
from segmentstore.controller.settings import ControllerSettings, TransactionSettings
from segmentstore.controller.transactions.transaction_states import StreamTransactions
from segmentstore.controller.transactions.transaction_table import (
    TransactionName,
    TransactionTable,
)
from tests.controller.crashing_doors import CrashPlan
from tests.controller.transactions.feature_cluster import FeatureCluster, State, id_of
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation

Outcome = TypeVar("Outcome")
Status = api.TxnStatus.Status

SETTINGS = ControllerSettings(
    transactions=TransactionSettings(retry_seconds_min=0.0, retry_seconds_max=0.001)
)


class HoldingPlan(CrashPlan):
    """The first call takes effect when it is let go, whoever waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = asyncio.Event()

    async def through(self, call: Callable[[], Awaitable[Outcome]]) -> Outcome:
        self.count += 1
        if self.count == 1:
            await self.let_go.wait()
        return await call()


class FullPlan(CrashPlan):
    """Every change is refused at once."""

    async def through(self, call: Callable[[], Awaitable[Outcome]]) -> Outcome:
        self.count += 1
        raise LogFullError("the disk of the log is full")


class NoMergePlan(CrashPlan):
    """Segments refuse everything."""

    async def through(self, call: Callable[[], Awaitable[Outcome]]) -> Outcome:
        raise ContainerStoppedError("recovering")


class LosingPlan(CrashPlan):
    """The first change takes effect, and nobody is told."""

    async def through(self, call: Callable[[], Awaitable[Outcome]]) -> Outcome:
        self.count += 1
        outcome = await call()
        if self.count == 1:
            raise RetryLaterError("the answer was lost")
        return outcome


async def cluster_with(
    *, segments: int = 1, settings: ControllerSettings = SETTINGS
) -> FeatureCluster:
    cluster = FeatureCluster(settings=settings)
    await cluster.start()
    await cluster.scopes.create("s")
    await cluster.create("a", segments=segments)
    return cluster


async def some_turns() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


async def leave_a_begin(cluster: FeatureCluster) -> HoldingPlan:
    """Its caller is gone, and its record is on its way into the table."""
    plan = cluster.tables._plan = HoldingPlan()
    begin = asyncio.create_task(cluster.begin("a"))
    await some_turns()
    assert plan.count == 1
    begin.cancel()
    with suppress(asyncio.CancelledError):
        await begin
    return plan


async def test_a_begin_whose_caller_left_is_not_written_behind_the_look_that_was_to_find_it() -> (
    None
):
    cluster = await cluster_with()
    async with cluster.finishing():
        plan = await leave_a_begin(cluster)
        seal = asyncio.create_task(cluster.streams.seal("s", "a"))
        await some_turns()
        assert not seal.done()
        plan.let_go.set()
        await seal
        await cluster.streams.delete("s", "a")
    await cluster.create("a")
    await cluster.restart()
    assert cluster.components.transaction_states.all() == []
    await cluster.check()


async def test_the_table_is_not_read_while_a_change_is_on_its_way_that_no_caller_waits_for() -> (
    None
):
    cluster = await cluster_with()
    plan = await leave_a_begin(cluster)
    with pytest.raises(RetryLaterError):
        await cluster.transactions.start()
    plan.let_go.set()
    await some_turns()
    await cluster.transactions.start()
    [states] = cluster.components.transaction_states.all()
    assert len(states.open_ids()) == 1
    cluster.components.decisions.check()


@pytest.mark.parametrize("scaled", [False, True])
async def test_h74_a_commit_that_another_controller_has_done_and_forgotten_is_not_begun_again(
    scaled: bool,
) -> None:
    old = await cluster_with()
    begun = await old.begin("a")
    await old.write("a", begun, [b"once"])
    if scaled:
        await old.scale("a", [(0.0, 0.5), (0.5, 1.0)])
    await old.commit("a", begun.txnId)
    other = FeatureCluster(settings=SETTINGS)
    other.memory_segments, other.memory_tables = old.memory_segments, old.memory_tables
    other._build()
    await other.start()
    async with other.finishing():
        await other.settled("a")
    assert await other.state("a", begun.txnId) == State.COMMITTED
    async with old.finishing():
        await old.settled("a")
        assert not old.components.completer.complaints()
        assert await old.state("a", begun.txnId) == State.COMMITTED
        history = await old.streams.operations.history("s", "a")
        assert (await history.state()).state is StreamState.ACTIVE
        late = await old.begin("a")
        await old.write("a", late, [b"late"])
        assert await old.commit("a", late.txnId) == api.TxnStatus.Status.SUCCESS
        await old.settled("a")
    assert await old.read_in_order("a") == [b"once", b"late"]
    await old.check()


async def test_what_is_left_of_a_stream_of_the_same_name_ends_though_its_epoch_is_gone() -> None:
    cluster = await cluster_with()
    name = TransactionName("s", "a", 7 << 96)
    record = TransactionRecord(state=TransactionState.OPEN, lease_ms=10_000, created_ms=0)
    await TransactionTable(tables=cluster.memory_tables).add(name, record)
    await cluster.restart()
    async with cluster.finishing():
        await cluster.components.decisions.abort_quietly([name])
        await cluster.settled("a")
        assert not cluster.components.completer.complaints()
    found = await TransactionTable(tables=cluster.memory_tables).read(name)
    assert found is not None
    assert found.state is TransactionState.ABORTED


@pytest.mark.parametrize("repaired", [True, False])
@pytest.mark.parametrize("stages", [0, 2])
async def test_h78_a_commit_to_an_epoch_that_is_gone_ends_as_aborted_and_blocks_nothing(
    repaired: bool, stages: int
) -> None:
    """The table of transactions came back from Tier 2 newer than the table of the scope."""
    cluster = await cluster_with()
    name = TransactionName("s", "a", 7 << 96)
    stage_names = [TransactionName("s", "a", 7 << 96 | 1 + number) for number in range(stages)]
    record = TransactionRecord(
        state=TransactionState.COMMITTING, lease_ms=10_000, created_ms=0, commit_number=1
    )
    table = TransactionTable(tables=cluster.memory_tables)
    staged = tuple(each.transaction_id for each in stage_names)
    await table.add(name, replace(record, stages=staged))
    for each in stage_names:
        joins = replace(record, commit_number=0, joins=name.transaction_id)
        await table.add(each, joins)
    if repaired:
        ended = [f"s/a {name.transaction_id:032x}"]
        assert (await cluster.transactions.repair()).ended == ended
        assert (await cluster.transactions.repair()).ended == []
    await cluster.restart()
    table = TransactionTable(tables=cluster.memory_tables)
    async with cluster.finishing():
        late = await cluster.begin("a")
        await cluster.write("a", late, [b"late"])
        assert await cluster.commit("a", late.txnId) == Status.SUCCESS
        await cluster.settled("a")
        assert await cluster.state("a", late.txnId) == State.COMMITTED
        for each in (name, *stage_names):
            found = await table.read(each)
            assert found is not None
            assert found.state is TransactionState.ABORTED
        assert await cluster.read_all("a") == {0: [b"late"]}
        async with asyncio.timeout(60):
            await cluster.streams.seal("s", "a")
            await cluster.streams.delete("s", "a")
    await cluster.check()


def test_h52_a_seal_does_not_keep_the_loop_busy_while_the_log_is_full() -> None:
    """An abort that is refused at once was asked for again at once, for as long as the disk was full."""
    run_simulation(1, _seal_while_the_log_is_full)


async def _seal_while_the_log_is_full(loop: SimLoop) -> None:
    cluster = await cluster_with(
        settings=ControllerSettings(
            transactions=TransactionSettings(retry_seconds_min=10.0, retry_seconds_max=10.0)
        )
    )
    await cluster.begin("a")
    async with cluster.finishing():
        works = cluster.tables._plan
        full = cluster.tables._plan = FullPlan()
        seal = asyncio.create_task(cluster.streams.seal("s", "a"))
        now = loop.time()
        for _ in range(10):
            await some_turns()
        # The loop's time goes on only while nobody has anything to do: no pause is over.
        assert loop.time() == now
        assert not seal.done()
        refused = full.count
        cluster.tables._plan = works
        await seal
    assert 0 < refused <= 3
    await cluster.check()


async def test_who_pings_while_an_abort_is_being_written_is_told_of_it() -> None:
    """ "Alive" was said of a transaction whose lease had run out, since the abort was not among the states yet."""
    cluster = await cluster_with()
    begun = await cluster.begin("a")
    plan = cluster.tables._plan = HoldingPlan()
    abort = asyncio.create_task(cluster.abort("a", begun.txnId))
    await some_turns()
    assert plan.count == 1
    ping = asyncio.create_task(cluster.ping("a", begun.txnId, lease_ms=60_000))
    await some_turns()
    assert not ping.done()
    plan.let_go.set()
    assert await ping == api.PingTxnStatus.Status.ABORTED
    await abort


async def test_who_pings_behind_an_abort_whose_outcome_is_unknown_is_told_what_the_table_says() -> (
    None
):
    cluster = await cluster_with()
    begun = await cluster.begin("a")
    cluster.tables._plan = LosingPlan()
    with pytest.raises(RetryLaterError):
        await cluster.abort("a", begun.txnId)
    assert await cluster.ping("a", begun.txnId, lease_ms=60_000) == (
        api.PingTxnStatus.Status.ABORTED
    )


class LateAnswer:
    """The first look at the table of transactions is answered when it is let go, with what it saw."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.looked, self.let_go = asyncio.Event(), asyncio.Event()
        read = TransactionTable.read

        async def late(table: TransactionTable, name: TransactionName) -> TransactionRecord | None:
            record = await read(table, name)
            if not self.looked.is_set():
                self.looked.set()
                await self.let_go.wait()
            return record

        patch.setattr(TransactionTable, "read", late)


async def leave_one_undecided(cluster: FeatureCluster) -> api.CreateTxnResponse:
    """It is open in the table, and whether its commit came there is not known."""
    begun = await cluster.begin("a")
    await cluster.write("a", begun, [b"kept"])
    works, cluster.tables._plan = cluster.tables._plan, FullPlan()
    with pytest.raises(LogFullError):
        await cluster.commit("a", begun.txnId)
    cluster.tables._plan = works
    return begun


async def test_a_commit_that_was_answered_is_done_though_an_older_look_at_the_table_ends_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the older look saw was believed: the transaction was open for ever, and no event of it came."""
    cluster = await cluster_with()
    begun = await leave_one_undecided(cluster)
    look = LateAnswer(monkeypatch)
    async with cluster.finishing():
        await look.looked.wait()
        assert await cluster.commit("a", begun.txnId) == Status.SUCCESS
        look.let_go.set()
        await cluster.settled("a")
        assert await cluster.state("a", begun.txnId) == State.COMMITTED
    assert await cluster.read_all("a") == {0: [b"kept"]}
    await cluster.check()


async def test_a_decision_that_is_being_written_is_waited_for_though_an_older_look_ends_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = await cluster_with()
    begun = await leave_one_undecided(cluster)
    look = LateAnswer(monkeypatch)
    async with cluster.finishing():
        await look.looked.wait()
        plan = cluster.tables._plan = HoldingPlan()
        abort = asyncio.create_task(cluster.abort("a", begun.txnId))
        await some_turns()
        assert plan.count == 1
        look.let_go.set()
        await some_turns()
        ping = asyncio.create_task(cluster.ping("a", begun.txnId, lease_ms=60_000))
        await some_turns()
        assert not ping.done()
        plan.let_go.set()
        assert await ping == api.PingTxnStatus.Status.ABORTED
        assert await abort == Status.SUCCESS
        await cluster.settled("a")
    await cluster.check()


async def test_a_transaction_that_is_pinged_before_its_turn_to_be_aborted_comes_lives_on() -> None:
    cluster = await cluster_with(
        settings=ControllerSettings(transactions=TransactionSettings(aborts_at_once_max=1))
    )
    first, second = await cluster.begin("a"), await cluster.begin("a")
    for begun in (first, second):
        cluster.components.decisions.grant(TransactionName("s", "a", id_of(begun.txnId)), 0)
    plan = cluster.tables._plan = HoldingPlan()
    async with cluster.finishing():
        await some_turns()
        assert plan.count == 1
        ping = await cluster.ping("a", second.txnId, lease_ms=60_000)
        assert ping == api.PingTxnStatus.Status.OK
        plan.let_go.set()
        await some_turns()
        assert await cluster.state("a", first.txnId) in (State.ABORTING, State.ABORTED)
        assert await cluster.state("a", second.txnId) == State.OPEN
        cluster.components.decisions.check()


@pytest.mark.parametrize("ends", ["open", "committing"])
async def test_h20_a_sweep_leaves_the_transactions_of_a_stream_created_again(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep has listed both streams and waits for the log at the first of them."""
    cluster = await cluster_with()
    await cluster.create("b")
    completer = cluster.components.completer
    async with cluster.finishing():
        for stream in ("b", "a"):
            begun = await cluster.begin(stream)
            await cluster.commit(stream, begun.txnId)
            await cluster.settled(stream)
        arrived, go_on = asyncio.Event(), asyncio.Event()
        drop = completer.drop

        async def slow(states: StreamTransactions, transaction_ids: list[int]) -> None:
            if states.stream == "b":
                arrived.set()
                await go_on.wait()
            await drop(states, transaction_ids)

        with monkeypatch.context() as patch:
            patch.setattr(completer, "drop", slow)
            sweep = asyncio.create_task(cluster.components.completer.forget_old())
            await arrived.wait()
            await cluster.streams.seal("s", "a")
            await cluster.streams.delete("s", "a")
            await cluster.create("a")
            begun = await cluster.begin("a")
            await cluster.write("a", begun, [b"live"])
            if ends == "committing":
                # It stays so, as long as its container does not answer.
                cluster.segments._plan = NoMergePlan()
                assert await cluster.commit("a", begun.txnId) == Status.SUCCESS
            go_on.set()
            await sweep
        if ends == "open":
            assert await cluster.state("a", begun.txnId) == State.OPEN
            assert await cluster.commit("a", begun.txnId) == Status.SUCCESS
        else:
            assert await cluster.state("a", begun.txnId) == State.COMMITTING
            cluster.segments._plan = CrashPlan()
        await cluster.settled("a")
        assert await cluster.state("a", begun.txnId) == State.COMMITTED
