"""Streams live random lives with deaths at random steps; a model of what was asked says what must be there."""

import asyncio
from contextlib import suppress
from itertools import pairwise
from random import Random

import pytest

from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.controller.settings import StreamSettings
from tests.controller.cluster import Cluster
from tests.controller.crashing_doors import ProcessDiedError

STREAMS = ("a", "b")
SETTINGS = StreamSettings(records_per_batch_max=3, segment_steps_at_once_max=2)


async def create(cluster: Cluster, random: Random, stream: str) -> None:
    await cluster.create(stream, segments=random.randint(1, 3), tags=random.sample("xyz", 2))


async def scale(cluster: Cluster, random: Random, stream: str) -> None:
    active = await cluster.streams.queries.current_segments("s", stream)
    if not active:
        return
    start = random.randrange(len(active))
    chosen = active[start : start + random.randint(1, 2)]
    low, high = chosen[0].low, chosen[-1].high
    inner = sorted(random.uniform(low, high) for _ in range(random.randint(0, 2)))
    bounds = [low, *inner, high]
    await cluster.streams.scaling.scale(
        "s",
        stream,
        sealed=[segment.segment_id for segment in chosen],
        ranges=list(pairwise(bounds)),
    )


async def append(cluster: Cluster, random: Random, stream: str) -> None:
    for segment_id in await cluster.current(stream):
        await cluster.append(stream, segment_id, random.randint(1, 20))


async def truncate(cluster: Cluster, random: Random, stream: str) -> None:
    queries = cluster.streams.queries
    state = await queries.state("s", stream)
    epoch = await queries.epoch_segments("s", stream, random.randint(0, state.current_epoch))
    cut = {segment.segment_id: random.randint(-1, 10) for segment in epoch}
    await cluster.streams.truncation.truncate("s", stream, cut)


async def seal(cluster: Cluster, random: Random, stream: str) -> None:
    await cluster.streams.seal("s", stream)


async def delete(cluster: Cluster, random: Random, stream: str) -> None:
    await cluster.streams.delete("s", stream)


VERBS = [create, scale, scale, scale, scale, append, append, truncate, truncate, seal, delete]


@pytest.mark.parametrize("seed", range(6))
async def test_random_lives_with_random_deaths_leave_whole_streams(seed: int) -> None:
    random = Random(seed)
    cluster = Cluster(settings=SETTINGS)
    await cluster.start()
    await cluster.scopes.create("s")
    used: set[str] = set()
    for _ in range(40):
        if random.random() < 0.4:
            cluster.plan.arm(die_at=random.randint(1, 12), behind=random.random() < 0.5)
        work = [random.choice(VERBS) for _ in range(random.randint(1, 3))]
        outcomes = await asyncio.gather(
            *(verb(cluster, random, random.choice(STREAMS)) for verb in work),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if outcome is not None and not isinstance(
                outcome, SegmentStoreError | ProcessDiedError
            ):
                raise outcome
        if cluster.plan.dead or random.random() < 0.1:
            await cluster.restart()
        else:
            cluster.plan.arm(die_at=0, behind=False)
            await cluster.resume_operations()
        await cluster.check()
        cluster.streams.operations.check()
        # A segment that went away never comes back under its name.
        names = set(cluster.memory_segments.names())
        used = check_names(used, names)


def check_names(used: set[str], names: set[str]) -> set[str]:
    gone = {name for name in used if name.startswith("-")}
    for name in names:
        assert f"-{name}" not in gone, f"a name is used twice name={name}"
    present = {name for name in used if not name.startswith("-")}
    return gone | names | {f"-{name}" for name in present - names}


async def test_many_callers_of_one_stream_follow_one_another() -> None:
    cluster = Cluster()
    await cluster.start()
    await cluster.scopes.create("s")
    await cluster.create("a", segments=4)
    random = Random(3)

    async def work() -> None:
        with suppress(SegmentStoreError):
            await scale(cluster, random, "a")

    await asyncio.gather(*(work() for _ in range(50)))
    await cluster.check()
    state = await cluster.streams.queries.state("s", "a")
    assert state.current_epoch >= 1
