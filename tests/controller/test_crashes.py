"""The process dies at every step of every operation; the next one finishes what was begun.

Method: run the operation once to count its calls through the doors, then once per call (and per side of its effect)
with a death there, restart over the same state, and check everything. Then the operation is asked for again: its
outcome has to be the same as if nothing had happened.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from segmentstore.codec.controller_records.stream_records import (
    ScalingPolicy,
    StreamConfigurationRecord,
)
from segmentstore.controller.errors import (
    PreconditionError,
    ScopeExistsError,
    ScopeNotFoundError,
    StreamExistsError,
    StreamNotFoundError,
)
from segmentstore.controller.settings import StreamSettings
from tests.controller.cluster import Cluster
from tests.controller.crashing_doors import ProcessDiedError

Step = Callable[[Cluster], Awaitable[None]]

SETTINGS = StreamSettings(records_per_batch_max=2, segment_steps_at_once_max=1)
"""Small portions: more places to die at."""


async def nothing(cluster: Cluster) -> None:
    await cluster.scopes.create("s")


async def a_stream(cluster: Cluster) -> None:
    await nothing(cluster)
    await cluster.create("a", segments=3, tags=["red", "blue"])


async def a_scaled_stream(cluster: Cluster) -> None:
    await a_stream(cluster)
    await split_first(cluster)
    for segment_id in await cluster.current("a"):
        await cluster.append("a", segment_id, 10)


async def a_truncated_stream(cluster: Cluster) -> None:
    await a_scaled_stream(cluster)
    await cluster.streams.truncation.truncate(
        "s", "a", dict.fromkeys(await cluster.current("a"), 2)
    )
    await split_first(cluster)


async def a_sealed_stream(cluster: Cluster) -> None:
    await a_truncated_stream(cluster)
    await cluster.streams.seal("s", "a")


async def a_scope_with_history(cluster: Cluster) -> None:
    await a_sealed_stream(cluster)
    await cluster.streams.delete("s", "a")


async def create(cluster: Cluster) -> None:
    with suppress(StreamExistsError):
        await cluster.create("a", segments=3, tags=["red", "blue"])
    assert len(await cluster.current("a")) == 3
    assert len(await cluster.current("_MARKa")) == 1
    for tag in ("blue", "red"):
        page = await cluster.scopes.streams_with_tag("s", tag, after="", count=10)
        assert page.names == ["a"]


async def split_first(cluster: Cluster) -> None:
    before = await cluster.streams.queries.current_segments("s", "a")
    first = before[0]
    if len(before) <= 3 or first.creation_epoch == 1:
        middle = (first.low + first.high) / 2
        ranges = [(first.low, middle), (middle, first.high)]
        with suppress(PreconditionError):
            await cluster.streams.scaling.scale("s", "a", sealed=[first.segment_id], ranges=ranges)


async def merge_all(cluster: Cluster) -> None:
    current = await cluster.current("a")
    if len(current) > 1:
        await cluster.streams.scaling.scale("s", "a", sealed=current, ranges=[(0.0, 1.0)])
    assert len(await cluster.current("a")) == 1


async def truncate(cluster: Cluster) -> None:
    cut = dict.fromkeys(await cluster.current("a"), 5)
    await cluster.streams.truncation.truncate("s", "a", cut)
    assert await cluster.streams.queries.segments_at("s", "a", 0) == cut


async def seal(cluster: Cluster) -> None:
    await cluster.streams.seal("s", "a")
    assert await cluster.current("a") == []


async def delete(cluster: Cluster) -> None:
    with suppress(StreamNotFoundError):
        await cluster.streams.delete("s", "a")
    assert (await cluster.scopes.streams("s", after="", count=10)).names == []
    assert cluster.memory_segments.names() == []


async def update(cluster: Cluster) -> None:
    await cluster.streams.update("s", "a", StreamConfigurationRecord(tags=("blue", "green")))
    for tag, names in (("blue", ["a"]), ("green", ["a"]), ("red", [])):
        page = await cluster.scopes.streams_with_tag("s", tag, after="", count=10)
        assert page.names == names


async def update_to_more_segments(cluster: Cluster) -> None:
    policy = ScalingPolicy(segment_count_min=6)
    await cluster.streams.update("s", "a", StreamConfigurationRecord(scaling=policy))
    assert len(await cluster.current("a")) == 6


async def create_scope(cluster: Cluster) -> None:
    with suppress(ScopeExistsError):
        await cluster.scopes.create("t")
    assert await cluster.scopes.exists("t")


async def delete_scope(cluster: Cluster) -> None:
    with suppress(ScopeNotFoundError):
        await cluster.scopes.delete("s")
    assert not await cluster.scopes.exists("s")
    assert cluster.memory_tables.names() == ["_system/_tables/scopes"]


async def delete_scope_with_content(cluster: Cluster) -> None:
    with suppress(ScopeNotFoundError):
        await cluster.scopes.delete_with_content("s")
    assert not await cluster.scopes.exists("s")
    assert cluster.memory_segments.names() == []


async def prepared(before: Step) -> Cluster:
    cluster = Cluster(settings=SETTINGS)
    await cluster.start()
    await before(cluster)
    await cluster.check()
    return cluster


@pytest.mark.parametrize("behind", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize(
    ("before", "operation"),
    [
        (nothing, create),
        (a_scope_with_history, create),
        (a_stream, split_first),
        (a_scaled_stream, merge_all),
        (a_scaled_stream, truncate),
        (a_stream, seal),
        (a_sealed_stream, delete),
        (a_stream, update),
        (a_scaled_stream, update_to_more_segments),
        (nothing, create_scope),
        (a_scope_with_history, delete_scope),
        (a_truncated_stream, delete_scope_with_content),
    ],
    ids=lambda step: step.__name__ if callable(step) else None,
)
async def test_an_operation_that_dies_at_any_step_is_finished_by_the_next_process(
    before: Step, operation: Step, *, behind: bool
) -> None:
    cluster = await prepared(before)
    cluster.plan.arm(die_at=0, behind=False)
    await operation(cluster)
    await cluster.check()
    steps = cluster.plan.count
    assert steps > 0
    for die_at in range(1, steps + 1):
        cluster = await prepared(before)
        cluster.plan.arm(die_at=die_at, behind=behind)
        with pytest.raises(ProcessDiedError):
            await operation(cluster)
        await cluster.restart()
        await cluster.check()
        await operation(cluster)
        await cluster.check()


@pytest.mark.parametrize("die_at", range(1, 12))
async def test_a_process_that_dies_while_it_resumes_is_followed_by_one_that_finishes(
    die_at: int,
) -> None:
    cluster = await prepared(a_scaled_stream)
    cluster.plan.arm(die_at=4, behind=True)
    with pytest.raises(ProcessDiedError):
        await merge_all(cluster)
    for _ in range(3):
        cluster.memory_segments = cluster.memory_segments.restarted()
        cluster.memory_tables = cluster.memory_tables.restarted()
        cluster.plan.dead = False
        cluster.plan.arm(die_at=die_at, behind=False)
        cluster._build()
        with suppress(ProcessDiedError):
            await cluster.start()
    await cluster.restart()
    await cluster.check()
    assert len(await cluster.current("a")) == 1
