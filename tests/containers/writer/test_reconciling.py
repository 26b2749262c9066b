"""The last look at the bytes, and what a former life left in Tier 2. The storage writer runs in virtual time."""

import asyncio

import pytest

from containers.container_settings import WriterSettings
from containers.writer.backlog import ALL_IS_DUE
from segmentstore.contracts.errors import (
    DataCorruptionError,
)
from segmentstore.contracts.identifiers import SegmentId
from segmentstore.contracts.storage import DataPiece
from tests.containers.writer.memory_storage import MemoryStorage
from tests.containers.writer.running_writer import flush_all, make_writer, running
from tests.containers.writer.simulated_writer import simulate
from tests.containers.writer.small_container import (
    EVENTS,
    WRITER,
    SmallContainer,
    checksum_of,
)


def test_h21_bytes_that_changed_in_memory_halt_before_anything_is_published() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        good, bad = container.create("good"), container.create("bad")
        container.append(good, b"good")
        container.append(bad, b"x" * 100_000)
        container.bytes_of[bad][77_777] ^= 1
        writer = await make_writer(container, storage)
        writer.set_pressure(ALL_IS_DUE)
        with pytest.raises(DataCorruptionError, match="bytes in memory"):
            await writer.run()
        assert not storage.attempts
        assert not container.told

    simulate(scenario)


@pytest.mark.parametrize("flipped", [999, 1000, 50_000, 99_999])
def test_h21_a_run_that_a_truncation_cuts_is_checked_with_the_part_that_is_dropped(
    flipped: int,
) -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        segment_id = container.create("a")
        container.append(segment_id, bytes(60_000))
        container.append(segment_id, bytes(40_000))
        container.truncate(segment_id, 1000)
        container.bytes_of[segment_id][flipped] ^= 1
        writer = await make_writer(container, storage)
        writer.set_pressure(ALL_IS_DUE)
        with pytest.raises(DataCorruptionError, match="bytes in memory"):
            async with asyncio.timeout(100):
                await writer.run()
        assert not storage.attempts

    simulate(scenario)


def test_h21_a_cut_run_whose_bytes_are_right_is_published() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        source, target = container.create("source"), container.create("target")
        container.append(target, b"in front")
        container.append(source, b"0123456789" * 3000)
        container.append(source, b"abcdefghij")
        container.seal(source)
        container.merge(target, source)
        container.truncate(target, 8 + 20_000)
        async with running(container, storage) as writer:
            await flush_all(container, writer)
            container.check_equal(storage)
            assert storage.landed[-1].segments[-1].record.start_offset == 20_008

    simulate(scenario)


@pytest.mark.parametrize("flipped", [9, 15, 21])
def test_h21_the_rest_of_a_run_that_tier_2_has_in_part_is_checked_with_what_tier_2_has(
    flipped: int,
) -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        segment_id = await _publish_two_thirds(container, storage)
        again = container.recovered(storage)
        again.bytes_of[segment_id][flipped] ^= 1
        attempts = len(storage.attempts)
        writer = await make_writer(again, storage)
        writer.set_pressure(ALL_IS_DUE)
        with pytest.raises(DataCorruptionError, match="bytes in memory"):
            async with asyncio.timeout(100):
                await writer.run()
        assert len(storage.attempts) == attempts

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
    writer.set_pressure(ALL_IS_DUE)
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
            again, storage, settings, prepare=lambda writer: writer.set_pressure(ALL_IS_DUE)
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
        writer.set_pressure(ALL_IS_DUE)
        with pytest.raises(DataCorruptionError, match="not those of the log"):
            await writer.run()
        assert len(storage.landed) == landed
        assert not again.acknowledged

    simulate(scenario)
