"""The storage writer over a small container and a Tier 2 in memory, in virtual time."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest

from containers.writer.settings import WriterSettings
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    DataCorruptionError,
    StorageNotPrimaryError,
)
from segmentstore.contracts.identifiers import AttributeKey, SegmentId, SequenceNumber
from segmentstore.contracts.storage import DataPiece, MergePiece, SegmentPublication
from tests.containers.writer.memory_storage import Fault, MemoryStorage
from tests.containers.writer.running_writer import flush_all, make_writer, running
from tests.containers.writer.small_container import (
    EVENTS,
    WRITER,
    SmallContainer,
    checksum_of,
)
from tests.sim.simulation import run_simulation

World = tuple[SmallContainer, MemoryStorage]


def simulate(scenario: Callable[[SmallContainer, MemoryStorage], Awaitable[None]]) -> World:
    """Run it in virtual time; everything that lands in Tier 2 is compared with the history."""
    container, storage = SmallContainer(), MemoryStorage()

    async def check_acknowledged(number: int) -> None:
        container.check_acknowledged(storage, number)

    async def main(_: object) -> None:
        storage.after_change = lambda: container.check_stored(storage)
        container.on_acknowledge = check_acknowledged
        await scenario(container, storage)

    run_simulation(1, main)
    return container, storage


def publications_of(storage: MemoryStorage, segment_id: SegmentId) -> list[SegmentPublication]:
    return [
        change
        for publication in storage.landed
        for change in publication.segments
        if change.record.segment_id == segment_id
    ]


def test_a_small_append_reaches_tier_2_when_it_is_ten_seconds_old() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        async with running(container, storage):
            container.append(container.create("a"), b"hello")
            await asyncio.sleep(9.9)
            assert not storage.landed
            await asyncio.sleep(0.2)
            container.check_equal(storage)

    simulate(scenario)


def test_an_empty_segment_gets_a_record() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        async with running(container, storage) as writer:
            segment_id = container.create("empty", [(EVENTS, 0), (WRITER, 7)])
            await flush_all(container, writer)
            assert storage.segments[segment_id].record.length == 0
            container.check_equal(storage)

    simulate(scenario)


def test_a_segment_over_the_size_limit_is_flushed_at_once_and_the_young_ones_are_not() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        async with running(container, storage, WriterSettings(flush_bytes=1000)):
            big, small = container.create("big"), container.create("small")
            container.append(small, b"x" * 10)
            container.append(big, b"y" * 1000)
            await asyncio.sleep(0.1)
            assert list(storage.segments) == [big]

    simulate(scenario)


def test_a_round_takes_along_everything_at_least_half_as_old() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        async with running(container, storage):
            for number in range(30):
                container.append(container.create(f"s{number}"), b"x")
                await asyncio.sleep(0.5)
            container.append(late := container.create("late"), b"x")
            await asyncio.sleep(2)
            assert late not in storage.segments
            assert len(storage.landed) <= 2

    simulate(scenario)


@pytest.mark.parametrize("verb", ["seal", "truncate", "merge", "delete"])
def test_what_readers_of_tier_2_wait_for_is_published_soon(verb: str) -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        async with running(container, storage) as writer:
            segment_id, source_id = container.create("a"), container.create("b")
            container.append(segment_id, b"12345")
            container.append(source_id, b"67", seal=True)
            await flush_all(container, writer)
            match verb:
                case "seal":
                    container.seal(segment_id)
                case "truncate":
                    container.truncate(segment_id, 3)
                case "merge":
                    container.merge(segment_id, source_id)
                case _:
                    container.delete(segment_id)
            await asyncio.sleep(1.2)
            container.check_equal(storage)

    simulate(scenario)


def test_pressure_flushes_everything_at_once() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        async with running(container, storage) as writer:
            container.append(container.create("a"), b"x")
            await asyncio.sleep(0.1)
            assert not storage.landed
            writer.set_pressure(1.0)
            await asyncio.sleep(0.1)
            container.check_equal(storage)

    simulate(scenario)


def test_a_publication_is_bounded_and_the_rest_goes_with_the_next() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        settings = WriterSettings(publication_bytes_max=1000)
        async with running(container, storage, settings) as writer:
            segment_ids = [container.create(f"s{number}") for number in range(10)]
            for segment_id in segment_ids:
                container.append(segment_id, b"z" * 300)
            await flush_all(container, writer)
            container.check_equal(storage)
        for publication in storage.landed:
            pieces = [piece for change in publication.segments for piece in change.pieces]
            runs = [run for piece in pieces if isinstance(piece, DataPiece) for run in piece.runs]
            assert sum(map(len, runs)) <= 1000
        assert len(storage.landed) == 4

    simulate(scenario)


def test_one_segment_larger_than_a_publication_goes_in_prefixes_of_its_operations() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        settings = WriterSettings(publication_bytes_max=1000)
        segment_id = container.create("a")
        for number in range(20):
            container.append(segment_id, bytes([number]) * 100, [(EVENTS, number)])
            container.update(segment_id, [(WRITER, number)])  # closes the run
        container.append(segment_id, b"end", seal=True)
        async with running(container, storage, settings) as writer:
            await flush_all(container, writer)
            container.check_equal(storage)
        assert len(publications_of(storage, segment_id)) == 3

    simulate(scenario)


def test_reading_goes_on_while_a_publication_is_under_way() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        storage.delay = lambda: 30.0
        async with running(container, storage) as writer:
            segment_id = container.create("a")
            container.seal(other := container.create("b"))
            await asyncio.sleep(5)
            assert len(storage.attempts) == 1
            assert not storage.landed
            container.append(segment_id, b"meanwhile")
            await asyncio.sleep(1)
            assert writer.statistics().consumed_up_to == 4
            await flush_all(container, writer)
            container.check_equal(storage)
            assert other in storage.segments

    simulate(scenario)


def test_idle_time_is_used_for_maintenance_and_garbage() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        async with running(container, storage):
            await asyncio.sleep(35)
        assert storage.maintenances == 3
        assert storage.garbage_collections == 3

    simulate(scenario)


def test_maintenance_comes_every_few_publications_of_a_busy_writer() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        settings = WriterSettings(maintenance_publications=4, maintenance_seconds=1e6)
        async with running(container, storage, settings) as writer:
            segment_id = container.create("a")
            for _ in range(12):
                container.append(segment_id, b"x")
                await flush_all(container, writer)
        assert storage.maintenances == 3

    simulate(scenario)


# --- what acknowledged means ---------------------------------------------------------------------


def test_h13_what_is_acknowledged_is_under_a_published_root() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        async with running(container, storage) as writer:
            old = container.create("old")  # 1
            container.append(old, b"x")  # 2
            await asyncio.sleep(1)
            sealed = container.create("sealed")  # 3
            container.seal(sealed)  # 4
            await asyncio.sleep(2)
            assert sealed in storage.segments
            assert not container.acknowledged  # the old segment holds everything back
            await flush_all(container, writer)
            await asyncio.sleep(1)
            assert container.acknowledged == [4]

    simulate(scenario)


def test_h13_attributes_alone_hold_the_log_back() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        async with running(container, storage) as writer:
            segment_id = container.create("a")
            await flush_all(container, writer)
            container.update(segment_id, [(WRITER, 5)])
            container.checkpoint()
            await asyncio.sleep(5)
            assert container.acknowledged == [1]
            await asyncio.sleep(6)
            assert container.acknowledged == [1, 3]
            assert storage.segments[segment_id].attributes == {WRITER: 5}

    simulate(scenario)


def test_h13_checkpoints_and_reactivations_are_acknowledged_without_a_publication() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        async with running(container, storage) as writer:
            segment_id = container.create("a")
            await flush_all(container, writer)
            landed = len(storage.landed)
            container.checkpoint()
            container.reactivate(segment_id)
            await asyncio.sleep(0.1)
            assert container.acknowledged[-1] == 3
            assert len(storage.landed) == landed

    simulate(scenario)


def test_h14_a_segment_that_is_never_quiet_is_flushed_every_ten_seconds() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        async with running(container, storage):
            segment_id = container.create("hot")
            for number in range(600):
                container.append(segment_id, b"e", [(WRITER, number)])
                await asyncio.sleep(0.1)
            behind = container.metadata.committed_sequence_number - container.acknowledged[-1]
            assert behind <= 101
            assert 5 <= len(storage.landed) <= 7

    simulate(scenario)


def test_h15_attributes_are_those_of_the_bytes_they_are_published_with() -> None:
    """While a publication is under way, later values come; what lands still has the earlier ones."""

    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        storage.delay = lambda: 5.0
        async with running(container, storage) as writer:
            segment_id = container.create("a")
            for number in range(10):
                container.append(segment_id, b"event", [(EVENTS, number), (WRITER, number)])
            flushed = asyncio.ensure_future(flush_all(container, writer))
            await asyncio.sleep(1)
            for number in range(10, 100):
                container.append(segment_id, b"event", [(EVENTS, number), (WRITER, number)])
            await flushed
            stored = storage.segments[segment_id]
            assert stored.record.length == 50
            assert stored.record.core_attributes == {EVENTS: 9}
            assert stored.attributes == {WRITER: 9}

    simulate(scenario)


def test_h73_an_append_and_its_seal_are_never_published_apart() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        settings = WriterSettings(read_items_max=1, publication_bytes_max=10)
        segment_id = container.create("a")
        container.append(segment_id, b"x" * 8)
        container.update(segment_id, [(EVENTS, 1)])
        container.append(segment_id, b"y" * 30, seal=True)
        storage.delay = lambda: 0.001
        async with running(container, storage, settings) as writer:
            writer.set_pressure(1.0)
            await flush_all(container, writer)
            container.check_equal(storage)  # and check_stored() after each publication

    simulate(scenario)


# --- merges --------------------------------------------------------------------------------------


def test_h17_published_bytes_are_moved_and_the_source_leaves_in_the_same_publication() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        async with running(container, storage) as writer:
            target, source = container.create("t"), container.create("s")
            container.append(target, b"target.")
            container.append(source, b"published.")
            await flush_all(container, writer)
            container.append(source, b"pending.", seal=True)
            container.merge(target, source)
            container.append(target, b"after")
            await flush_all(container, writer)
            container.check_equal(storage)
            assert storage.segments[target].content == b"target.published.pending.after"
            last = storage.landed[-1]
            assert [(c.record.segment_id, c.deleted) for c in last.segments] == [
                (source, True),
                (target, False),
            ]
            move, data = last.segments[1].pieces
            assert move == MergePiece(7, source, 10)
            assert isinstance(data, DataPiece)
            assert data.offset == 17
            assert container.told[-3:] == [
                ("published", target),
                ("merged", source),
                ("removed", source),
            ]

    simulate(scenario)


def test_h18_a_source_that_tier_2_never_had_becomes_bytes_of_the_target() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        async with running(container, storage) as writer:
            target = container.create("t")
            for number in range(5):
                source = container.create(f"t#transaction.{number}")
                container.append(source, b"transaction", seal=True)
                container.merge(target, source)
            await flush_all(container, writer)
            container.check_equal(storage)
            assert len(storage.landed) == 1
            assert [c.record.segment_id for c in storage.landed[0].segments] == [target]
            assert len(container.removed) == 5

    simulate(scenario)


@pytest.mark.parametrize(
    "flushed_before", [(), ("a",), ("b",), ("c",), ("a", "b"), ("a", "b", "c")]
)
def test_h18_chains_of_merges_keep_their_order(flushed_before: tuple[str, ...]) -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        async with running(container, storage) as writer:
            ids: dict[str, SegmentId] = {}
            for name in "abc":
                if name in flushed_before:
                    ids[name] = container.create(name)
                    container.append(ids[name], name.encode() * 3)
            await flush_all(container, writer)
            for name in "abc":
                if name not in flushed_before:
                    ids[name] = container.create(name)
                container.append(ids[name], name.upper().encode() * 2)
            container.seal(ids["a"])
            container.merge(ids["b"], ids["a"])
            container.append(ids["b"], b"!", seal=True)
            container.merge(ids["c"], ids["b"])
            await flush_all(container, writer)
            container.check_equal(storage)
            assert list(storage.segments) == [ids["c"]]

    simulate(scenario)


def test_h18_a_merge_waits_for_the_publication_that_has_its_source() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        storage.delay = lambda: 5.0
        async with running(container, storage) as writer:
            target, source = container.create("t"), container.create("s")
            container.append(source, b"in flight", seal=True)
            await asyncio.sleep(3)  # the round of the seal has begun
            assert storage.attempts
            assert not storage.landed
            container.merge(target, source)
            await flush_all(container, writer)
            container.check_equal(storage)
            (_, second) = storage.landed[:2]
            moved = [c.pieces for c in second.segments if c.record.segment_id == target]
            assert moved == [[MergePiece(0, source, 9)]]

    simulate(scenario)


def test_h18_a_source_too_large_for_one_publication_is_flushed_first() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        settings = WriterSettings(publication_bytes_max=100)
        target, source = container.create("t"), container.create("s")
        container.append(target, b"target.")
        for number in range(10):
            container.append(source, bytes([65 + number]) * 60)
            container.update(source, [(EVENTS, number)])
        container.seal(source)
        container.merge(target, source)
        container.append(target, b"after")
        async with running(container, storage, settings) as writer:
            await flush_all(container, writer)
            container.check_equal(storage)
        sizes = [
            sum(
                len(run) for piece in c.pieces if isinstance(piece, DataPiece) for run in piece.runs
            )
            for p in storage.landed
            for c in p.segments
        ]
        assert max(sizes) <= 100

    simulate(scenario)


def test_h18_a_long_chain_of_merges_is_not_a_deep_recursion() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        previous = container.create("c0")
        for number in range(1, 400):
            following = container.create(f"c{number}")
            container.append(previous, b"x", seal=True)
            container.merge(following, previous)
            previous = following
        async with running(container, storage) as writer:
            await flush_all(container, writer)
            container.check_equal(storage)
        assert storage.segments[previous].content == b"x" * 399

    simulate(scenario)


def test_h18_deleting_a_target_deletes_the_sources_that_wait_in_it() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        async with running(container, storage) as writer:
            first, second, target = (container.create(name) for name in "abc")
            for segment_id in (first, second, target):
                container.append(segment_id, b"bytes")
            await flush_all(container, writer)
            container.seal(first)
            container.merge(second, first)
            container.seal(second)
            container.merge(target, second)
            container.delete(target)
            await flush_all(container, writer)
            assert not storage.segments
            container.check_equal(storage)
            assert container.removed == [first, second, target]

    simulate(scenario)


# --- truncation, deletion ------------------------------------------------------------------------


def test_h19_bytes_truncated_before_they_were_flushed_are_skipped() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        async with running(container, storage) as writer:
            segment_id = container.create("a")
            container.append(segment_id, b"x" * 100)
            await flush_all(container, writer)
            container.append(segment_id, b"y" * 100)
            container.truncate(segment_id, 150)
            container.append(segment_id, b"z" * 10)
            await flush_all(container, writer)
            container.check_equal(storage)
            (piece,) = storage.landed[-1].segments[0].pieces
            assert isinstance(piece, DataPiece)
            assert piece.offset == 150
            assert [bytes(run) for run in piece.runs] == [b"y" * 50, b"z" * 10]

    simulate(scenario)


def test_h19_everything_truncated_publishes_both_ends_and_no_bytes() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        async with running(container, storage) as writer:
            segment_id = container.create("a")
            container.append(segment_id, b"x" * 100)
            container.truncate(segment_id, 100)
            await flush_all(container, writer)
            record = storage.segments[segment_id].record
            assert (record.start_offset, record.length) == (100, 100)
            assert not storage.landed[-1].segments[0].pieces

    simulate(scenario)


@pytest.mark.parametrize("offset", [3, 5, 8, 12, 14, 15])
def test_h19_truncation_into_merged_bytes_leaves_no_hole(offset: int) -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        async with running(container, storage) as writer:
            target, source = container.create("t"), container.create("s")
            container.append(source, b"1234567")
            await flush_all(container, writer)
            container.append(target, b"abcde")
            container.append(source, b"89", seal=True)
            container.merge(target, source)
            container.append(target, b"f")
            container.truncate(target, offset)
            await flush_all(container, writer)
            container.check_equal(storage)

    simulate(scenario)


def test_h20_a_segment_deleted_before_it_was_published_never_reaches_tier_2() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        async with running(container, storage) as writer:
            segment_id = container.create("a")
            container.append(segment_id, b"x")
            container.delete(segment_id)
            await flush_all(container, writer)
            assert not storage.attempts
            assert container.removed == [segment_id]
            await asyncio.sleep(0.1)
            assert container.acknowledged == [3]

    simulate(scenario)


def test_h20_a_delete_during_a_publication_follows_it() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        storage.delay = lambda: 5.0
        async with running(container, storage) as writer:
            segment_id = container.create("a")
            container.append(segment_id, b"x", seal=True)
            await asyncio.sleep(3)
            assert storage.attempts
            container.delete(segment_id)
            await flush_all(container, writer)
            assert [c.deleted for c in publications_of(storage, segment_id)] == [False, True]
            container.check_equal(storage)

    simulate(scenario)


def test_h20_a_recreated_name_follows_its_predecessor() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        async with running(container, storage) as writer:
            first = container.create("name")
            container.append(first, b"first")
            await flush_all(container, writer)
            container.delete(first)
            second = container.create("name")
            container.append(second, b"second")
            container.delete(second)
            third = container.create("name")
            container.append(third, b"third")
            await flush_all(container, writer)
            container.check_equal(storage)
            last = storage.landed[-1].segments
            assert [(c.record.segment_id, c.deleted) for c in last] == [
                (first, True),
                (third, False),
            ]

    simulate(scenario)


def test_h20_a_name_recreated_while_its_predecessor_waits_in_a_merge_is_found_under_the_new_id() -> (
    None
):
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        settings = WriterSettings(publication_bytes_max=100)
        async with running(container, storage, settings) as writer:
            target, source = container.create("t"), container.create("s")
            container.append(source, b"source", seal=True)
            await flush_all(container, writer)
            for number in range(5):
                container.append(target, b"x" * 90)
                container.update(target, [(EVENTS, number)])
            container.merge(target, source)
            again = container.create("s")
            container.append(again, b"again")
            await flush_all(container, writer)
            container.check_equal(storage)

    simulate(scenario)


# --- last look, reconciliation -------------------------------------------------------------------


def test_h21_bytes_that_changed_in_memory_halt_before_anything_is_published() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        good, bad = container.create("good"), container.create("bad")
        container.append(good, b"good")
        container.append(bad, b"x" * 100_000)
        container.bytes_of[bad][77_777] ^= 1
        writer = await make_writer(container, storage)
        writer.set_pressure(1.0)
        with pytest.raises(DataCorruptionError, match="bytes in memory"):
            await writer.run()
        assert not storage.attempts
        assert not container.told

    simulate(scenario)


async def _publish_two_thirds(container: SmallContainer, storage: MemoryStorage) -> SegmentId:
    segment_id = container.create("a", [(WRITER, 0)])
    async with running(container, storage) as writer:
        container.append(segment_id, b"published", [(EVENTS, 1)])
        await flush_all(container, writer)
    container.append(segment_id, b"not published", [(EVENTS, 2)])
    return segment_id


def test_h16_a_run_that_tier_2_has_in_part_is_flushed_from_where_tier_2_ends() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        segment_id = await _publish_two_thirds(container, storage)
        again = container.recovered(storage)
        async with running(again, storage) as writer:
            await flush_all(again, writer)
            again.check_equal(storage)
            (piece,) = storage.landed[-1].segments[0].pieces
            assert isinstance(piece, DataPiece)
            assert piece.offset == 9
            assert again.metadata.by_id[segment_id].storage_length == 22

    simulate(scenario)


def test_h16_a_publication_that_nobody_was_told_of_is_believed() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        await _publish_two_thirds(container, storage)
        merged = container.create("b")
        container.seal(merged)
        container.merge(SegmentId(1), merged)
        again = container.recovered(storage, refreshed=False)
        async with running(again, storage) as writer:
            await flush_all(again, writer)
            again.check_equal(storage)

    simulate(scenario)


def test_h16_bytes_in_tier_2_that_were_never_committed_halt() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        segment_id = await _publish_two_thirds(container, storage)
        again = container.recovered(storage, refreshed=False)
        again.metadata.by_id[segment_id].length = 5
        again.metadata.by_id[segment_id].pending_length = 5
        await _expect_halt(again, storage, "never committed")

    simulate(scenario)


def test_h31_a_storage_length_that_tier_2_does_not_have_halts() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        segment_id = await _publish_two_thirds(container, storage)
        again = container.recovered(storage)
        again.metadata.by_id[segment_id].set_storage_length(10)
        await _expect_halt(again, storage, "lost bytes")

    simulate(scenario)


def test_h31_a_record_that_tier_2_lost_halts() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        segment_id = await _publish_two_thirds(container, storage)
        again = container.recovered(storage)
        del storage.segments[segment_id]
        await _expect_halt(again, storage, "lost the record")

    simulate(scenario)


async def _expect_halt(container: SmallContainer, storage: MemoryStorage, words: str) -> None:
    landed = len(storage.landed)
    writer = await make_writer(container, storage)
    writer.set_pressure(1.0)
    with pytest.raises(DataCorruptionError, match=words):
        await writer.run()
    assert len(storage.landed) == landed
    assert not container.acknowledged


def test_h32_nothing_is_published_twice_when_the_whole_log_is_replayed() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        target, source = container.create("t"), container.create("s")
        for segment_id in (target, source):
            container.append(segment_id, b"bytes", [(EVENTS, 1), (WRITER, 2)])
        async with running(container, storage) as writer:
            await flush_all(container, writer)
            container.append(source, b"more", seal=True)
            container.merge(target, source)
            container.truncate(target, 3)
            container.delete(gone := container.create("gone"))
            await flush_all(container, writer)
            container.delete(published := container.create("published"))
            await flush_all(container, writer)
        landed, loads = len(storage.landed), storage.loads
        again = container.recovered(storage)
        async with running(again, storage) as writer:
            await flush_all(again, writer)
            await asyncio.sleep(60)
            assert len(storage.landed) == landed
            assert storage.loads <= loads + 1  # for what is deleted, and Tier 2 lacks
            assert sorted(again.removed) == [source, gone, published]
            assert again.acknowledged[-1] == container.metadata.committed_sequence_number
            again.check_equal(storage)

    simulate(scenario)


def test_h32_items_that_the_root_covers_are_ignored_without_a_look_at_tier_2() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        target, source = container.create("t"), container.create("s")
        container.append(target, b"bytes", [(EVENTS, 1)])
        container.append(source, b"more", seal=True)
        container.merge(target, source)
        async with running(container, storage) as writer:
            await flush_all(container, writer)
        again = container.recovered(storage)
        async with running(again, storage) as writer:
            await flush_all(again, writer)
            assert storage.loads == 0
            assert again.removed == [source]
            again.check_equal(storage)

    simulate(scenario)


def test_h32_a_source_merged_in_a_former_life_does_not_come_back_while_it_is_replayed() -> None:
    """Items come one by one and everything is due at once, so the source could go before its merge is read."""

    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        target, source = container.create("t"), container.create("s")
        for _ in range(5):
            container.append(source, b"more")
            container.update(source, [(EVENTS, 1)])
        container.seal(source)
        container.merge(target, source)
        async with running(container, storage) as writer:
            await flush_all(container, writer)
        again = container.recovered(storage)
        storage.after_change = lambda: None
        landed = len(storage.landed)
        settings = WriterSettings(read_items_max=1)
        async with running(
            again, storage, settings, prepare=lambda writer: writer.set_pressure(1.0)
        ) as writer:
            await flush_all(again, writer)
            assert len(storage.landed) == landed
            again.check_equal(storage)

    simulate(scenario)


@pytest.mark.parametrize("touched", [True, False])
def test_h16_replayed_bytes_are_compared_before_the_log_may_go(touched: bool) -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        segment_id = await _publish_two_thirds(container, storage)
        if not touched:
            async with running(container.recovered(storage), storage) as writer:
                await flush_all(container, writer)
        again = container.recovered(storage)
        async with running(
            again,
            storage,
            WriterSettings(compare_bytes=4),
            prepare=lambda writer: writer.reconciler.expect(
                segment_id, 1, 7, checksum_of(b"ublishe")
            ),
        ) as writer:
            await flush_all(again, writer)
            await asyncio.sleep(1)
            assert writer.statistics().compared_bytes == 7
            assert again.acknowledged

    simulate(scenario)


@pytest.mark.parametrize("touched", [True, False])
def test_h16_other_bytes_than_the_logs_halt_with_the_evidence_kept(touched: bool) -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        segment_id = await _publish_two_thirds(container, storage)
        if not touched:
            async with running(container.recovered(storage), storage) as writer:
                await flush_all(container, writer)
        again = container.recovered(storage)
        landed = len(storage.landed)
        writer = await make_writer(again, storage)
        writer.reconciler.expect(segment_id, 0, 9, checksum_of(b"published"))
        storage.after_change = lambda: None
        storage.segments[segment_id].content[4] ^= 1
        writer.set_pressure(1.0)
        with pytest.raises(DataCorruptionError, match="not those of the log"):
            await writer.run()
        assert len(storage.landed) == landed
        assert not again.acknowledged

    simulate(scenario)


# --- Tier 2 fails --------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER, Fault.LATE])
def test_the_same_publication_is_handed_in_again_until_it_succeeds(fault: Fault) -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        faults = [fault] * 4
        storage.next_fault = lambda: faults.pop() if faults else Fault.NONE
        async with running(container, storage) as writer:
            segment_id = container.create("a")
            container.append(segment_id, b"x")
            flushed = asyncio.ensure_future(flush_all(container, writer))
            await asyncio.sleep(0.01)
            assert writer.statistics().state == "unavailable"
            container.append(segment_id, b"y")
            await flushed
            assert writer.statistics().state == "ok"
            assert len({id(attempt) for attempt in storage.attempts}) == 1
            await flush_all(container, writer)
            container.check_equal(storage)

    simulate(scenario)


def test_pauses_grow_up_to_a_limit() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        times: list[float] = []

        def fail() -> Fault:
            times.append(asyncio.get_running_loop().time())
            return Fault.BEFORE

        storage.next_fault = fail
        async with running(container, storage) as writer:
            container.seal(container.create("a"))
            await asyncio.sleep(600)
            pauses = [second - first for first, second in itertools.pairwise(times)]
            assert 0.05 <= pauses[0] <= 0.1
            assert all(5 <= pause <= 10 for pause in pauses[8:])
            assert writer.statistics().failures_in_a_row == len(times)
            storage.next_fault = lambda: Fault.NONE
            await flush_all(container, writer)
            container.check_equal(storage)

    simulate(scenario)


@pytest.mark.parametrize("fault", [Fault.FULL, Fault.FULL_LATE])
def test_h52_deleting_a_segment_frees_a_full_tier_2(fault: Fault) -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        async with running(container, storage) as writer:
            full_of = container.create("full of it")
            container.append(full_of, b"x" * 1000)
            await flush_all(container, writer)
            storage.next_fault = lambda: (
                fault if full_of in storage.segments and _adds_bytes(storage) else Fault.NONE
            )
            waiting = [container.create(f"w{number}") for number in range(5)]
            for segment_id in waiting:
                container.append(segment_id, b"y" * 10, seal=True)
            while writer.statistics().state != "full":
                await asyncio.sleep(0.01)
            if fault is Fault.FULL:
                await asyncio.sleep(60)
                assert writer.statistics().state == "full"
                assert storage.garbage_collections > 0
            container.delete(waiting[2])
            container.delete(full_of)
            await flush_all(container, writer)
            container.check_equal(storage)
            assert writer.statistics().state == "ok"

    simulate(scenario)


def test_h52_truncating_a_segment_frees_a_full_tier_2() -> None:
    """The truncated segment has a few bytes pending, others have more than fits."""

    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        settings = WriterSettings(frugal_bytes_max=50)
        async with running(container, storage, settings) as writer:
            full_of = container.create("full of it")
            container.append(full_of, b"x" * 1000)
            await flush_all(container, writer)

            def is_full() -> Fault:
                start = storage.segments[full_of].record.start_offset
                return Fault.FULL if start == 0 and _added_bytes(storage) > 50 else Fault.NONE

            storage.next_fault = is_full
            for number in range(5):
                container.append(container.create(f"w{number}"), b"y" * 100, seal=True)
            container.append(full_of, b"z" * 20)
            await asyncio.sleep(30)
            assert writer.statistics().state == "full"
            container.truncate(full_of, 900)
            await flush_all(container, writer)
            container.check_equal(storage)

    simulate(scenario)


def _added_bytes(storage: MemoryStorage) -> int:
    pieces = [piece for change in storage.attempts[-1].segments for piece in change.pieces]
    return sum(len(run) for piece in pieces if isinstance(piece, DataPiece) for run in piece.runs)


def _adds_bytes(storage: MemoryStorage) -> bool:
    return any(change.pieces for change in storage.attempts[-1].segments)


def test_a_fenced_writer_ends_at_once() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        storage.next_fault = lambda: Fault.FENCED
        container.seal(container.create("a"))
        writer = await make_writer(container, storage)
        async with asyncio.TaskGroup() as group:
            flushed = group.create_task(_outcome_of_flush(writer.flush(SequenceNumber(2))))
            with pytest.raises(StorageNotPrimaryError):
                await writer.run()
            assert isinstance(await flushed, ContainerStoppedError)
        with pytest.raises(ContainerStoppedError):
            await writer.flush(SequenceNumber(2))
        assert not container.acknowledged

    simulate(scenario)


async def _outcome_of_flush(flush: Awaitable[None]) -> BaseException | None:
    try:
        await flush
    except ContainerStoppedError as error:
        return error
    return None


def test_h36_an_hour_without_tier_2_ends_in_one_catch_up() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        storage.next_fault = lambda: Fault.BEFORE
        async with running(container, storage) as writer:
            segment_ids = [container.create(f"s{number}") for number in range(20)]
            for minute in range(60):
                for segment_id in segment_ids:
                    container.append(segment_id, b"x" * 50, [(EVENTS, minute)])
                await asyncio.sleep(60)
            assert not storage.landed
            storage.next_fault = lambda: Fault.NONE
            await asyncio.sleep(25)
            container.check_equal(storage)
            assert len(storage.landed) <= 3
            assert writer.statistics().pending_bytes == 0

    simulate(scenario)


def test_a_cancelled_flush_leaves_nothing_behind() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        async with running(container, storage) as writer:
            flushed = asyncio.ensure_future(writer.flush(SequenceNumber(99)))
            await asyncio.sleep(5)
            flushed.cancel()
            await asyncio.sleep(5)
            container.append(container.create("a"), b"x")
            await asyncio.sleep(5)
            assert not storage.landed  # nobody forces it any more

    simulate(scenario)


def test_records_come_from_memory_while_remembered_and_from_tier_2_otherwise() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        settings = WriterSettings(remembered_records_max=3)
        async with running(container, storage, settings) as writer:
            segment_ids = [container.create(f"s{number}") for number in range(6)]
            await flush_all(container, writer)
            assert storage.loads == 0
            for segment_id in segment_ids[3:]:
                container.append(segment_id, b"x", [(AttributeKey(b"k" * 16), 1)])
            await flush_all(container, writer)
            assert storage.loads == 0
            for segment_id in segment_ids:
                container.append(segment_id, b"y", [(EVENTS, 3)])
            await flush_all(container, writer)
            assert storage.loads == 1
            container.check_equal(storage)

    simulate(scenario)
