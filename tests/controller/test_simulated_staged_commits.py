"""Jobs that stage, commit and replay against a controller that is killed again and again, while streams are scaled.

Goal: what a version of an application committed is in the stream once and whole, however often it was staged and
called, and what nobody committed never is. Method: the world of test_simulated_deaths; every event names its
application, version and stage. A job asks until it hears that its version is committed, or gives up and stages all of
it anew under the same version, as a driver does that died before it wrote down what it had committed.
"""

import asyncio
from random import Random

import pytest

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.controller_api import staged_commits_pb2 as own_api
from segmentstore.codec.stream_names import segment_name, transaction_segment
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.controller.settings import ControllerSettings, TransactionSettings
from tests.controller.test_simulated_deaths import World, patiently, scale_at_random
from tests.controller.transactions.feature_cluster import FeatureCluster, events_in, framed
from tests.sim.loop import SimLoop
from tests.sim.node import NodeDiedError
from tests.sim.simulation import run_simulation

pytestmark = pytest.mark.simulation

KILLS = 12
FORGETFUL = ControllerSettings(
    transactions=TransactionSettings(completed_seconds=0.02, completed_sweep_seconds=0.02)
)
"""Finished transactions are forgotten at once: the fence alone says what was committed."""
STREAM = api.StreamInfo(scope="s", stream="a")


class Job:
    """One application, one version after the other."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.random = Random(f"{name} {world.random.random()}")
        self.committed: list[int] = []
        self.version = 0
        """The one that may or may not be committed."""
        self.stage_count = 0

    async def run(self) -> None:
        while True:
            try:
                await self._commit(await self._staged())
            except (SegmentStoreError, NodeDiedError):
                await asyncio.sleep(self.random.expovariate(20))
            else:
                self.committed.append(self.version)
                self.version += 1

    async def _staged(self) -> list[bytes]:
        stages: list[bytes] = []
        for number in range(self.random.randrange(1, 4)):
            stages.append(await self._stage(number))
            if self.random.random() < 0.1:
                # A task that fails behind its last write, and is run again.
                stages[-1] = await self._stage(number)
        return stages

    async def _stage(self, number: int) -> bytes:
        begun = await self.world.call(
            "beginStage",
            own_api.BeginStageRequest(scope="s", stream="a", lease_ms=60_000),
            own_api.BeginStageResponse,
        )
        self.stage_count += 1
        for each in begun.ranges:
            parent = segment_name("s", "a", each.segment_id)
            name = transaction_segment(parent, int.from_bytes(begun.transaction_id, "big"))
            event = f"{self.name}/{self.version}/{number}/{each.low}/{each.high}".encode()
            async with self.world.segments.open_segment(name) as segment:
                await segment.append(framed(event), events=1)
        await asyncio.sleep(self.random.expovariate(50))
        return begun.transaction_id

    async def _commit(self, stages: list[bytes]) -> None:
        request = own_api.CommitStagesRequest(
            scope="s",
            stream="a",
            application_id=self.name,
            version=self.version,
            transaction_ids=stages,
        )
        while True:
            try:
                answer = await self.world.call(
                    "commitStages", request, own_api.CommitStagesResponse
                )
            except NodeDiedError:
                if self.random.random() < 0.5:
                    raise
                await asyncio.sleep(self.random.expovariate(20))
                continue
            if answer.completed:
                return
            await asyncio.sleep(0.01)


async def scaler(world: World) -> None:
    while True:
        await asyncio.sleep(world.random.expovariate(5))
        try:
            await scale_at_random(world, STREAM)
        except (SegmentStoreError, NodeDiedError):
            continue


async def live_and_die(world: World) -> None:
    world.boot()
    await world.until_ready()
    await world.call("createScope", api.ScopeInfo(scope="s"), api.CreateScopeStatus)
    config = api.StreamConfig(streamInfo=STREAM, scalingPolicy=api.ScalingPolicy(minNumSegments=2))
    await world.call("createStream", config, api.CreateStreamStatus)
    jobs = [Job(world, name) for name in ("x", "y", "z")]
    clients = [asyncio.ensure_future(job.run()) for job in jobs]
    clients.append(asyncio.ensure_future(scaler(world)))
    for _ in range(KILLS):
        await asyncio.sleep(world.random.uniform(0.02, 0.6))
        world.loop.crash(world.node)
        world.boot()
    await asyncio.sleep(1)
    for client in clients:
        client.cancel()
    for outcome in await asyncio.gather(*clients, return_exceptions=True):
        assert isinstance(outcome, asyncio.CancelledError), outcome
    await world.until_ready()
    await patiently(world, "sealStream", STREAM)
    await asyncio.sleep(30)
    world.loop.crash(world.node)
    await check(world, jobs)


async def check(world: World, jobs: list[Job]) -> None:
    cluster = FeatureCluster()
    cluster.memory_segments = world.segments.restarted()
    cluster.memory_tables = world.tables.restarted()
    cluster._build()
    await cluster.start()
    await cluster.check()
    cluster.components.transaction_states.check()
    # version of a job -> stage -> parts of the key space
    found: dict[tuple[str, int], dict[int, list[tuple[float, float]]]] = {}
    history = await cluster.streams.operations.history("s", "a")
    state = await history.state()
    names = {
        history.segment_name(segment.segment_id)
        for number in range(state.last_epoch + 1)
        for segment in (await history.epoch(number)).segments
    }
    for name in sorted(names):
        for event in events_in(cluster.memory_segments.content(name)):
            job, version, stage, low, high = event.decode().split("/")
            parts = found.setdefault((job, int(version)), {}).setdefault(int(stage), [])
            parts.append((float(low), float(high)))
    for each in jobs:
        assert each.committed == list(range(each.version))
        assert {version for job, version in found if job == each.name} >= set(each.committed)
    for key, stages in found.items():
        assert sorted(stages) == list(range(len(stages))), f"a stage is missing {key} {stages}"
        for parts in stages.values():
            edges = sorted(parts)
            # Every part of the key space once.
            assert edges[0][0] == 0.0, f"{key} {parts}"
            assert [low for low, _ in edges[1:]] == [high for _, high in edges[:-1]], (
                f"{key} {parts}"
            )
            assert edges[-1][1] == 1.0, f"{key} {parts}"
    assert sum(len(each.committed) for each in jobs) > KILLS


@pytest.mark.parametrize("seed", range(5))
def test_h74_staged_commits_are_whole_and_there_once_whenever_the_controller_dies(
    seed: int,
) -> None:
    async def main(loop: SimLoop) -> None:
        await live_and_die(World(loop, seed, settings=FORGETFUL))

    run_simulation(seed, main)
