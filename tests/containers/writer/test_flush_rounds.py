"""When a round is due, and what it takes along. The storage writer runs in virtual time."""

import asyncio
from itertools import pairwise

import pytest

from containers.container_settings import WriterSettings
from containers.writer.backlog import ALL_IS_DUE, CachePressure
from segmentstore.contracts.identifiers import SHORT_LIVED
from segmentstore.contracts.storage import DataPiece, SegmentPublication
from tests.containers.writer.memory_storage import MemoryStorage
from tests.containers.writer.running_writer import flush_all, running
from tests.containers.writer.simulated_writer import publications_of, simulate
from tests.containers.writer.small_container import (
    EVENTS,
    WRITER,
    SmallContainer,
)


def test_a_small_append_reaches_tier_2_when_it_is_ten_seconds_old() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        async with running(container, storage):
            container.append(container.create("a"), b"hello")
            await asyncio.sleep(9.9)
            assert not storage.landed
            await asyncio.sleep(0.2)
            container.check_equal(storage)

    simulate(scenario)


def test_bytes_of_a_short_lived_segment_wait_longer_and_cost_nothing_once_truncated() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        async with running(container, storage):
            short = container.create("short", [(SHORT_LIVED, 1)])
            container.append(short, b"gone before it is flushed")
            other = container.create("other")
            container.append(other, b"hello")
            await asyncio.sleep(10.5)
            assert list(storage.segments) == [other], "the other one does not take it along"
            container.append(short, b"stays")
            container.truncate(short, 25)
            container.append(short, b" in the log for now")
            await asyncio.sleep(9.5)
            assert list(storage.segments) == [other], "a truncation is not urgent either"
            await asyncio.sleep(1)
            (publication,) = publications_of(storage, short)
            assert pieces_of(publication) == [(25, b"stays")], "up to the truncation"
            await asyncio.sleep(30)
            container.check_equal(storage)
            _, publication = publications_of(storage, short)
            assert pieces_of(publication) == [(30, b" in the log for now")]

    simulate(scenario)


def pieces_of(publication: SegmentPublication) -> list[tuple[int, bytes]]:
    pieces = [piece for piece in publication.pieces if isinstance(piece, DataPiece)]
    return [(each.offset, b"".join(each.runs)) for each in pieces]


def test_bytes_of_a_short_lived_segment_leave_memory_when_they_are_truncated() -> None:
    """Not while a publication has views of them; and then no publication ends before their truncation."""

    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        async with running(container, storage) as writer:
            short = container.create("short", [(SHORT_LIVED, 1)])
            container.append(short, b"x" * 100)
            container.truncate(short, 60)
            await asyncio.sleep(0.1)
            assert short not in container.skipped_offsets, "the checksum is that of the whole run"
            container.append(short, b"y" * 100)
            container.truncate(short, 100)
            container.append(short, b"z" * 10)
            await asyncio.sleep(0.1)
            assert container.skipped_offsets[short] == 100
            assert writer.statistics().pending_bytes == 110
            await flush_all(container, writer)
            container.check_equal(storage)
            assert container.skipped_offsets[short] == 100

    simulate(scenario)


def test_many_bytes_that_were_truncated_are_published_as_gone_so_that_the_log_ends() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        async with running(container, storage, WriterSettings(flush_bytes=1000)):
            short = container.create("short", [(SHORT_LIVED, 1)])
            for number in range(1, 4):
                container.append(short, b"x" * 1_000)
                container.truncate(short, number * 1_000)
                await asyncio.sleep(0.1)
                assert bool(publications_of(storage, short)) == (number == 3)
            container.check_equal(storage)
            (publication,) = publications_of(storage, short)
            assert pieces_of(publication) == []

    simulate(scenario)


def test_short_lived_segments_feel_the_cache_later_than_others() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        async with running(container, storage) as writer:
            short = container.create("short", [(SHORT_LIVED, 1)])
            container.append(short, b"x")
            other = container.create("other")
            container.append(other, b"x")
            writer.set_pressure(CachePressure(1.0, 0.5))
            await asyncio.sleep(0.1)
            assert list(storage.segments) == [other]
            await asyncio.sleep(14.8)
            assert list(storage.segments) == [other]
            await asyncio.sleep(0.2)
            container.check_equal(storage)

    simulate(scenario)


def test_a_short_lived_segment_is_flushed_at_three_times_the_age_or_size_and_under_pressure() -> (
    None
):
    async def aged(container: SmallContainer, storage: MemoryStorage) -> None:
        async with running(container, storage):
            container.append(container.create("short", [(SHORT_LIVED, 1)]), b"x")
            await asyncio.sleep(29.8)
            assert not storage.segments
            await asyncio.sleep(0.4)
            container.check_equal(storage)

    async def large(container: SmallContainer, storage: MemoryStorage) -> None:
        async with running(container, storage, WriterSettings(flush_bytes=1000)):
            short = container.create("short", [(SHORT_LIVED, 1)])
            container.append(short, b"x" * 2_900)
            await asyncio.sleep(0.1)
            assert not storage.segments
            container.append(short, b"x" * 100)
            await asyncio.sleep(0.1)
            container.check_equal(storage)

    async def forced(container: SmallContainer, storage: MemoryStorage) -> None:
        async with running(container, storage) as writer:
            container.append(container.create("short", [(SHORT_LIVED, 1)]), b"x")
            await flush_all(container, writer)
            container.check_equal(storage)

    for scenario in (aged, large, forced):
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
            writer.set_pressure(ALL_IS_DUE)
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


def test_very_many_operations_of_one_segment_go_piece_by_piece_and_at_once() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        segment_id = container.create("a")
        for number in range(10_000):
            container.update(segment_id, [(WRITER, number)])
        async with running(container, storage):
            await asyncio.sleep(10.5)  # the items that are left keep their age
            assert storage.segments[segment_id].record.sequence_number == 10_001
        numbers = [c.record.sequence_number for c in publications_of(storage, segment_id)]
        taken = [later - earlier for earlier, later in pairwise([0, *numbers])]
        assert max(taken) <= WriterSettings().segment_items_max

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
