"""Commits, aborts, scales and deaths in every order that a seed comes to.

Goal: for every routing key, the events of committed transactions stand in the order of the commit calls, once each, and
none of an aborted one is there. Method: clients and a scaler work at the same time, each letting the others run a
drawn number of turns between its steps; the process dies at a drawn call; another one finishes.
"""

import asyncio
from random import Random

import pytest

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.controller.settings import ControllerSettings, TransactionSettings
from tests.controller.crashing_doors import ProcessDiedError
from tests.controller.transactions.feature_cluster import FeatureCluster, State
from tests.controller.transactions.test_transaction_crashes import last_effects

SHAPES = (
    [(0.0, 1.0)],
    [(0.0, 0.5), (0.5, 1.0)],
    [(0.0, 0.25), (0.25, 0.75), (0.75, 1.0)],
)
POSITIONS = (0.1, 0.3, 0.6, 0.9)


class Workload:
    """What the clients did, and in which order they called commit."""

    def __init__(self, cluster: FeatureCluster, random: Random) -> None:
        self.cluster = cluster
        self.random = random
        self.commits: list[tuple[bytes, api.TxnId]] = []
        self.aborts: list[tuple[bytes, api.TxnId]] = []

    async def turns(self) -> None:
        for _ in range(self.random.randrange(12)):
            await asyncio.sleep(0)

    async def client(self, name: str) -> None:
        for number in range(self.random.randrange(1, 4)):
            begun = await self.cluster.begin("a")
            event = f"{name}.{number}".encode()
            await self.turns()
            await self.cluster.write("a", begun, [event] * len(begun.activeSegments))
            await self.turns()
            if self.random.random() < 0.25:
                self.aborts.append((event, begun.txnId))
                await self.cluster.abort("a", begun.txnId)
            else:
                self.commits.append((event, begun.txnId))
                await self.cluster.commit("a", begun.txnId)

    async def scaler(self) -> None:
        for _ in range(self.random.randrange(4)):
            await self.turns()
            shape = self.random.choice(SHAPES)
            try:
                await self.cluster.scale("a", shape)
            except SegmentStoreError:
                # Another scale or a commit behind one was faster: the segments named are no longer active.
                continue

    async def run(self) -> None:
        async with self.cluster.finishing():
            work = [self.client(name) for name in "pqrs"] + [self.scaler()]
            await asyncio.gather(*work, return_exceptions=True)
            while not self.cluster.plan.dead and self.cluster.has_work("a"):
                await asyncio.sleep(0)
            await last_effects()


async def events_at(cluster: FeatureCluster, position: float) -> list[bytes]:
    """What a reader of one routing key meets."""
    history = await cluster.streams.operations.history("s", "a")
    state = await history.state()
    contents = await cluster.read_all("a")
    seen: dict[int, None] = {}
    for number in range(state.last_epoch + 1):
        for segment in (await history.epoch(number)).segments:
            if segment.low <= position < segment.high:
                seen[segment.segment_id] = None
    return [event for segment_id in seen for event in contents[segment_id]]


@pytest.mark.parametrize("seed", range(120))
async def test_commits_keep_their_order_and_their_events_whatever_happens(seed: int) -> None:
    random = Random(seed)
    cluster = FeatureCluster(
        settings=ControllerSettings(
            transactions=TransactionSettings(
                retry_seconds_min=0.0, retry_seconds_max=0.0, commits_together_max=2
            )
        )
    )
    await cluster.start()
    await cluster.scopes.create("s")
    await cluster.create("a", segments=random.randrange(1, 4))
    workload = Workload(cluster, random)
    if random.random() < 0.7:
        cluster.plan.arm(die_at=random.randrange(1, 150), behind=random.random() < 0.5)
    try:
        await workload.run()
    except ProcessDiedError:
        await last_effects()
    await cluster.restart()
    async with cluster.finishing():
        for _, txn in workload.commits:
            assert await cluster.commit("a", txn) == api.TxnStatus.Status.SUCCESS
        for _, txn in workload.aborts:
            assert await cluster.abort("a", txn) == api.TxnStatus.Status.SUCCESS
        await cluster.settled("a")
    cluster.components.transaction_states.check()
    await cluster.check_epochs("a")
    for _, txn in workload.commits:
        assert await cluster.state("a", txn) == State.COMMITTED
    for position in POSITIONS:
        assert await events_at(cluster, position) == [event for event, _ in workload.commits]
