"""Goal: a controller knows what another one did while its containers were away, without a new process.

Method: two processes over one log and one Tier 2, in simulated time. The first works, the second takes the containers
over and works, the first gets them back; whatever the second told its clients is asked of the first.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import count
from random import Random
from struct import pack

import pytest

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.controller_records.stream_records import StreamState
from segmentstore.codec.stream_names import (
    segment_name,
    transaction_id_of,
    transaction_segment,
)
from segmentstore.contracts.errors import ErrorKind, SegmentStoreError
from segmentstore.controller.errors import ControllerRestartedError
from tests.host.shared_store import SharedTiers, StoreProcess
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation

pytestmark = pytest.mark.simulation

LEASE_MS = 30_000
AFTER_EVERY_LEASE_SECONDS = 700.0
STREAM = api.StreamInfo(scope="s", stream="a")
RETRIED = (ErrorKind.UNAVAILABLE, ErrorKind.FULL, ErrorKind.FENCED)
"""Kinds that become codes on which clients come back."""

HandOver = Callable[[StoreProcess, StoreProcess], Awaitable[None]]


async def by_a_move(before: StoreProcess, after: StoreProcess) -> None:
    """The one stops its containers, the other starts them."""
    before.assignments.assign()
    await before.until_it_has_nothing()
    await after.take_over()


async def by_a_fence(before: StoreProcess, after: StoreProcess) -> None:
    """The other starts them; the one finds out when it writes."""
    await after.take_over()
    with pytest.raises(SegmentStoreError) as refused:
        await before.call("createScope", api.ScopeInfo(scope="late"), api.CreateScopeStatus)
    assert refused.value.kind in RETRIED
    await before.until_it_has_nothing()


async def create(process: StoreProcess, stream: str) -> None:
    config = api.StreamConfig(
        streamInfo=api.StreamInfo(scope="s", stream=stream),
        scalingPolicy=api.ScalingPolicy(minNumSegments=1),
    )
    answer = await process.call("createStream", config, api.CreateStreamStatus)
    assert answer.status == api.CreateStreamStatus.Status.SUCCESS


async def begin(process: StoreProcess, event: bytes) -> api.TxnId:
    """A transaction with one event in it."""
    request = api.CreateTxnRequest(streamInfo=STREAM, lease=LEASE_MS)
    begun = await process.call("createTransaction", request, api.CreateTxnResponse)
    transaction_id = transaction_id_of(high=begun.txnId.highBits, low=begun.txnId.lowBits)
    parent = segment_name("s", "a", begun.activeSegments[0].segmentId.segmentId)
    async with process.segments.open_segment(transaction_segment(parent, transaction_id)) as found:
        await found.append(pack(">ii", 0, len(event)) + event, events=1)
    return begun.txnId


async def commit(process: StoreProcess, txn: api.TxnId) -> str:
    request = api.TxnRequest(streamInfo=STREAM, txnId=txn)
    answer = await process.call("commitTransaction", request, api.TxnStatus)
    return api.TxnStatus.Status.Name(answer.status)


async def ping(process: StoreProcess, txn: api.TxnId) -> str:
    request = api.PingTxnRequest(streamInfo=STREAM, txnId=txn, lease=LEASE_MS)
    answer = await process.call("pingTransaction", request, api.PingTxnStatus)
    return api.PingTxnStatus.Status.Name(answer.status)


async def state(process: StoreProcess, txn: api.TxnId) -> str:
    request = api.TxnRequest(streamInfo=STREAM, txnId=txn)
    answer = await process.call("checkTransactionState", request, api.TxnState)
    return api.TxnState.State.Name(answer.state)


async def until_committed(process: StoreProcess, txn: api.TxnId) -> None:
    while await state(process, txn) != "COMMITTED":
        await asyncio.sleep(0.05)


async def streams(process: StoreProcess) -> list[str]:
    request = api.StreamsInScopeRequest(scope=api.ScopeInfo(scope="s"))
    answer = await process.call("listStreamsInScope", request, api.StreamsInScopeResponse)
    return [each.stream for each in answer.streams if not each.stream.startswith("_")]


async def completed(process: StoreProcess) -> list[tuple[int, str]]:
    request = api.ListCompletedTxnRequest(streamInfo=STREAM)
    answer = await process.call("listCompletedTransactions", request, api.ListCompletedTxnResponse)
    return [
        (each.txnId.lowBits, api.TxnResponse.Status.Name(each.status)) for each in answer.response
    ]


async def length(process: StoreProcess) -> int:
    current = await process.call("getCurrentSegments", STREAM, api.SegmentRanges)
    [active] = [each.segmentId.segmentId for each in current.segmentRanges]
    return (await process.segments.info(segment_name("s", "a", active))).length


async def prepared(process: StoreProcess) -> None:
    await process.take_over()
    await process.call("createScope", api.ScopeInfo(scope="s"), api.CreateScopeStatus)
    await create(process, "a")


@pytest.mark.parametrize("hand_over", [by_a_move, by_a_fence])
def test_a_controller_knows_what_another_one_did_while_its_containers_were_away(
    hand_over: HandOver, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(loop: SimLoop) -> None:
        tiers = SharedTiers()
        first, second = StoreProcess(tiers, "first"), StoreProcess(tiers, "second")
        async with first.working(), second.working():
            await prepared(first)
            mine = await begin(first, b"mine")
            await hand_over(first, second)
            assert await ping(second, mine) == "OK"
            assert await commit(second, mine) == "SUCCESS"
            await until_committed(second, mine)
            ended, held = await begin(second, b"ended"), await begin(second, b"held")
            assert await commit(second, ended) == "SUCCESS"
            await create(second, "b")
            await hand_over(second, first)
            assert await streams(first) == ["a", "b"]
            assert await ping(first, held) == "OK"
            # Committed there, asked for again here: once.
            assert await commit(first, mine) == "SUCCESS"
            await until_committed(first, ended)
            assert {each for _, each in await completed(first)} == {"COMMITTED"}
            assert await length(first) == len(b"mine") + len(b"ended") + 2 * 8
            assert first.supervisor.metrics() == {
                "controller_ready": 1.0,
                "controller_lives_total": 2.0,
            }
            await asyncio.sleep(AFTER_EVERY_LEASE_SECONDS)
            assert await state(first, held) == "ABORTED"
            assert (held.lowBits, "ABORTED") in await completed(first)
            first.controller.components.decisions.check()
            assert not first.supervisor.complaints()

    with caplog.at_level(logging.WARNING):
        run_simulation(1, main)
    assert "the controller starts anew: a container of its tables has ended" in caplog.text


@pytest.mark.parametrize("turns", [*range(12), *range(12, 200, 20)])
def test_h24_who_had_its_containers_back_before_it_missed_them_calls_nothing_absent(
    turns: int,
) -> None:
    async def main(loop: SimLoop) -> None:
        tiers = SharedTiers()
        first, second = StoreProcess(tiers, "first"), StoreProcess(tiers, "second")
        async with first.working(), second.working():
            await prepared(first)
            # The first idles: nothing tells it that its logs are another one's.
            await second.take_over()
            await create(second, "b")
            second.assignments.assign()
            await second.until_it_has_nothing()
            first.assignments.assign()
            first.assign_all()
            # It hears of it in the next turn of the loop.
            for _ in range(1 + turns):
                await asyncio.sleep(0)
            refused, lengths = 0, list[int]()
            while not lengths:
                try:
                    lengths.append((await first.segments.info(segment_name("s", "b", 0))).length)
                except SegmentStoreError as error:
                    if error.kind not in RETRIED:
                        raise
                    refused += 1
                    await asyncio.sleep(0.001)
            assert lengths == [0]
            assert refused, "it was never asked while its containers began anew"
            assert await streams(first) == ["a", "b"]
            assert first.assignments.failures == []

    run_simulation(1, main)


@pytest.mark.parametrize("turns", [*range(0, 60, 4), *range(60, 400, 40)])
def test_an_operation_that_another_controller_left_half_done_is_finished_unasked(
    turns: int,
) -> None:
    async def main(loop: SimLoop) -> None:
        tiers = SharedTiers()
        first, second = StoreProcess(tiers, "first"), StoreProcess(tiers, "second")
        async with first.working(), second.working():
            await prepared(first)
            await by_a_move(first, second)
            scale = api.ScaleRequest(
                streamInfo=STREAM,
                sealedSegments=[0],
                newKeyRanges=[api.ScaleRequest.KeyRangeEntry(start=0.0, end=1.0)],
            )
            asking = asyncio.create_task(second.call("scale", scale, api.ScaleResponse))
            for _ in range(turns):
                await asyncio.sleep(0)
            first.assign_all()
            outcome = (await asyncio.gather(asking, return_exceptions=True))[0]
            assert isinstance(outcome, api.ScaleResponse) or (
                isinstance(outcome, SegmentStoreError) and outcome.kind in RETRIED
            )
            await first.take_over()
            await asyncio.sleep(1.0)
            operations = first.controller.components.streams.operations
            history = await operations.history("s", "a")
            found = (await history.state()).state
            assert found is StreamState.ACTIVE
            assert operations.unfinished_count == 0

    run_simulation(1, main)


async def one_call(process: StoreProcess, random: Random, number: int) -> None:
    """Something that a client asks for."""
    match random.randrange(5):
        case 0:
            await create(process, f"new{number}")
        case 1:
            await begin(process, b"x")
        case 2:
            await commit(process, await begin(process, b"y"))
        case 3:
            await process.call("deleteScope", api.ScopeInfo(scope="nothing"), api.DeleteScopeStatus)
        case _:
            await streams(process)


@pytest.mark.parametrize("seed", range(12))
def test_no_call_hangs_or_is_refused_for_good_while_a_container_recovers_in_place(
    seed: int,
) -> None:
    async def main(loop: SimLoop) -> None:
        random = Random(seed)
        tiers = SharedTiers()
        process = StoreProcess(tiers, "only")
        outcomes: list[BaseException | None] = []
        calm = asyncio.Event()

        async def client(number: int) -> None:
            for turn in count():
                if calm.is_set():
                    return
                async with asyncio.timeout(30):
                    try:
                        await one_call(process, random, 100 * number + turn)
                    except SegmentStoreError as error:
                        outcomes.append(error)
                    else:
                        outcomes.append(None)
                await asyncio.sleep(random.random() / 20)

        async with process.working():
            await prepared(process)
            clients = [asyncio.create_task(client(number)) for number in range(8)]
            for _ in range(4):
                await asyncio.sleep(random.random() / 10)
                for _ in range(random.randrange(50)):
                    await asyncio.sleep(0)
                lost = random.randrange(tiers.container_count)
                if random.random() < 0.5:
                    process.assignments.assign(1 - lost)
                else:
                    await tiers.fence(lost)
                while lost in process.registry.running():
                    await asyncio.sleep(0.001)
                await process.take_over()
            calm.set()
            await asyncio.gather(*clients)
        refused = [each for each in outcomes if each is not None]
        assert len(refused) < len(outcomes), "nothing was ever answered"
        for error in refused:
            assert isinstance(error, SegmentStoreError)
            assert error.kind in RETRIED, repr(error)

    run_simulation(seed, main)


def test_a_call_under_way_is_refused_so_that_its_client_comes_back() -> None:
    async def main(loop: SimLoop) -> None:
        process = StoreProcess(SharedTiers(), "only")
        async with process.working():
            await prepared(process)
            operations = process.controller.components.streams.operations
            async with operations.exclusive("s", "a"):
                # It waits for the stream, which is not given up.
                waits = asyncio.create_task(
                    process.call("sealStream", STREAM, api.UpdateStreamStatus)
                )
                await asyncio.sleep(1.0)
                process.assignments.assign()
                with pytest.raises(ControllerRestartedError):
                    await waits
            await process.until_it_has_nothing()
            [complaint] = process.supervisor.complaints()
            assert complaint.startswith("the controller does not work now: ")
            await process.take_over()
            answer = await process.call("sealStream", STREAM, api.UpdateStreamStatus)
            assert answer.status == api.UpdateStreamStatus.Status.SUCCESS

    run_simulation(1, main)
