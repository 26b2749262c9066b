"""The whole controller on a simulated loop: killed at random moments, asked for everything at once, whole in the end.

Method: calls go to the service as bytes, as clients send them; every call through the doors takes a random while before
and behind its effect, so a death comes between any two of them. The doors' memory outlives the process as a store does:
what was committed stays. At the end all streams are sealed (which ends their transactions) and everything is checked.
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

import pytest
from google.protobuf.message import Message

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.contracts.errors import ErrorKind, SegmentStoreError
from segmentstore.controller.api.messages import Endpoint
from segmentstore.controller.controller import Controller
from segmentstore.controller.settings import ControllerSettings
from tests.controller.cluster import Cluster, SteppingClock
from tests.controller.crashing_doors import CrashingSegments, CrashingTables, CrashPlan
from tests.http.memory_segments import MemorySegments
from tests.reference.memory_tables import MemoryTables
from tests.sim.loop import SimLoop
from tests.sim.node import Node, NodeDiedError
from tests.sim.simulation import run_simulation

pytestmark = pytest.mark.simulation

Answer = TypeVar("Answer", bound=Message)
Outcome = TypeVar("Outcome")

STREAMS = ("a", "b")


class SlowPlan(CrashPlan):
    """Every call through a door takes a while before its effect and a while behind it."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random

    async def through(self, call: Callable[[], Awaitable[Outcome]]) -> Outcome:
        await asyncio.sleep(self._random.expovariate(1000))
        outcome = await call()
        await asyncio.sleep(self._random.expovariate(1000))
        return outcome


class World:
    """The store, and the controller process of the moment."""

    def __init__(
        self, loop: SimLoop, seed: int, *, settings: ControllerSettings | None = None
    ) -> None:
        self.loop = loop
        self.settings = settings or ControllerSettings()
        self.random = Random(seed)
        self.segments = MemorySegments()
        self.tables = MemoryTables()
        self.clock = SteppingClock()
        self.node: Node
        self.controller: Controller
        self.answered = 0

    def boot(self) -> None:
        self.segments = self.segments.restarted()
        self.tables = self.tables.restarted()
        plan = SlowPlan(Random(self.random.random()))
        self.controller = Controller(
            segments=CrashingSegments(self.segments, plan),
            tables=CrashingTables(self.tables, plan),
            wall_clock=self.clock,
            random=Random(self.random.random()),
            locate=lambda name: Endpoint("127.0.0.1", 12345),
            settings=self.settings,
        )
        self.node = self.loop.start("controller", self._live(self.controller))

    async def _live(self, controller: Controller) -> None:
        await controller.start()
        await controller.run()

    async def call(self, name: str, request: Message, answer: type[Answer]) -> Answer:
        content = await self.loop.invoke(
            self.node, self.controller.service.answer(name, request.SerializeToString())
        )
        self.answered += 1
        message = answer()
        message.ParseFromString(content)
        return message

    async def until_ready(self) -> None:
        while not self.controller.is_ready:
            await asyncio.sleep(0.01)


async def one_wish(world: World) -> None:
    """Something that a client may ask for."""
    stream = api.StreamInfo(scope="s", stream=world.random.choice(STREAMS))
    match world.random.randrange(9):
        case 0 | 1:
            config = api.StreamConfig(
                streamInfo=stream, scalingPolicy=api.ScalingPolicy(minNumSegments=2)
            )
            await world.call("createStream", config, api.CreateStreamStatus)
        case 2 | 3:
            await scale_at_random(world, stream)
        case 4:
            await world.call(
                "truncateStream", await head_cut(world, stream), api.UpdateStreamStatus
            )
        case 5 | 6:
            await one_transaction(world, stream)
        case _:
            if world.random.random() < 0.5:
                await world.call("sealStream", stream, api.UpdateStreamStatus)
                await world.call("deleteStream", stream, api.DeleteStreamStatus)


async def scale_at_random(world: World, stream: api.StreamInfo) -> None:
    current = (await world.call("getCurrentSegments", stream, api.SegmentRanges)).segmentRanges
    if not current:
        return
    chosen = world.random.choice(current)
    middle = (chosen.minKey + chosen.maxKey) / 2
    ranges = [(chosen.minKey, middle), (middle, chosen.maxKey)]
    sealed = [chosen.segmentId.segmentId]
    if len(current) > 4:
        sealed = [each.segmentId.segmentId for each in current]
        ranges = [(0.0, 1.0)]
    request = api.ScaleRequest(
        streamInfo=stream,
        sealedSegments=sealed,
        newKeyRanges=[api.ScaleRequest.KeyRangeEntry(start=low, end=high) for low, high in ranges],
    )
    await world.call("scale", request, api.ScaleResponse)


async def head_cut(world: World, stream: api.StreamInfo) -> api.StreamCut:
    current = await world.call("getCurrentSegments", stream, api.SegmentRanges)
    return api.StreamCut(
        streamInfo=stream,
        cut={each.segmentId.segmentId: 0 for each in current.segmentRanges},
    )


async def one_transaction(world: World, stream: api.StreamInfo) -> None:
    request = api.CreateTxnRequest(streamInfo=stream, lease=20_000)
    created = await world.call("createTransaction", request, api.CreateTxnResponse)
    await asyncio.sleep(world.random.expovariate(20))
    ending = api.TxnRequest(streamInfo=stream, txnId=created.txnId)
    verb = world.random.choice(["commitTransaction", "abortTransaction", "checkTransactionState"])
    answer = api.TxnState if verb == "checkTransactionState" else api.TxnStatus
    await world.call(verb, ending, answer)


async def wishes(world: World) -> None:
    while True:
        try:
            await one_wish(world)
        except (SegmentStoreError, NodeDiedError):
            await asyncio.sleep(0.01)


async def patiently(world: World, name: str, stream: api.StreamInfo) -> None:
    """As clients do it: come back when told to, for a minute at most."""
    async with asyncio.timeout(60):
        while True:
            try:
                await world.call(name, stream, api.UpdateStreamStatus)
            except SegmentStoreError as error:
                if error.kind is not ErrorKind.UNAVAILABLE:
                    raise
                await asyncio.sleep(0.1)
            else:
                return


async def live_and_die(world: World) -> None:
    world.boot()
    await world.until_ready()
    await world.call("createScope", api.ScopeInfo(scope="s"), api.CreateScopeStatus)
    clients = [asyncio.ensure_future(wishes(world)) for _ in range(4)]
    for _ in range(12):
        await asyncio.sleep(world.random.uniform(0.02, 0.6))
        world.loop.crash(world.node)
        world.boot()
    await asyncio.sleep(1)
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    await world.until_ready()
    for name in STREAMS:
        stream = api.StreamInfo(scope="s", stream=name)
        await patiently(world, "sealStream", stream)
    # Transactions that were decided are finished in the background.
    await asyncio.sleep(30)
    world.loop.crash(world.node)
    cluster = Cluster()
    cluster.memory_segments = world.segments.restarted()
    cluster.memory_tables = world.tables.restarted()
    cluster._build()
    await cluster.start()
    await cluster.check()
    assert world.answered > 50


@pytest.mark.parametrize("seed", range(7))
def test_a_controller_that_dies_again_and_again_leaves_whole_streams(seed: int) -> None:
    async def main(loop: SimLoop) -> None:
        await live_and_die(World(loop, seed))

    run_simulation(seed, main)
