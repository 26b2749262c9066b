"""A controller whose log is another process's by now tells nothing that is wrong, although nobody told it so.

Two controllers, one log: the old one reads what it remembers; what it writes is refused, which is how it would learn.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import TypeVar

import pytest
from google.protobuf.message import Message

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.controller_api import staged_commits_pb2 as own_api
from segmentstore.contracts.errors import ContainerStoppedError, ErrorKind, SegmentStoreError
from segmentstore.contracts.segments import SegmentApi
from segmentstore.contracts.tables import TableApi
from segmentstore.controller.api.messages import Endpoint
from segmentstore.controller.controller import Controller
from segmentstore.controller.metadata.ownership_proof import PAUSE_SECONDS
from segmentstore.controller.settings import ControllerSettings
from tests.controller.cluster import SteppingClock
from tests.controller.crashing_doors import CrashingTables, CrashPlan
from tests.http.memory_segments import MemorySegments
from tests.reference.memory_tables import MemoryTables

Answer = TypeVar("Answer", bound=Message)
Outcome = TypeVar("Outcome")

LEASE_MS = 60_000
LEASE_MS_MAX = ControllerSettings().transactions.lease_ms_max
PING = api.PingTxnStatus.Status

A = api.StreamInfo(scope="s", stream="a")
LATER = api.StreamInfo(scope="s", stream="later")
GROUP = api.ReaderGroupInfo(scope="s", readerGroup="g", readerGroupId="id-1")
GROUP_CONFIG = api.ReaderGroupConfiguration(
    scope="s", readerGroupName="g", readerGroupId="id-1", retentionType=1
)
TABLE = api.KeyValueTableInfo(scope="s", kvtName="t")


class FencedPlan(CrashPlan):
    """From `fenced` on every change finds out that the log is somebody else's."""

    fenced = False

    async def through(self, call: Callable[[], Awaitable[Outcome]]) -> Outcome:
        self.count += 1
        if self.fenced:
            raise ContainerStoppedError("fenced")
        return await call()


class Owners:
    """The one that had the log, and from `take_over` on the one that has it."""

    def __init__(self) -> None:
        self.segments = MemorySegments()
        self.memory_tables = MemoryTables()
        self.plan = FencedPlan()
        self.tables = CrashingTables(self.memory_tables, self.plan)
        self.old = _controller(self.segments, self.tables)
        self.new: Controller
        self.old_transaction: api.TxnId
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self._live(self.old)
        await ask(self.old, "createScope", api.ScopeInfo(scope="s"), api.CreateScopeStatus)
        for stream in ("a", "b"):
            await ask(self.old, "createStream", stream_config(stream), api.CreateStreamStatus)
        await ask(self.old, "sealStream", stream_info("b"), api.UpdateStreamStatus)
        self.old_transaction = await begin(self.old)

    async def take_over(self) -> None:
        self.plan.fenced = True
        self.new = _controller(self.segments, self.memory_tables.restarted())
        await self._live(self.new)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _live(self, controller: Controller) -> None:
        await controller.start()
        self._tasks.append(asyncio.create_task(controller.run()))
        while not controller.is_ready:
            await asyncio.sleep(0)


def _controller(segments: SegmentApi, tables: TableApi) -> Controller:
    return Controller(
        segments=segments,
        tables=tables,
        wall_clock=SteppingClock(),
        random=Random(1),
        locate=lambda name: Endpoint("127.0.0.1", len(name)),
        settings=ControllerSettings(),
    )


@asynccontextmanager
async def two_owners() -> AsyncIterator[Owners]:
    owners = Owners()
    try:
        await owners.start()
        await owners.take_over()
        yield owners
    finally:
        await owners.close()


async def ask(controller: Controller, name: str, request: Message, answer: type[Answer]) -> Answer:
    message = answer()
    message.ParseFromString(await controller.service.answer(name, request.SerializeToString()))
    return message


async def is_sent_away(controller: Controller, name: str, request: Message) -> bool:
    """Whether the client is told to ask again, which tells it nothing."""
    try:
        answered = await controller.service.answer(name, request.SerializeToString())
    except SegmentStoreError as error:
        return error.kind is ErrorKind.UNAVAILABLE
    raise AssertionError(f"{name} was answered {answered!r}")


def stream_info(stream: str) -> api.StreamInfo:
    return api.StreamInfo(scope="s", stream=stream)


def stream_config(stream: str) -> api.StreamConfig:
    return api.StreamConfig(
        streamInfo=stream_info(stream), scalingPolicy=api.ScalingPolicy(minNumSegments=1)
    )


async def begin(controller: Controller) -> api.TxnId:
    request = api.CreateTxnRequest(streamInfo=A, lease=LEASE_MS)
    return (await ask(controller, "createTransaction", request, api.CreateTxnResponse)).txnId


def segment_id(stream: api.StreamInfo, number: int) -> api.SegmentId:
    return api.SegmentId(streamInfo=stream, segmentId=number)


async def scale(controller: Controller) -> None:
    answer = await ask(
        controller,
        "scale",
        api.ScaleRequest(
            streamInfo=A,
            sealedSegments=[0],
            newKeyRanges=[api.ScaleRequest.KeyRangeEntry(start=0.0, end=1.0)],
        ),
        api.ScaleResponse,
    )
    assert answer.status == api.ScaleResponse.ScaleStreamStatus.STARTED


NEW_SEGMENT = 1 << 32 | 1
CUT = api.StreamCut(streamInfo=A, cut={NEW_SEGMENT: 0})
LATER_CUT = api.StreamCut(streamInfo=LATER, cut={0: 0})
CONFIG = api.KeyValueTableConfig(
    scope="s", kvtName="t", partitionCount=1, primaryKeyLength=4, secondaryKeyLength=4
)
FOREIGN = api.TxnRequest(streamInfo=A, txnId=api.TxnId(highBits=1, lowBits=1))
ELSEWHERE = api.ScopeInfo(scope="elsewhere")

REFUSED: list[tuple[str, Message]] = [
    ("deleteScope", ELSEWHERE),
    ("deleteScope", api.ScopeInfo(scope="s")),
    ("deleteScopeRecursive", ELSEWHERE),
    ("createScope", api.ScopeInfo(scope="s")),
    ("listScopes", api.ScopesRequest()),
    ("checkScopeExists", ELSEWHERE),
    ("listStreamsInScope", api.StreamsInScopeRequest(scope=ELSEWHERE)),
    ("listStreamsInScope", api.StreamsInScopeRequest(scope=api.ScopeInfo(scope="s"))),
    (
        "listStreamsInScopeForTag",
        api.StreamsInScopeWithTagRequest(scope=api.ScopeInfo(scope="s"), tag="t"),
    ),
    ("createStream", stream_config("a")),
    (
        "createStream",
        api.StreamConfig(streamInfo=api.StreamInfo(scope="elsewhere", stream="a")),
    ),
    ("updateStream", stream_config("later")),
    ("getStreamConfiguration", LATER),
    ("truncateStream", LATER_CUT),
    ("truncateStream", CUT),
    ("sealStream", LATER),
    ("sealStream", stream_info("b")),
    ("deleteStream", LATER),
    ("deleteStream", A),
    ("checkStreamExists", LATER),
    ("getCurrentSegments", LATER),
    ("getCurrentSegments", stream_info("b")),
    ("getEpochSegments", api.GetEpochSegmentsRequest(streamInfo=A, epoch=1)),
    ("getSegments", api.GetSegmentsRequest(streamInfo=LATER)),
    ("getSegmentsImmediatelyFollowing", segment_id(A, 0)),
    ("getSegmentsImmediatelyFollowing", segment_id(A, NEW_SEGMENT)),
    ("getSegmentsImmediatlyFollowing", segment_id(LATER, 0)),
    ("getSegmentsBetween", api.StreamCutRange(streamInfo=A)),
    ("isSegmentValid", segment_id(A, NEW_SEGMENT)),
    ("isStreamCutValid", CUT),
    ("scale", api.ScaleRequest(streamInfo=A, sealedSegments=[NEW_SEGMENT])),
    ("checkScale", api.ScaleStatusRequest(streamInfo=A, epoch=1)),
    ("createTransaction", api.CreateTxnRequest(streamInfo=LATER, lease=LEASE_MS)),
    ("commitTransaction", FOREIGN),
    ("abortTransaction", FOREIGN),
    (
        "pingTransaction",
        api.PingTxnRequest(streamInfo=A, txnId=FOREIGN.txnId, lease=LEASE_MS),
    ),
    ("checkTransactionState", FOREIGN),
    ("listCompletedTransactions", api.ListCompletedTxnRequest(streamInfo=A)),
    ("noteTimestampFromWriter", api.TimestampFromWriter(writer="w", timestamp=1, position=CUT)),
    ("removeWriter", api.RemoveWriterRequest(writer="w", stream=A)),
    ("createReaderGroup", GROUP_CONFIG),
    ("getReaderGroupConfig", GROUP),
    ("updateReaderGroup", GROUP_CONFIG),
    ("deleteReaderGroup", GROUP),
    (
        "updateSubscriberStreamCut",
        api.SubscriberStreamCut(subscriber="s/g", readerGroupId="id-1", streamCut=CUT),
    ),
    ("listSubscribers", A),
    ("createKeyValueTable", CONFIG),
    ("getCurrentSegmentsKeyValueTable", TABLE),
    ("getKeyValueTableConfiguration", TABLE),
    ("listKeyValueTablesInScope", api.KVTablesInScopeRequest(scope=api.ScopeInfo(scope="s"))),
    ("deleteKeyValueTable", TABLE),
    ("beginStage", own_api.BeginStageRequest(scope="s", stream="later", lease_ms=LEASE_MS)),
    (
        "commitStages",
        own_api.CommitStagesRequest(
            scope="s", stream="a", application_id="j", version=1, transaction_ids=[bytes(16)]
        ),
    ),
    ("lastVersion", own_api.LastVersionRequest(scope="s", stream="a", application_id="j")),
]
"""What only the new owner knows, and what the old one would find as it is wished to be."""
READS_NOTHING = {"getControllerServerList", "getURI", "getDelegationToken"}


@pytest.mark.parametrize(
    ("name", "request_message"), REFUSED, ids=[f"{n}-{name}" for n, (name, _) in enumerate(REFUSED)]
)
async def test_h24_an_old_owner_sends_away_who_asks_for_what_it_does_not_know(
    name: str, request_message: Message
) -> None:
    async with two_owners() as owners:
        await scale(owners.new)
        await ask(owners.new, "createStream", stream_config("later"), api.CreateStreamStatus)
        assert await is_sent_away(owners.old, name, request_message)


def test_every_call_is_asked_of_an_old_owner() -> None:
    calls = _controller(MemorySegments(), MemoryTables()).service._calls
    assert {name for name, _ in REFUSED} | READS_NOTHING == set(calls)


async def test_h24_what_the_new_owner_began_is_not_refused_by_the_old_one() -> None:
    async with two_owners() as owners:
        request = api.TxnRequest(streamInfo=A, txnId=await begin(owners.new))
        for name in ("commitTransaction", "abortTransaction", "checkTransactionState"):
            assert await is_sent_away(owners.old, name, request)
        answer = await ask(owners.new, "commitTransaction", request, api.TxnStatus)
        assert answer.status == api.TxnStatus.Status.SUCCESS


async def test_an_old_owner_does_not_call_a_transaction_open_that_the_new_one_has_ended() -> None:
    async with two_owners() as owners:
        request = api.TxnRequest(streamInfo=A, txnId=owners.old_transaction)
        await ask(owners.new, "abortTransaction", request, api.TxnStatus)
        assert await is_sent_away(owners.old, "checkTransactionState", request)
        assert await is_sent_away(owners.old, "commitTransaction", request)


async def test_h75_an_old_owner_does_not_take_a_segment_that_the_new_one_replaced_for_the_end() -> (
    None
):
    """It finds the only segment that it knows sealed, as if its writer had ended the stream."""
    async with two_owners() as owners:
        await scale(owners.new)
        assert await is_sent_away(owners.old, "getSegmentsImmediatelyFollowing", segment_id(A, 0))
        found = await ask(
            owners.new,
            "getSegmentsImmediatelyFollowing",
            segment_id(A, 0),
            api.SuccessorResponse,
        )
        assert [each.segment.segmentId.segmentId for each in found.segments] == [NEW_SEGMENT]


async def test_an_old_owner_may_tell_which_segments_there_were() -> None:
    async with two_owners() as owners:
        await scale(owners.new)
        found = await ask(owners.old, "getCurrentSegments", A, api.SegmentRanges)
        assert [each.segmentId.segmentId for each in found.segmentRanges] == [0]


async def test_a_lease_is_renewed_only_as_long_as_no_other_owner_can_end_it_before() -> None:
    async with two_owners() as owners:
        request = api.PingTxnRequest(streamInfo=A, txnId=owners.old_transaction)
        # The begin was a write a moment ago: whoever came later grants more than this.
        request.lease = LEASE_MS
        answer = await ask(owners.old, "pingTransaction", request, api.PingTxnStatus)
        assert answer.status == PING.OK
        request.lease = LEASE_MS_MAX
        assert await is_sent_away(owners.old, "pingTransaction", request)


async def test_refusals_of_one_moment_share_one_write_and_many_come_seldom() -> None:
    owners = Owners()
    try:
        await owners.start()
        loop = asyncio.get_running_loop()
        before, began = owners.plan.count, loop.time()

        async def refused() -> None:
            answer = await ask(owners.old, "commitTransaction", FOREIGN, api.TxnStatus)
            assert answer.status == api.TxnStatus.Status.TRANSACTION_NOT_FOUND

        for _ in range(5):
            await asyncio.gather(*(refused() for _ in range(100)))
        rounds = (loop.time() - began) / PAUSE_SECONDS + 1
        # Three tables: of transactions, of scopes, of the scope.
        assert owners.plan.count - before <= 3 * rounds
        assert owners.plan.count - before <= 3 * 5 * 2
    finally:
        await owners.close()


async def test_who_leaves_takes_the_proof_of_nobody_else_away() -> None:
    owners = Owners()
    try:
        await owners.start()
        asked = [
            asyncio.create_task(ask(owners.old, "checkStreamExists", LATER, api.ExistsResponse))
            for _ in range(5)
        ]
        for _ in range(20):
            await asyncio.sleep(0)
            leaver = asked[0]
            if not leaver.done():
                leaver.cancel()
        answers = await asyncio.gather(*asked[1:])
        assert not any(answer.exists for answer in answers)
    finally:
        await owners.close()
