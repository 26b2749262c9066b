"""Stages: many transactions that are committed as one, once for each version of an application."""

import asyncio
import dataclasses

import pytest

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.controller_api import staged_commits_pb2 as own_api
from segmentstore.codec.controller_records.transaction_records import TransactionState
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.contracts.identifiers import EVENT_COUNT
from segmentstore.controller.errors import (
    MetadataConflictError,
    PreconditionError,
    RetryLaterError,
    StreamNotFoundError,
    StreamSealedError,
)
from segmentstore.controller.settings import ControllerSettings, TransactionSettings
from segmentstore.controller.transactions.staged_commits import TooManyApplicationsError
from segmentstore.controller.transactions.transaction_table import TransactionTable
from segmentstore.controller.transactions.transactions import PingStatus
from tests.controller.transactions.feature_cluster import FeatureCluster, State
from tests.controller.transactions.staging import (
    abort,
    begin,
    commit,
    last_version,
    stage,
    state_counts,
    txn,
)

Status = api.TxnStatus.Status


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


async def test_stages_appear_together_in_the_order_in_which_they_are_named() -> None:
    cluster = await cluster_with()
    async with cluster.finishing():
        stages = [await stage(cluster, [b"%d.0" % n, b"%d.1" % n]) for n in range(3)]
        assert await cluster.read_all("a") == {0: [], 1: []}
        answer = await commit(cluster, stages[::-1], version=0)
        assert (answer.duplicate, answer.completed, len(answer.transaction_ids)) == (
            False,
            False,
            1,
        )
        await cluster.settled("a")
        answer = await commit(cluster, stages[::-1], version=0)
        assert (answer.duplicate, answer.completed, len(answer.transaction_ids)) == (True, True, 1)
    assert await cluster.read_all("a") == {
        0: [b"2.0", b"1.0", b"0.0"],
        1: [b"2.1", b"1.1", b"0.1"],
    }
    attributes = await cluster.memory_segments.attributes("s/a/0.#epoch.0")
    assert attributes[EVENT_COUNT] == 3
    await cluster.check()


async def test_a_segment_takes_in_all_stages_in_one_step() -> None:
    cluster = await cluster_with(segments=1)
    stages = [await stage(cluster, [b"%d" % n]) for n in range(5)]
    seen: set[int] = set()
    async with cluster.finishing():
        await commit(cluster, stages, version=0)
        while cluster.has_work("a"):
            seen.add(len((await cluster.read_all("a"))[0]))
            await asyncio.sleep(0)
    assert seen <= {0, 5}
    assert (await cluster.read_all("a"))[0] == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_replay_adds_nothing_and_its_stages_are_aborted() -> None:
    cluster = await cluster_with(segments=1)
    async with cluster.finishing():
        await commit(cluster, [await stage(cluster, [b"once"])], version=7)
        await cluster.settled("a")
        for version in (7, 3):
            again = await commit(cluster, [await stage(cluster, [b"twice"])], version=version)
            assert again.duplicate
            await cluster.settled("a")
        await commit(cluster, [await stage(cluster, [b"next"])], version=8)
        await cluster.settled("a")
    assert await cluster.read_all("a") == {0: [b"once", b"next"]}
    assert state_counts(cluster) == {TransactionState.COMMITTED: 2, TransactionState.ABORTED: 2}
    assert await last_version(cluster) == 8
    assert await last_version(cluster, "other") is None


async def test_a_replay_is_recognised_for_as_long_as_the_stream_lives() -> None:
    cluster = await cluster_with(
        segments=1, settings=TransactionSettings(completed_seconds=0.0, completed_per_stream_max=0)
    )
    async with cluster.finishing():
        await commit(cluster, [await stage(cluster, [b"once"])], version=1)
        await commit(
            cluster,
            [await stage(cluster, [b"loose"])],
            version=1,
            application="forgettable",
            forgettable=True,
        )
        await cluster.settled("a")
        await cluster.components.completer.forget_old()
    assert state_counts(cluster) == {}
    await cluster.restart()
    assert await last_version(cluster) == 1
    assert await last_version(cluster, "forgettable") is None
    async with cluster.finishing():
        again = await commit(cluster, [await stage(cluster, [b"twice"])], version=1)
        assert again.duplicate
        assert again.completed
        await cluster.settled("a")
        await cluster.streams.seal("s", "a")
        await cluster.streams.delete("s", "a")
        await cluster.create("a", segments=1)
        assert await last_version(cluster) is None
        assert not (await commit(cluster, [await stage(cluster, [b"new"])], version=1)).duplicate
        await cluster.settled("a")
    assert list((await cluster.read_all("a")).values()) == [[b"new"]]


async def test_a_commit_without_stages_is_remembered_too() -> None:
    cluster = await cluster_with(segments=1)
    async with cluster.finishing():
        assert not (await commit(cluster, [], version=1)).duplicate
        again = await commit(cluster, [await stage(cluster, [b"late"])], version=1)
        assert (again.duplicate, again.completed) == (True, True)
        await cluster.settled("a")
    assert await cluster.read_all("a") == {0: []}


async def test_two_calls_at_once_commit_once() -> None:
    cluster = await cluster_with(segments=1)
    async with cluster.finishing():
        first, second = await stage(cluster, [b"one"]), await stage(cluster, [b"two"])
        answers = await asyncio.gather(
            commit(cluster, [first], version=1),
            commit(cluster, [second], version=1),
            commit(cluster, [first], version=1),
        )
        await cluster.settled("a")
    assert [each.duplicate for each in answers] == [False, True, True]
    assert await cluster.read_all("a") == {0: [b"one"]}


async def test_all_stages_are_committed_or_none() -> None:
    cluster = await cluster_with(segments=1)
    async with cluster.finishing():
        kept, lost = await stage(cluster, [b"kept"]), await stage(cluster, [b"lost"])
        assert await abort(cluster, lost) == Status.SUCCESS
        with pytest.raises(PreconditionError):
            await commit(cluster, [kept, lost], version=1)
        with pytest.raises(PreconditionError):
            await commit(cluster, [kept, bytes(15) + b"\x07"], version=1)
        assert await last_version(cluster) is None
        await cluster.settled("a")
        assert await cluster.read_all("a") == {0: []}
        await commit(cluster, [kept], version=1)
        await cluster.settled("a")
    assert await cluster.read_all("a") == {0: [b"kept"]}


async def test_a_stage_that_was_aborted_behind_the_remembered_states_is_found_out() -> None:
    cluster = await cluster_with(segments=1)
    kept, lost = await stage(cluster, [b"kept"]), await stage(cluster, [b"lost"])
    states = cluster.components.transaction_states.stream("s", "a")
    name = states.name(int.from_bytes(lost, "big"))
    record = states.record(name.transaction_id)
    aborting = dataclasses.replace(record, state=TransactionState.ABORTING)
    await TransactionTable(tables=cluster.memory_tables).replace({name: (record, aborting)})
    async with cluster.finishing():
        with pytest.raises(MetadataConflictError):
            await commit(cluster, [kept, lost], version=1)
        with pytest.raises(PreconditionError):
            await commit(cluster, [kept, lost], version=1)
        assert not (await commit(cluster, [kept], version=1)).duplicate
        await cluster.settled("a")
    assert await cluster.read_all("a") == {0: [b"kept"]}
    cluster.components.transaction_states.check()
    cluster.components.decisions.check()


async def test_an_abort_of_a_committed_stage_changes_nothing() -> None:
    cluster = await cluster_with(segments=1)
    only = await stage(cluster, [b"one"])
    await commit(cluster, [only], version=1)
    assert await abort(cluster, only) == Status.FAILURE
    assert await cluster.state("a", txn(only)) == State.COMMITTING
    async with cluster.finishing():
        await cluster.settled("a")
        assert await abort(cluster, only) == Status.TRANSACTION_NOT_FOUND
    assert await cluster.read_all("a") == {0: [b"one"]}


async def test_stages_of_failed_tasks_end_with_their_lease() -> None:
    cluster = await cluster_with(settings=TransactionSettings(lease_ms_min=10))
    async with cluster.finishing():
        left = await begin(cluster, lease_ms=20)
        kept = await stage(cluster, [b"kept"])
        while await cluster.state("a", txn(left.transaction_id)) != State.ABORTED:
            await asyncio.sleep(0.005)
        assert await cluster.state("a", txn(kept)) == State.OPEN
    cluster.components.decisions.check()
    assert len([name for name in cluster.memory_segments.names() if "transaction" in name]) == 2


async def test_a_lease_of_a_stage_may_last_for_days_and_that_of_a_transaction_may_not() -> None:
    cluster = await cluster_with()
    await begin(cluster, lease_ms=7 * 86_400_000)
    for lease_ms in (9_999, 7 * 86_400_000 + 1):
        with pytest.raises(InvalidRequestError):
            await begin(cluster, lease_ms=lease_ms)
    with pytest.raises(InvalidRequestError):
        await cluster.begin("a", lease_ms=86_400_000)
    stage_id = (await begin(cluster)).transaction_id
    assert await cluster.ping("a", txn(stage_id), lease_ms=10_000) == PingStatus.Status.OK


async def test_stages_of_two_epochs_are_committed_in_the_order_of_the_epochs() -> None:
    cluster = await cluster_with(segments=1)
    async with cluster.finishing():
        before = await stage(cluster, [b"before"])
        await cluster.scale("a", [(0.0, 0.5), (0.5, 1.0)])
        for segment_id in await cluster.current("a"):
            await cluster.append_event("a", segment_id, b"between")
        behind = await stage(cluster, [b"behind 0", b"behind 1"])
        answer = await commit(cluster, [behind, before], version=1)
        assert len(answer.transaction_ids) == 2
        await cluster.settled("a")
        assert (await commit(cluster, [behind, before], version=1)).completed
    read = await cluster.read_in_order("a")
    assert read[:3] == [b"between", b"between", b"before"]
    assert sorted(read[3:]) == [b"behind 0", b"behind 1"]
    await cluster.check()


async def test_stages_keep_their_place_among_other_commits() -> None:
    cluster = await cluster_with(segments=1)
    plain = [await cluster.begin("a") for _ in range(2)]
    for number, each in enumerate(plain):
        await cluster.write("a", each, [b"plain %d" % number])
    stages = [await stage(cluster, [b"stage %d" % n]) for n in range(2)]
    async with cluster.finishing():
        await cluster.commit("a", plain[0].txnId)
        await commit(cluster, stages, version=1)
        await cluster.commit("a", plain[1].txnId)
        await cluster.settled("a")
    assert await cluster.read_all("a") == {0: [b"plain 0", b"stage 0", b"stage 1", b"plain 1"]}


async def test_sealing_a_stream_finishes_what_commits_and_aborts_other_stages() -> None:
    cluster = await cluster_with(segments=1)
    async with cluster.finishing():
        committed, left = await stage(cluster, [b"one"]), await stage(cluster, [b"two"])
        await commit(cluster, [committed], version=1)
        await cluster.streams.seal("s", "a")
        assert await cluster.read_all("a") == {0: [b"one"]}
        assert await cluster.state("a", txn(left)) == State.ABORTED
        with pytest.raises((PreconditionError, StreamSealedError)):
            await commit(cluster, [left], version=2)
        assert (await commit(cluster, [committed], version=1)).completed
        with pytest.raises(StreamSealedError):
            await begin(cluster)
    await cluster.check()


async def test_what_is_staged_and_remembered_is_bounded() -> None:
    cluster = await cluster_with(
        settings=TransactionSettings(stages_per_stream_max=1, fences_per_stream_max=1)
    )
    only = await stage(cluster, [b"one"])
    with pytest.raises(RetryLaterError):
        await begin(cluster)
    await commit(cluster, [only], version=1)
    with pytest.raises(TooManyApplicationsError):
        await commit(cluster, [], version=1, application="other")
    await commit(cluster, [], version=2)


async def test_requests_that_make_no_sense_are_refused() -> None:
    cluster = await cluster_with()
    only = await stage(cluster, [])
    for application, stages in (("", [only]), ("x" * 257, [only]), ("job", [only, only])):
        with pytest.raises(InvalidRequestError):
            await commit(cluster, stages, version=1, application=application)
    with pytest.raises(InvalidRequestError):
        await commit(cluster, [b"short"], version=1)
    with pytest.raises(StreamNotFoundError):
        await cluster.components.staged_commits.commit(
            own_api.CommitStagesRequest(scope="s", stream="b", application_id="job", version=1)
        )
    assert cluster.components.transaction_states.known("s", "b") is None
