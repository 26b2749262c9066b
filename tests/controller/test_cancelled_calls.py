"""Callers that go away in the middle of a call leave nothing standing still.

Method: on a simulated loop, callers ask for everything at once and most of them are cancelled at a random moment, as
gRPC cancels the calls of a client that closed its connection. Whoever stays gets an answer, and so does everybody
later.
"""

import asyncio
from contextlib import suppress
from random import Random
from typing import Final

import pytest
from google.protobuf.message import Message

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.controller.api.messages import Endpoint
from segmentstore.controller.controller import Controller
from segmentstore.controller.settings import ControllerSettings
from tests.controller.cluster import SteppingClock
from tests.controller.crashing_doors import CrashingSegments, CrashingTables
from tests.controller.test_simulated_deaths import SlowPlan
from tests.http.memory_segments import MemorySegments
from tests.reference.memory_tables import MemoryTables
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation

pytestmark = pytest.mark.simulation

CALLERS: Final = 5
CALLS: Final = 25
SECONDS_MAX: Final = 120.0
"""Simulated. Nothing that a controller does for one call takes longer, however many are before it."""

STREAM: Final = api.StreamInfo(scope="s", stream="a")


class Caller:
    """Asks, and does not always wait for the answer."""

    def __init__(self, controller: Controller, random: Random) -> None:
        self._controller = controller
        self._random = random
        self._transactions: list[api.TxnId] = []

    async def ask(self, name: str, request: Message) -> bytes:
        async with asyncio.timeout(SECONDS_MAX):
            return await self._controller.service.answer(name, request.SerializeToString())

    async def segments(self) -> list[int]:
        ranges = api.SegmentRanges.FromString(await self.ask("getCurrentSegments", STREAM))
        return [each.segmentId.segmentId for each in ranges.segmentRanges]

    async def scale(self) -> None:
        count = self._random.randint(1, 3)
        request = api.ScaleRequest(
            streamInfo=STREAM,
            sealedSegments=await self.segments(),
            newKeyRanges=[
                api.ScaleRequest.KeyRangeEntry(start=place / count, end=(place + 1) / count)
                for place in range(count)
            ],
        )
        await self.ask("scale", request)

    async def begin(self) -> None:
        request = api.CreateTxnRequest(streamInfo=STREAM, lease=30_000)
        answer = api.CreateTxnResponse.FromString(await self.ask("createTransaction", request))
        self._transactions.append(answer.txnId)

    async def decide(self) -> None:
        if self._transactions:
            verb = self._random.choice(("commitTransaction", "abortTransaction"))
            chosen = self._random.choice(self._transactions)
            await self.ask(verb, api.TxnRequest(streamInfo=STREAM, txnId=chosen))

    async def follow(self) -> None:
        for segment_id in await self.segments():
            request = api.SegmentId(streamInfo=STREAM, segmentId=segment_id)
            await self.ask("getSegmentsImmediatelyFollowing", request)

    async def talk(self) -> None:
        actions = (self.scale, self.begin, self.decide, self.follow)
        for _ in range(CALLS):
            task = asyncio.create_task(self._random.choice(actions)())
            if self._random.random() < 0.6:
                await asyncio.sleep(self._random.expovariate(100))
                task.cancel()
            with suppress(SegmentStoreError, asyncio.CancelledError):
                await task


@pytest.mark.parametrize("seed", range(8))
def test_callers_that_go_away_leave_nothing_standing_still(seed: int) -> None:
    async def main(_loop: SimLoop) -> None:
        random = Random(seed)
        plan = SlowPlan(Random(random.random()))
        controller = Controller(
            segments=CrashingSegments(MemorySegments(), plan),
            tables=CrashingTables(MemoryTables(), plan),
            wall_clock=SteppingClock(),
            random=Random(random.random()),
            locate=lambda name: Endpoint("127.0.0.1", 12345),
            settings=ControllerSettings(),
        )
        await controller.start()
        running = asyncio.create_task(controller.run())
        await asyncio.sleep(0)
        first = Caller(controller, random)
        await first.ask("createScope", api.ScopeInfo(scope="s"))
        policy = api.ScalingPolicy(minNumSegments=2)
        await first.ask("createStream", api.StreamConfig(streamInfo=STREAM, scalingPolicy=policy))
        async with asyncio.TaskGroup() as callers:
            for _ in range(CALLERS):
                callers.create_task(Caller(controller, Random(random.random())).talk())
        sealed = api.UpdateStreamStatus.FromString(await first.ask("sealStream", STREAM))
        assert sealed.status == api.UpdateStreamStatus.SUCCESS, sealed
        assert await first.segments() == []
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run_simulation(seed, main)
