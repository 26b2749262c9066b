"""After a recovery from Tier 2 alone, streams and segments agree again, and nothing is deleted (H78)."""

import pytest

from segmentstore.codec.controller_records.stream_records import SealedSegmentRecord
from segmentstore.codec.stream_names import number_of
from segmentstore.controller.errors import RetryLaterError
from segmentstore.controller.streams.repair import (
    NUMBERS_SKIPPED,
    RepairReport,
    TailIsLost,
    nothing_is_lost,
)
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
    await cluster.streams.seal("s", "a")
    await cluster.streams.delete("s", "a")
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
        await cluster.streams.seal("s", "a")
    assert operations.unfinished_count == before + 1
    await cluster.repair.repair_all()
    await cluster.streams.seal("s", "a")
    assert await cluster.current("a") == []
    await cluster.check()


def tail_lost(name: str) -> bool:
    """Tier 1 of every container went."""
    return bool(name)


async def recovered(cluster: Cluster, is_lost: TailIsLost = tail_lost) -> RepairReport:
    report = await cluster.repair.repair_all(is_lost)
    await cluster.start()
    await cluster.repair.end_lost_tails(is_lost, report)
    return report


async def events(cluster: Cluster, stream: str, segment_id: int, length: int) -> None:
    history = await cluster.streams.operations.history("s", stream)
    async with cluster.memory_segments.open_segment(history.segment_name(segment_id)) as segment:
        await segment.append(b"x" * length, events=1)


async def test_h78_a_segment_that_may_have_lost_its_tail_ends_and_its_stream_goes_on_in_others() -> (
    None
):
    """Otherwise new bytes would get offsets that readers and writers know of lost ones."""
    cluster = await a_stream_with_history()
    before = await cluster.current("a")
    for segment_id in before:
        await events(cluster, "a", segment_id, 20)
    ranges = [
        (each.low, each.high) for each in await cluster.streams.queries.current_segments("s", "a")
    ]
    report = await recovered(cluster)
    names = ["s/a/1.#epoch.0", "s/a/2.#epoch.1", "s/a/3.#epoch.1"]
    assert sorted(report.ended) == [f"{name} at {30}" for name in names]
    assert report.failures == []
    for name in names:
        assert (await cluster.memory_segments.info(name)).sealed
    after = await cluster.streams.queries.current_segments("s", "a")
    assert [(each.low, each.high) for each in after] == ranges
    assert not {each.segment_id for each in after} & set(before)
    await cluster.check()
    again = await recovered(cluster, nothing_is_lost)
    assert (again.ended, again.created) == ([], [])
    assert [each.segment_id for each in after] == await cluster.current("a")


@pytest.mark.parametrize("is_lost", [tail_lost, nothing_is_lost])
async def test_h78_a_stream_goes_on_behind_an_active_segment_that_came_back_sealed(
    is_lost: TailIsLost,
) -> None:
    """A scale sealed it, and the record of that did not reach Tier 2: it takes no bytes, and had no successor."""
    cluster = await a_stream_with_history()
    for segment_id in await cluster.current("a"):
        await events(cluster, "a", segment_id, 20)
    await cluster.memory_segments.seal("s/a/1.#epoch.0")
    await cluster.memory_segments.create("s/a/4.#epoch.2")
    report = await recovered(cluster, is_lost)
    assert "s/a/1.#epoch.0 at 30" in report.ended
    assert report.failures == []
    history = await cluster.streams.operations.history("s", "a")
    for segment_id in await cluster.current("a"):
        info = await cluster.memory_segments.info(history.segment_name(segment_id))
        assert not info.sealed, info.name
    assert len(await cluster.streams.queries.successors("s", "a", 1)) == 1
    await cluster.memory_segments.delete("s/a/4.#epoch.2")
    await cluster.check()
    assert (await recovered(cluster, nothing_is_lost)).ended == []


async def test_h78_only_segments_of_containers_without_their_log_end() -> None:
    cluster = await a_stream_with_history()
    for segment_id in await cluster.current("a"):
        await events(cluster, "a", segment_id, 20)
    report = await recovered(cluster, lambda name: name == "s/a/1.#epoch.0")
    assert report.ended == ["s/a/1.#epoch.0 at 30"]
    assert [each >> 32 for each in await cluster.current("a")] == [1, 1, 2]
    await cluster.check()


async def test_h78_numbers_that_a_lost_table_may_have_given_are_not_given_again() -> None:
    cluster = await a_stream_with_history()
    for segment_id in await cluster.current("a"):
        await events(cluster, "a", segment_id, 20)
    await recovered(cluster)
    await cluster.create("new")
    await cluster.scopes.create("t")
    for scope, stream in (("s", "a"), ("s", "new")):
        current = await cluster.streams.queries.current_segments(scope, stream)
        assert all(number_of(each.segment_id) >= NUMBERS_SKIPPED for each in current), stream
    assert await cluster.metadata.first_segment_number("t") >= NUMBERS_SKIPPED
    await recovered(cluster)
    assert await cluster.metadata.first_segment_number("s") >= 2 * NUMBERS_SKIPPED


async def test_h78_epochs_of_segments_that_no_stream_lists_are_not_given_again() -> None:
    """A commit behind a scale gives its segments numbers that are in use, and the epoch alone tells them apart."""
    cluster = await a_stream_with_history()
    stranger = "s/a/1.#epoch.5"
    await cluster.memory_segments.create(stranger)
    assert (await recovered(cluster, nothing_is_lost)).strangers == [stranger]
    history = await cluster.streams.operations.history("s", "a")
    assert (await history.state()).last_epoch == 5
    assert (await history.epoch(5)).segments == (await history.epoch(1)).segments
    await cluster.streams.scaling.scale("s", "a", sealed=[1], ranges=[(0.5, 1.0)])
    assert (await history.state()).last_epoch == 6
    await cluster.memory_segments.delete(stranger)
    await cluster.check()


async def test_h78_a_replaced_segment_that_came_back_shorter_is_sealed_and_the_loss_has_a_name() -> (
    None
):
    cluster = await a_stream_with_history()
    await cluster.streams.scaling.scale("s", "a", sealed=[1], ranges=[(0.5, 1.0)])
    name = "s/a/1.#epoch.0"
    await cluster.memory_segments.delete(name)
    await cluster.memory_segments.create(name)
    await events(cluster, "a", 1, 4)
    report = await recovered(cluster, nothing_is_lost)
    assert report.shorter == [f"{name} by 6 bytes"]
    assert (await cluster.memory_segments.info(name)).sealed
    history = await cluster.streams.operations.history("s", "a")
    assert (await history.sealed([1]))[1].record == SealedSegmentRecord(2, 4)
    assert (await recovered(cluster, nothing_is_lost)).shorter == []
    await cluster.check()


async def test_h78_a_byte_stream_stays_in_its_segment_and_is_named() -> None:
    """Its clients read and write the active segment alone: ended, its bytes would be out of their reach."""
    cluster = Cluster()
    await cluster.start()
    await cluster.scopes.create("s")
    await cluster.create("bytes")
    await cluster.append("bytes", 0, 10)
    report = await recovered(cluster)
    assert (report.ended, report.byte_segments) == ([], ["s/bytes/0.#epoch.0 at 10"])
    assert await cluster.current("bytes") == [0]
    # As a client of it does, without a word to the controller.
    await cluster.memory_segments.seal("s/bytes/0.#epoch.0")
    report = await recovered(cluster)
    assert (report.ended, report.byte_segments) == ([], [])
    assert await cluster.current("bytes") == [0]


async def test_h78_a_scope_whose_table_is_lost_is_empty_and_keeps_nobody_from_coming_back() -> None:
    cluster = await a_stream_with_history()
    await cluster.scopes.create("t")
    await cluster.memory_tables.delete_table("_system/_tables/s/1", must_be_empty=False)
    strangers = cluster.memory_segments.names()
    report = await recovered(cluster)
    assert report.created == ["_system/_tables/s/1"]
    assert sorted(report.strangers) == sorted(strangers)
    await cluster.create("a")
    [segment_id] = await cluster.current("a")
    assert number_of(segment_id) >= NUMBERS_SKIPPED
    assert (await recovered(cluster, nothing_is_lost)).created == []
