"""Stream cuts: where a stream begins, what lies between two of them, which cuts are none."""

import pytest

from segmentstore.controller.errors import (
    PreconditionError,
)
from tests.controller.cluster import Cluster

EPOCH = 1 << 32


async def cluster_with(stream: str, *, segments: int = 1) -> Cluster:
    cluster = Cluster()
    await cluster.start()
    await cluster.scopes.create("s")
    await cluster.create(stream, segments=segments)
    return cluster


async def scale(
    cluster: Cluster, sealed: list[int], ranges: list[tuple[float, float]], stream: str = "a"
) -> None:
    await cluster.streams.scaling.scale("s", stream, sealed=sealed, ranges=ranges)


async def between(cluster: Cluster, start: dict[int, int], end: dict[int, int]) -> list[int]:
    found = await cluster.streams.queries.segments_between("s", "a", start, end)
    return sorted(segment.segment_id for segment in found)


async def test_the_head_follows_truncation_and_what_lies_behind_goes() -> None:
    cluster = await cluster_with("a", segments=2)
    await scale(cluster, [0], [(0.0, 0.25), (0.25, 0.5)])
    for segment_id in (EPOCH | 2, EPOCH | 3, 1):
        await cluster.append("a", segment_id, 10)
    cut = {1: 4, EPOCH | 2: 0, EPOCH | 3: 7}
    await cluster.streams.truncation.truncate("s", "a", cut)
    assert await cluster.streams.queries.segments_at("s", "a", 0) == cut
    assert "s/a/0.#epoch.0" not in cluster.memory_segments.names()
    info = await cluster.memory_segments.info("s/a/3.#epoch.1")
    assert info.start_offset == 7
    await cluster.streams.truncation.truncate("s", "a", cut)
    await cluster.check()


async def test_an_offset_below_zero_is_the_start_of_the_segment() -> None:
    cluster = await cluster_with("a", segments=2)
    await cluster.append("a", 0, 5)
    await cluster.streams.truncation.truncate("s", "a", {0: 5, 1: -1})
    assert await cluster.streams.queries.segments_at("s", "a", 0) == {0: 5, 1: 0}


@pytest.mark.parametrize(
    "cut",
    [
        {},
        {0: 0},
        {0: 0, 1: 0, EPOCH | 2: 0},
        {EPOCH | 2: 3, EPOCH | 3: 0, 1: 0},
        {EPOCH | 2: 0, EPOCH | 3: 0, 1: 99},
        {EPOCH | 2: 0, 1: 0},
    ],
    ids=["empty", "gap", "overlap", "before the head", "past the end", "hole"],
)
async def test_a_cut_that_does_not_fit_truncates_nothing(cut: dict[int, int]) -> None:
    cluster = await cluster_with("a", segments=2)
    await scale(cluster, [0], [(0.0, 0.25), (0.25, 0.5)])
    for segment_id in (EPOCH | 2, EPOCH | 3, 1):
        await cluster.append("a", segment_id, 10)
    head = {1: 0, EPOCH | 2: 5, EPOCH | 3: 0}
    await cluster.streams.truncation.truncate("s", "a", head)
    with pytest.raises(PreconditionError):
        await cluster.streams.truncation.truncate("s", "a", cut)
    assert not await cluster.streams.queries.is_cut_valid("s", "a", cut)
    assert await cluster.streams.queries.segments_at("s", "a", 0) == head
    await cluster.check()


async def test_a_segment_that_a_cut_runs_around_is_kept() -> None:
    # 0 and 1, then 0 splits in 2 and 3, then 3 and 1 merge in 4: a cut at 2 and 4 leaves nothing of 0, 1 and 3; a cut
    # at 2, 3 and 1 leaves nothing of 0.
    cluster = await cluster_with("a", segments=2)
    await scale(cluster, [0], [(0.0, 0.25), (0.25, 0.5)])
    await scale(cluster, [EPOCH | 3, 1], [(0.25, 1.0)])
    await cluster.streams.truncation.truncate("s", "a", {EPOCH | 2: 0, EPOCH | 3: 0, 1: 0})
    assert [name for name in cluster.memory_segments.names() if "/a/" in name] == [
        "s/a/1.#epoch.0",
        "s/a/2.#epoch.1",
        "s/a/3.#epoch.1",
        "s/a/4.#epoch.2",
    ]
    await cluster.streams.truncation.truncate("s", "a", {EPOCH | 2: 0, 2 * EPOCH | 4: 0})
    assert [name for name in cluster.memory_segments.names() if "/a/" in name] == [
        "s/a/2.#epoch.1",
        "s/a/4.#epoch.2",
    ]
    await cluster.check()


async def test_segments_between_two_cuts_are_those_with_bytes_there() -> None:
    cluster = await cluster_with("a", segments=2)
    await scale(cluster, [0], [(0.0, 0.25), (0.25, 0.5)])
    await scale(cluster, [EPOCH | 3, 1], [(0.25, 1.0)])
    assert await between(cluster, {}, {}) == [0, 1, EPOCH | 2, EPOCH | 3, 2 * EPOCH | 4]
    assert await between(cluster, {0: 0, 1: 0}, {0: 5, 1: 5}) == [0, 1]
    assert await between(cluster, {0: 0, 1: 0}, {EPOCH | 2: 0, EPOCH | 3: 0, 1: 3}) == [
        0,
        1,
        EPOCH | 2,
        EPOCH | 3,
    ]
    assert await between(cluster, {EPOCH | 2: 0, 2 * EPOCH | 4: 1}, {}) == [
        EPOCH | 2,
        2 * EPOCH | 4,
    ]
    with pytest.raises(PreconditionError):
        await between(cluster, {EPOCH | 2: 0, 2 * EPOCH | 4: 1}, {0: 0, 1: 0})
    with pytest.raises(PreconditionError):
        await between(cluster, {0: 0}, {})


async def test_a_time_gives_the_segments_that_were_active_then() -> None:
    cluster = await cluster_with("a")
    times = []
    for _ in range(5):
        times.append(cluster.clock.ms)
        cluster.clock.ms += 1000
        await scale(cluster, await cluster.current("a"), [(0.0, 1.0)])
    for epoch, time in enumerate(times):
        at = await cluster.streams.queries.segments_at("s", "a", time + 500)
        assert at == {epoch << 32 | epoch: 0}
    assert await cluster.streams.queries.segments_at("s", "a", 1) == {0: 0}
    cut = {2 << 32 | 2: 0}
    await cluster.streams.truncation.truncate("s", "a", cut)
    assert await cluster.streams.queries.segments_at("s", "a", times[0]) == cut
