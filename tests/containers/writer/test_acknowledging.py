"""What "acknowledged" means: everything of it is under a published root, state and bytes together (virtual time)."""

import asyncio

from containers.container_settings import WriterSettings
from containers.writer.backlog import ALL_IS_DUE
from tests.containers.writer.memory_storage import MemoryStorage
from tests.containers.writer.running_writer import flush_all, running
from tests.containers.writer.simulated_writer import simulate
from tests.containers.writer.small_container import (
    EVENTS,
    WRITER,
    SmallContainer,
)


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
            writer.set_pressure(ALL_IS_DUE)
            await flush_all(container, writer)
            container.check_equal(storage)  # and check_stored() after each publication

    simulate(scenario)
