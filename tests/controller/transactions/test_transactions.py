"""What the verbs of transactions promise."""

import asyncio
from asyncio import Future
from collections.abc import Sequence

import pytest

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.controller_records.transaction_records import (
    TransactionRecord,
    TransactionState,
)
from segmentstore.codec.stream_names import segment_id_of, transaction_epoch_of
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.contracts.identifiers import EVENT_COUNT
from segmentstore.contracts.tables import TableEntry
from segmentstore.controller.errors import (
    RetryLaterError,
    StreamNotFoundError,
    StreamSealedError,
)
from segmentstore.controller.settings import ControllerSettings, TransactionSettings
from segmentstore.controller.transactions.transaction_table import (
    TransactionName,
    TransactionTable,
)
from tests.controller.transactions.feature_cluster import FeatureCluster, State, id_of
from tests.reference.memory_tables import MemoryTable

Status = api.TxnStatus.Status
Ping = api.PingTxnStatus.Status


async def cluster_with(
    *, segments: int = 2, settings: TransactionSettings | None = None
) -> FeatureCluster:
    cluster = FeatureCluster(
        settings=ControllerSettings(transactions=settings or TransactionSettings())
    )
    await cluster.start()
    await cluster.scopes.create("s")
    await cluster.create("a", segments=segments)
    return cluster


async def test_a_begun_transaction_has_a_segment_beside_each_current_one() -> None:
    cluster = await cluster_with(segments=3)
    begun = await cluster.begin("a")
    assert [each.segmentId.segmentId for each in begun.activeSegments] == [0, 1, 2]
    assert [(each.minKey, each.maxKey) for each in begun.activeSegments] == [
        (0.0, 1 / 3),
        (1 / 3, 2 / 3),
        (2 / 3, 1.0),
    ]
    digits = f"{id_of(begun.txnId):032x}"
    for number in range(3):
        assert f"s/a/{number}.#epoch.0#transaction.{digits}" in cluster.memory_segments.names()
    assert await cluster.state("a", begun.txnId) == State.OPEN


async def test_an_id_carries_the_epoch_and_its_lower_half_is_not_negative() -> None:
    cluster = await cluster_with(segments=1)
    await cluster.scale("a", [(0.0, 0.5), (0.5, 1.0)])
    ids = [(await cluster.begin("a")).txnId for _ in range(20)]
    assert all(each.lowBits >= 0 for each in ids)
    assert all(transaction_epoch_of(id_of(each)) == 1 for each in ids)
    assert len({id_of(each) for each in ids}) == 20


async def test_a_commit_moves_the_events_into_the_stream_and_drops_the_segments() -> None:
    cluster = await cluster_with(segments=2)
    async with cluster.finishing():
        begun = await cluster.begin("a")
        await cluster.write("a", begun, [b"one", b"two", b"three"])
        assert await cluster.read_all("a") == {0: [], 1: []}
        assert await cluster.commit("a", begun.txnId) == Status.SUCCESS
        await cluster.settled("a")
    assert await cluster.state("a", begun.txnId) == State.COMMITTED
    assert await cluster.read_all("a") == {0: [b"one", b"three"], 1: [b"two"]}
    assert not [name for name in cluster.memory_segments.names() if "transaction" in name]
    attributes = await cluster.memory_segments.attributes("s/a/0.#epoch.0")
    assert attributes[EVENT_COUNT] == 2
    await cluster.check()


async def test_an_abort_drops_the_events() -> None:
    cluster = await cluster_with()
    async with cluster.finishing():
        begun = await cluster.begin("a")
        await cluster.write("a", begun, [b"one", b"two"])
        assert await cluster.abort("a", begun.txnId) == Status.SUCCESS
        await cluster.settled("a")
    assert await cluster.state("a", begun.txnId) == State.ABORTED
    assert await cluster.read_all("a") == {0: [], 1: []}
    await cluster.check()


async def test_the_first_decision_stands() -> None:
    cluster = await cluster_with()
    async with cluster.finishing():
        kept, dropped = await cluster.begin("a"), await cluster.begin("a")
        await cluster.commit("a", kept.txnId)
        await cluster.abort("a", dropped.txnId)
        for _ in range(2):
            assert await cluster.abort("a", kept.txnId) == Status.FAILURE
            assert await cluster.commit("a", kept.txnId) == Status.SUCCESS
            assert await cluster.commit("a", dropped.txnId) == Status.FAILURE
            assert await cluster.abort("a", dropped.txnId) == Status.SUCCESS
            await cluster.settled("a")
    assert await cluster.state("a", kept.txnId) == State.COMMITTED
    assert await cluster.state("a", dropped.txnId) == State.ABORTED


async def test_a_commit_and_an_abort_at_once_agree_on_one_outcome() -> None:
    cluster = await cluster_with()
    async with cluster.finishing():
        begun = await cluster.begin("a")
        committed, aborted, again = await asyncio.gather(
            cluster.commit("a", begun.txnId),
            cluster.abort("a", begun.txnId),
            cluster.commit("a", begun.txnId),
        )
        await cluster.settled("a")
    assert (committed, aborted, again) == (Status.SUCCESS, Status.FAILURE, Status.SUCCESS)


async def test_commits_take_effect_in_the_order_of_their_calls() -> None:
    cluster = await cluster_with(segments=1)
    async with cluster.finishing():
        begun = [await cluster.begin("a") for _ in range(20)]
        for number, each in enumerate(begun):
            await cluster.write("a", each, [b"%d" % number])
        order = list(range(20))
        cluster.random.shuffle(order)
        await asyncio.gather(*(cluster.commit("a", begun[number].txnId) for number in order))
        await cluster.settled("a")
    assert await cluster.read_all("a") == {0: [b"%d" % number for number in order]}


async def test_a_commit_is_answered_when_it_is_durable_and_not_when_it_is_done() -> None:
    cluster = await cluster_with()
    begun = await cluster.begin("a")
    assert await cluster.commit("a", begun.txnId) == Status.SUCCESS
    assert await cluster.state("a", begun.txnId) == State.COMMITTING
    await cluster.restart()
    assert await cluster.state("a", begun.txnId) == State.COMMITTING
    async with cluster.finishing():
        await cluster.settled("a")
    assert await cluster.state("a", begun.txnId) == State.COMMITTED


async def test_unknown_transactions_and_streams_are_told_apart() -> None:
    cluster = await cluster_with()
    foreign = api.TxnId(highBits=7, lowBits=7)
    assert await cluster.commit("a", foreign) == Status.TRANSACTION_NOT_FOUND
    assert await cluster.abort("a", foreign) == Status.TRANSACTION_NOT_FOUND
    assert await cluster.commit("b", foreign) == Status.STREAM_NOT_FOUND
    assert await cluster.state("a", foreign) == State.UNKNOWN
    assert await cluster.ping("a", foreign, lease_ms=10_000) == Ping.UNKNOWN
    with pytest.raises(StreamNotFoundError):
        await cluster.begin("b")
    assert cluster.components.transaction_states.all() == []


async def test_leases_have_limits() -> None:
    cluster = await cluster_with()
    for lease_ms in (9_999, 600_001):
        with pytest.raises(InvalidRequestError):
            await cluster.begin("a", lease_ms=lease_ms)
    begun = await cluster.begin("a", lease_ms=600_000)
    assert await cluster.ping("a", begun.txnId, lease_ms=600_001) == Ping.LEASE_TOO_LARGE
    assert await cluster.ping("a", begun.txnId, lease_ms=600_000) == Ping.OK


async def test_a_ping_says_how_a_transaction_ended() -> None:
    cluster = await cluster_with()
    kept, dropped = await cluster.begin("a"), await cluster.begin("a")
    await cluster.commit("a", kept.txnId)
    await cluster.abort("a", dropped.txnId)
    assert await cluster.ping("a", kept.txnId, lease_ms=10_000) == Ping.COMMITTED
    assert await cluster.ping("a", dropped.txnId, lease_ms=10_000) == Ping.ABORTED


async def test_a_commit_with_the_name_of_a_writer_that_no_writer_has_is_refused() -> None:
    cluster = await cluster_with()
    begun = await cluster.begin("a")
    with pytest.raises(InvalidRequestError):
        await cluster.commit("a", begun.txnId, writer="w" * 513, timestamp=1)
    assert await cluster.state("a", begun.txnId) == State.OPEN
    assert await cluster.commit("a", begun.txnId, writer="w" * 512, timestamp=1) == Status.SUCCESS


async def test_a_transaction_that_nobody_pings_is_aborted() -> None:
    cluster = await cluster_with(settings=TransactionSettings(lease_ms_min=10))
    silent = await cluster.begin("a", lease_ms=20)
    pinged = await cluster.begin("a", lease_ms=20)
    # Before any lease is looked at: else this one may have ended as well, where the process stood still meanwhile.
    assert await cluster.ping("a", pinged.txnId, lease_ms=60_000) == Ping.OK
    async with cluster.finishing():
        while await cluster.state("a", silent.txnId) != State.ABORTED:
            await asyncio.sleep(0.005)
        assert await cluster.state("a", pinged.txnId) == State.OPEN
        assert await cluster.commit("a", silent.txnId) == Status.FAILURE
    cluster.components.decisions.check()


async def test_a_lease_begins_anew_when_the_controller_does() -> None:
    cluster = await cluster_with(settings=TransactionSettings(lease_ms_min=10, lease_ms_max=40))
    begun = await cluster.begin("a", lease_ms=20)
    cluster.clock.ms += 86_400_000
    await cluster.restart()
    assert await cluster.state("a", begun.txnId) == State.OPEN
    async with cluster.finishing():
        while await cluster.state("a", begun.txnId) != State.ABORTED:
            await asyncio.sleep(0.005)
    assert not [name for name in cluster.memory_segments.names() if "transaction" in name]


async def test_a_longer_lease_that_a_ping_asked_for_is_kept_when_the_controller_begins_anew() -> (
    None
):
    cluster = await cluster_with(settings=TransactionSettings(lease_ms_min=10))
    pinged = await cluster.begin("a", lease_ms=20)
    assert await cluster.ping("a", pinged.txnId, lease_ms=60_000) == Ping.OK
    await cluster.restart()
    # Begun later, for as long as the other was: once this one has ended, the other would have too.
    silent = await cluster.begin("a", lease_ms=20)
    async with cluster.finishing():
        while await cluster.state("a", silent.txnId) != State.ABORTED:
            await asyncio.sleep(0.005)
        assert await cluster.state("a", pinged.txnId) == State.OPEN
        # From its first ping on the transaction has again what its owner asks for.
        assert await cluster.ping("a", pinged.txnId, lease_ms=20) == Ping.OK
        while await cluster.state("a", pinged.txnId) != State.ABORTED:
            await asyncio.sleep(0.005)
    await cluster.check()


async def test_open_transactions_of_a_stream_are_bounded() -> None:
    cluster = await cluster_with(settings=TransactionSettings(open_per_stream_max=2))
    first = await cluster.begin("a")
    await cluster.begin("a")
    with pytest.raises(RetryLaterError):
        await cluster.begin("a")
    async with cluster.finishing():
        await cluster.abort("a", first.txnId)
        await cluster.settled("a")
        await cluster.begin("a")


async def test_finished_transactions_are_listed_and_forgotten_in_the_end() -> None:
    cluster = await cluster_with(
        settings=TransactionSettings(completed_per_stream_max=2, listed_max=10)
    )
    request = api.ListCompletedTxnRequest(streamInfo=cluster.info("a"))
    async with cluster.finishing():
        begun = [await cluster.begin("a") for _ in range(3)]
        for each in begun[:2]:
            await cluster.commit("a", each.txnId)
            await cluster.settled("a")
        await cluster.abort("a", begun[2].txnId)
        await cluster.settled("a")
        listed = await cluster.transactions.list_completed_transactions(request)
        assert [(id_of(each.txnId), each.status) for each in listed.response] == [
            (id_of(begun[2].txnId), api.TxnResponse.Status.ABORTED),
            (id_of(begun[1].txnId), api.TxnResponse.Status.COMMITTED),
            (id_of(begun[0].txnId), api.TxnResponse.Status.COMMITTED),
        ]
        await cluster.components.completer.forget_old()
        assert await cluster.state("a", begun[0].txnId) == State.UNKNOWN
        assert await cluster.state("a", begun[1].txnId) == State.COMMITTED
    await cluster.restart()
    assert await cluster.state("a", begun[0].txnId) == State.UNKNOWN
    assert await cluster.state("a", begun[2].txnId) == State.ABORTED


@pytest.mark.parametrize("ends", ["sweep", "deletion"])
async def test_finished_ones_that_are_forgotten_together_leave_the_table_in_pieces(
    ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream finishes ten thousand between two sweeps: in one batch, nothing else ran for most of a second."""
    cluster = await cluster_with(settings=TransactionSettings(completed_per_stream_max=0))
    record = TransactionRecord(state=TransactionState.ABORTED, lease_ms=0, created_ms=0)
    await TransactionTable(tables=cluster.memory_tables).replace(
        {TransactionName("s", "a", number): (None, record) for number in range(1_100)}
    )
    await cluster.restart()
    [states] = cluster.components.transaction_states.all()
    assert len(states.finished()) == 1_100
    batches: list[int] = []
    update = MemoryTable.update

    def counted(
        table: MemoryTable, entries: Sequence[TableEntry], *, offset: int | None = None
    ) -> "Future[Sequence[int]]":
        batches.append(len(entries))
        return update(table, entries, offset=offset)

    monkeypatch.setattr(MemoryTable, "update", counted)
    if ends == "sweep":
        await cluster.components.completer.forget_old()
    else:
        await cluster.streams.seal("s", "a")
        await cluster.streams.delete("s", "a")
    assert sum(batches) >= 1_100
    assert max(batches) <= 500
    await cluster.restart()
    assert cluster.components.transaction_states.all() == []


async def test_sealing_a_stream_aborts_what_is_open_and_finishes_what_commits() -> None:
    cluster = await cluster_with()
    async with cluster.finishing():
        opened, committing = await cluster.begin("a"), await cluster.begin("a")
        await cluster.write("a", opened, [b"no"])
        await cluster.write("a", committing, [b"yes", b"too"])
        await cluster.commit("a", committing.txnId)
        await cluster.streams.seal("s", "a")
        assert await cluster.state("a", opened.txnId) == State.ABORTED
        assert await cluster.state("a", committing.txnId) == State.COMMITTED
        assert await cluster.read_all("a") == {0: [b"yes"], 1: [b"too"]}
        with pytest.raises(StreamSealedError):
            await cluster.begin("a")
    await cluster.check()


async def test_a_transaction_that_begins_while_the_stream_is_sealed_is_refused_or_aborted() -> None:
    cluster = await cluster_with()
    async with cluster.finishing():
        begins = [asyncio.create_task(cluster.begin("a")) for _ in range(5)]
        await asyncio.sleep(0)
        await cluster.streams.seal("s", "a")
        for outcome in await asyncio.gather(*begins, return_exceptions=True):
            if isinstance(outcome, BaseException):
                assert isinstance(outcome, StreamSealedError)
            else:
                assert await cluster.state("a", outcome.txnId) == State.ABORTED
    await cluster.check()


async def test_a_deleted_stream_takes_the_memory_of_its_transactions_along() -> None:
    cluster = await cluster_with()
    async with cluster.finishing():
        begun = await cluster.begin("a")
        await cluster.commit("a", begun.txnId)
        await cluster.streams.seal("s", "a")
        await cluster.streams.delete("s", "a")
        await cluster.create("a", segments=1)
        assert await cluster.state("a", begun.txnId) == State.UNKNOWN
        again = await cluster.begin("a")
        await cluster.write("a", again, [b"new"])
        await cluster.commit("a", again.txnId)
        await cluster.settled("a")
        assert await cluster.read_all("a") == {segment_id_of(number=2, creation_epoch=0): [b"new"]}
    await cluster.restart()
    assert await cluster.state("a", begun.txnId) == State.UNKNOWN


async def test_a_controller_that_starts_again_after_a_fault_believes_the_table() -> None:
    cluster = await cluster_with()
    async with cluster.finishing():
        opened, kept = await cluster.begin("a"), await cluster.begin("a")
        await cluster.commit("a", kept.txnId)
        await cluster.settled("a")
    states = cluster.components.transaction_states
    states.follow_table(states.stream("s", "a").name(id_of(opened.txnId)), None)
    await cluster.transactions.start()
    assert await cluster.state("a", opened.txnId) == State.OPEN
    assert await cluster.state("a", kept.txnId) == State.COMMITTED
    cluster.components.decisions.check()
