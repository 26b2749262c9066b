"""Merges: published bytes move, others are written under the target, sources leave in the same round (virtual time)."""

import asyncio
from itertools import groupby

import pytest

from containers.container_settings import WriterSettings
from segmentstore.contracts.identifiers import SegmentId
from segmentstore.contracts.storage import DataPiece, MergePiece
from tests.containers.writer.memory_storage import MemoryStorage
from tests.containers.writer.running_writer import flush_all, running
from tests.containers.writer.simulated_writer import simulate
from tests.containers.writer.small_container import (
    EVENTS,
    SmallContainer,
)


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


def test_very_many_merges_into_one_segment_are_completed_piece_by_piece() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        target = container.create("t")
        for number in range(1_500):
            source = container.create(f"s{number}")
            container.append(source, b"x", seal=True)
            container.merge(target, source)
        async with running(container, storage):
            await asyncio.sleep(1.5)
            assert storage.segments[target].record.length == 1_500
            assert storage.segments[target].record.sequence_number == 4_501
        in_a_row = [
            len(list(told))
            for what, told in groupby(w for w, _ in container.told if w != "removed")
            if what == "merged"
        ]
        assert sum(in_a_row) == 1_500
        assert max(in_a_row) <= WriterSettings().segment_items_max // 8

    simulate(scenario)


def test_a_source_of_very_many_operations_is_flushed_first() -> None:
    async def scenario(container: SmallContainer, storage: MemoryStorage) -> None:
        target, source = container.create("t"), container.create("s")
        for number in range(9_000):
            container.update(source, [(EVENTS, number)])
        container.append(source, b"end", seal=True)
        container.merge(target, source)
        async with running(container, storage) as writer:
            await flush_all(container, writer)
            container.check_equal(storage)
        numbers = [
            c.record.sequence_number
            for p in storage.landed
            for c in p.segments
            if c.record.segment_id == source and not c.deleted
        ]
        assert len(numbers) == 2

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
