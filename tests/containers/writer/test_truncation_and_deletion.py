"""What is gone before or while it is published. The storage writer runs in virtual time."""

import asyncio

import pytest

from containers.container_settings import WriterSettings
from segmentstore.contracts.storage import DataPiece
from tests.containers.writer.memory_storage import MemoryStorage
from tests.containers.writer.running_writer import flush_all, running
from tests.containers.writer.simulated_writer import publications_of, simulate
from tests.containers.writer.small_container import (
    EVENTS,
    SmallContainer,
)


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
