"""After a recovery from Tier 2 alone, streams and segments agree again, and nothing is deleted (H78)."""

import pytest

from segmentstore.controller.errors import RetryLaterError
from tests.controller.cluster import Cluster

EPOCH = 1 << 32


async def a_stream_with_history() -> Cluster:
    cluster = Cluster()
    await cluster.start()
    await cluster.scopes.create("s")
    await cluster.create("a", segments=2)
    await cluster.streams.scaling.scale("s", "a", sealed=[0], ranges=[(0.0, 0.2), (0.2, 0.5)])
    for segment_id in await cluster.current("a"):
        await cluster.append("a", segment_id, 10)
    return cluster


async def test_h78_a_whole_store_needs_no_repair() -> None:
    cluster = await a_stream_with_history()
    report = await cluster.repair.repair_all()
    assert (report.created, report.moved_heads, report.strangers) == ([], [], [])


async def test_h78_missing_segments_come_back_empty_and_sealed_if_they_were_replaced() -> None:
    cluster = await a_stream_with_history()
    for number in ("0.#epoch.0", "3.#epoch.1"):
        await cluster.memory_segments.delete(f"s/a/{number}")
    report = await cluster.repair.repair_all()
    assert report.created == ["s/a/0.#epoch.0", "s/a/3.#epoch.1"]
    assert (await cluster.memory_segments.info("s/a/0.#epoch.0")).sealed
    assert not (await cluster.memory_segments.info("s/a/3.#epoch.1")).sealed
    assert (await cluster.repair.repair_all()).created == []
    await cluster.streams.sealing.seal("s", "a")
    await cluster.streams.deletion.delete("s", "a")
    await cluster.check()


async def test_h78_a_head_behind_the_end_moves_to_it() -> None:
    cluster = await a_stream_with_history()
    await cluster.streams.truncation.truncate("s", "a", {1: 4, EPOCH | 2: 0, EPOCH | 3: 7})
    await cluster.memory_segments.delete("s/a/3.#epoch.1")
    report = await cluster.repair.repair_all()
    assert report.created == ["s/a/3.#epoch.1"]
    assert report.moved_heads == ["s/a"]
    head = await cluster.streams.queries.segments_at("s", "a", 0)
    assert head == {1: 4, EPOCH | 2: 0, EPOCH | 3: 0}
    await cluster.check()


async def test_h78_strangers_are_reported_and_stay() -> None:
    cluster = await a_stream_with_history()
    strangers = ["s/a/9.#epoch.7", "s/b/0.#epoch.0", "t/c/0.#epoch.0"]
    others = ["notes", "s/t_kvtable/0.#epoch.0", f"s/a/1.#epoch.0#transaction.{0:032x}"]
    for name in strangers + others:
        await cluster.memory_segments.create(name)
    report = await cluster.repair.repair_all()
    assert report.strangers == strangers
    assert report.stranger_count == 3
    assert set(strangers + others) <= set(cluster.memory_segments.names())


async def test_h78_a_new_segment_never_takes_a_strangers_place() -> None:
    """What the records have lost had numbers that the records would give again."""
    cluster = await a_stream_with_history()
    strangers = ["s/a/4.#epoch.2", "s/b/0.#epoch.0"]
    for name in strangers:
        await cluster.memory_segments.create(name)
        async with cluster.memory_segments.open_segment(name) as segment:
            await segment.append(b"of a stream that is lost")
    assert (await cluster.repair.repair_all()).strangers == strangers
    assert (await cluster.repair.repair_all()).strangers == strangers
    await cluster.restart()
    await cluster.streams.scaling.scale("s", "a", sealed=[1], ranges=[(0.5, 1.0)])
    await cluster.create("b")
    for stream in ("a", "b"):
        history = await cluster.streams.operations.history("s", stream)
        for segment_id in await cluster.current(stream):
            name = history.segment_name(segment_id)
            assert name not in strangers
            assert b"lost" not in cluster.memory_segments.content(name)
    for name in strangers:
        assert cluster.memory_segments.content(name) == b"of a stream that is lost"


async def test_h78_an_operation_whose_segment_is_missing_ends_after_repair() -> None:
    cluster = await a_stream_with_history()
    await cluster.memory_segments.delete("s/a/1.#epoch.0")
    operations = cluster.streams.operations
    before = operations.unfinished_count
    with pytest.raises(RetryLaterError):
        await cluster.streams.sealing.seal("s", "a")
    assert operations.unfinished_count == before + 1
    await cluster.repair.repair_all()
    await cluster.streams.sealing.seal("s", "a")
    assert await cluster.current("a") == []
    await cluster.check()
