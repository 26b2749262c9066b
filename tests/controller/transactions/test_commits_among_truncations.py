"""Commits, scales and truncations while a container refuses for a while, in every order that a seed comes to.

Goal: what was committed is in the stream once and in the order of the commit calls, or lay before a cut at which the
stream was truncated; and the stream can be scaled, truncated and sealed when everything is back. Method: clients and
two who split segments and truncate work at the same time, each letting the others run a drawn number of turns between
its steps, while merges are refused now and then; the process may die at a drawn call. What segments held when they were
deleted is kept beside.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from random import Random

import pytest

from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.codec.stream_names import parse_segment
from segmentstore.contracts.errors import ContainerNotFoundError, SegmentStoreError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.controller.settings import ControllerSettings, TransactionSettings
from tests.controller.crashing_doors import ProcessDiedError
from tests.controller.transactions.feature_cluster import FeatureCluster, State, events_in
from tests.controller.transactions.test_commits_among_scales import POSITIONS, SHAPES, Workload
from tests.controller.transactions.test_transaction_crashes import last_effects
from tests.http.memory_segments import MemorySegments


class TroubledWorkload(Workload):
    """With truncations, and containers that refuse merges now and then, each for a few attempts."""

    def __init__(self, cluster: FeatureCluster, random: Random) -> None:
        super().__init__(cluster, random)
        self._refusals: dict[int, int] = {}
        """Segment number -> attempts that are still refused."""
        self._refused = asyncio.Event()
        merge_all = cluster.segments.merge_all

        async def merge_or_refuse(
            target: str, sources: Sequence[str], *, seal_sources: bool = False
        ) -> Sequence[int]:
            number = parse_segment(target).number
            left = self._refusals.pop(number, 0)
            if not left and random.random() < 0.2:
                left = random.randrange(1, 5)
            if left:
                self._refusals[number] = left - 1
                self._refused.set()
                raise ContainerNotFoundError(ContainerId(3), "recovering")
            return await merge_all(target, sources, seal_sources=seal_sources)

        cluster.segments.merge_all = merge_or_refuse  # type: ignore[method-assign]

    async def reshaper(self) -> None:
        """Splits a segment, and truncates all that is older: what automatic scaling and retention do."""
        for _ in range(self.random.randrange(1, 5)):
            if self.random.random() < 0.7:
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await self._refused.wait()
                self._refused.clear()
            await self.turns()
            try:
                if self.random.random() < 0.8:
                    await self._split()
                cut = dict.fromkeys(await self.cluster.current("a"), 0)
                await self.cluster.streams.truncation.truncate("s", "a", cut)
            except SegmentStoreError:
                # A scale was faster, or somebody has to come back first.
                continue

    async def _split(self) -> None:
        segments = await self.cluster.streams.queries.current_segments("s", "a")
        if len(segments) < 8:
            chosen = self.random.choice(segments)
            middle = (chosen.low + chosen.high) / 2
            ranges = [(chosen.low, middle), (middle, chosen.high)]
            await self.cluster.streams.scaling.scale(
                "s", "a", sealed=[chosen.segment_id], ranges=ranges
            )

    async def run(self) -> None:
        async with self.cluster.finishing():
            work = [self.client(name) for name in "pqrs"]
            work += [self.reshaper(), self.reshaper()]
            await asyncio.gather(*work, return_exceptions=True)
            for _ in range(3_000):
                if self.cluster.plan.dead or not self.cluster.has_work("a"):
                    break
                await asyncio.sleep(0)
            await last_effects()


async def events_at(cluster: FeatureCluster, deleted: dict[str, bytes], at: float) -> list[bytes]:
    """What a reader of one routing key would have met who was never too late."""
    history = await cluster.streams.operations.history("s", "a")
    state = await history.state()
    seen: dict[str, None] = {}
    for number in range(state.last_epoch + 1):
        for segment in (await history.epoch(number)).segments:
            if segment.low <= at < segment.high:
                seen[history.segment_name(segment.segment_id)] = None
    there = cluster.memory_segments.names()
    contents = [
        cluster.memory_segments.content(name) if name in there else deleted[name] for name in seen
    ]
    return [event for content in contents for event in events_in(content)]


@pytest.mark.parametrize("seed", range(150))
async def test_h74_nothing_committed_is_lost_to_a_truncation_and_nothing_blocks_the_stream(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    pause = random.choice((0.0, 0.005, 0.03))
    cluster = FeatureCluster(
        settings=ControllerSettings(
            transactions=TransactionSettings(
                retry_seconds_min=pause, retry_seconds_max=pause, commits_together_max=2
            )
        )
    )
    await cluster.start()
    await cluster.scopes.create("s")
    await cluster.create("a", segments=random.randrange(1, 4))
    deleted: dict[str, bytes] = {}
    delete = MemorySegments.delete

    async def keep_and_delete(segments: MemorySegments, name: str) -> None:
        if name in segments.names():
            deleted[name] = segments.content(name)
        await delete(segments, name)

    monkeypatch.setattr(MemorySegments, "delete", keep_and_delete)
    workload = TroubledWorkload(cluster, random)
    if random.random() < 0.4:
        cluster.plan.arm(die_at=random.randrange(1, 150), behind=random.random() < 0.5)
    try:
        await workload.run()
    except ProcessDiedError:
        await last_effects()
    await cluster.restart()
    async with cluster.finishing(), asyncio.timeout(60):
        for _, txn in workload.commits:
            assert await cluster.commit("a", txn) == api.TxnStatus.Status.SUCCESS
        for _, txn in workload.aborts:
            assert await cluster.abort("a", txn) == api.TxnStatus.Status.SUCCESS
        await cluster.settled("a")
        await cluster.scale("a", SHAPES[1])
        cluster.components.transaction_states.check()
        for _, txn in workload.commits:
            assert await cluster.state("a", txn) == State.COMMITTED
        for position in POSITIONS:
            found = await events_at(cluster, deleted, position)
            assert found == [event for event, _ in workload.commits]
        cut = dict.fromkeys(await cluster.current("a"), 0)
        await cluster.streams.truncation.truncate("s", "a", cut)
        await cluster.streams.seal("s", "a")
    await cluster.check()
