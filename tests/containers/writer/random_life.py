"""One seed, one life of a writer: random operations, settings, faults and crashes; then everything has to agree.

After every landing Tier 2 is compared with the history, after every acknowledgement too, and at the end, when the
faults are off, Tier 2 must equal the container exactly.
"""

import asyncio
from dataclasses import replace
from random import Random

from containers.container_settings import WriterSettings
from containers.writer.backlog import CachePressure
from containers.writer.storage_writer import StorageWriter
from segmentstore.contracts.identifiers import SHORT_LIVED, AttributeKey, Epoch, SegmentId
from segmentstore.contracts.storage import ClaimedManifest, Storage
from tests.containers.writer.memory_storage import Fault, MemoryStorage
from tests.containers.writer.running_writer import started_writer
from tests.containers.writer.small_container import EVENTS, WRITER, SmallContainer, checksum_of
from tests.sim.simulation import run_simulation

_NAMES = [f"segment-{number}" for number in range(6)]
_FAULTS = [Fault.BEFORE, Fault.AFTER, Fault.LATE, Fault.FULL, Fault.FULL_LATE]


class RandomLife:
    def __init__(self, seed: int, kind: type[StorageWriter]) -> None:
        self.random = Random(seed)
        self.kind = kind
        self.storage = MemoryStorage()
        self.container = SmallContainer()
        self.settings = replace(self._draw_settings(), segment_items_max=(1, 20, 1000)[seed % 3])
        self.operations = self.random.choice([30, 100, 300])
        self.fault_probability = self.random.choice([0.0, 0.1, 0.4])
        self.crash_probability = self.random.choice([0.0, 0.01, 0.04])
        self.refreshed = self.random.random() < 0.7
        self.storage.next_fault = self._draw_fault
        self.storage.delay = lambda: self.random.expovariate(4.0)
        self.storage.read_fault = lambda: self.random.random() < self.fault_probability / 2
        self.storage.lands_before_claim = lambda: self.random.random() < 0.5
        self.storage.after_change = lambda: self.container.check_stored(self.storage)
        self._value = 0

    def _draw_settings(self) -> WriterSettings:
        random = self.random
        return WriterSettings(
            flush_bytes=random.choice([1, 50, 1000]),
            flush_interval_seconds=random.choice([0.5, 5.0]),
            prompt_age_seconds=random.choice([0.0, 1.0]),
            publication_bytes_max=random.choice([1, 40, 300, 100_000]),
            frugal_bytes_max=random.choice([1, 100]),
            publication_segments_max=random.choice([1, 3, 1000]),
            merge_depth_max=random.choice([1, 2, 32]),
            read_items_max=random.choice([1, 3, 1000]),
            slice_count=random.choice([1, 2, 200]),
            inline_check_bytes_max=random.choice([0, 1000]),
            check_batch_bytes=random.choice([1, 1000]),
            maintenance_publications=random.choice([1, 16]),
            remembered_records_max=random.choice([1, 1000]),
            load_records_max=random.choice([1, 1000]),
            compare_bytes=random.choice([1, 1000]),
        )

    def _draw_fault(self) -> Fault:
        if self.random.random() >= self.fault_probability:
            return Fault.NONE
        return self.random.choice(_FAULTS)

    async def live(self) -> None:
        for life_number in range(20):
            if life_number == 10:
                self.crash_probability = 0.0
            storage, claimed = await self.new_owner()
            if self.container.steps:
                self.container = self.container.recovered(self.storage, refreshed=self.refreshed)
            self._watch()
            writer = started_writer(self.container, storage, claimed, self.settings, self.kind)
            self._expect_replayed_bytes(writer)
            if not await self._run_until_crash(writer):
                return
        raise AssertionError("more crashes than a life should have")

    async def new_owner(self) -> tuple[Storage, ClaimedManifest]:
        """Tier 2 as the next owner claims it; `storage` then shows what is in it."""
        epoch = Epoch(self.storage.epoch + 1)
        return self.storage, await self.storage.claim(epoch=epoch, log_id=b"log")

    async def look_at_tier_2(self) -> None:
        """Make `storage` show what is in Tier 2 now."""

    def _watch(self) -> None:
        self.container.acknowledge_delay = self.random.choice([0.0, 0.2])
        self.container.on_acknowledge = self._check_acknowledged

    async def _check_acknowledged(self, number: int) -> None:
        await self.look_at_tier_2()
        self.container.check_stored(self.storage)
        self.container.check_acknowledged(self.storage, number)

    def _expect_replayed_bytes(self, writer: StorageWriter) -> None:
        for segment_id, stored in self.storage.segments.items():
            start, end = stored.record.start_offset, stored.record.length
            if self.random.random() < 0.5 and start < end:
                offset = self.random.randrange(start, end)
                content = self.container.bytes_of[segment_id][offset:end]
                writer.reconciler.expect(segment_id, offset, end - offset, checksum_of(content))

    async def _run_until_crash(self, writer: StorageWriter) -> bool:
        crashed = False
        async with asyncio.TaskGroup() as group:
            task = group.create_task(writer.run())
            while self.operations > 0:
                self.operations -= 1
                for _ in range(self.random.choice([1, 1, 5])):
                    self.operate()
                await asyncio.sleep(self.random.expovariate(5.0))
                writer.check()
                if self.random.random() < 0.05:
                    writer.set_pressure(CachePressure(*self.random.choices([0.0, 0.5, 1.0], k=2)))
                if self.random.random() < self.crash_probability:
                    crashed = True
                    break
            if not crashed:
                await self._calm_down(writer)
            task.cancel()
        return crashed

    def calm(self) -> None:
        """No more faults."""
        self.fault_probability = 0.0

    async def _calm_down(self, writer: StorageWriter) -> None:
        self.calm()
        try:
            async with asyncio.timeout(3000):
                await writer.flush(self.container.metadata.committed_sequence_number)
        except TimeoutError:
            raise AssertionError(f"never caught up: {writer.describe()}") from None
        writer.check()
        await asyncio.sleep(30)
        await self.look_at_tier_2()
        self.container.check_equal(self.storage)
        statistics = writer.statistics()
        assert statistics.state == "ok", f"{statistics}"
        assert (statistics.pending_segments, statistics.pending_bytes) == (0, 0), f"{statistics}"
        assert statistics.acknowledged_up_to == self.container.metadata.sequence_number
        left = [segment for segment in self.container.metadata.by_id.values() if segment.is_gone()]
        assert not left, f"Tier 2 has followed, memory has not: {left}"

    # --- operations ---------------------------------------------------------------------------

    def operate(self) -> None:
        random, container = self.random, self.container
        name = random.choice(_NAMES)
        segment = container.metadata.get(name)
        if segment is None:
            attributes = [(EVENTS, 0), (WRITER, 0)] if random.random() < 0.5 else []
            if random.random() < 0.4:
                attributes = [*attributes, (SHORT_LIVED, 1)]
            container.create(name, attributes)
            return
        segment_id = SegmentId(segment.segment_id)
        chance = random.random()
        if chance < 0.08:
            self._update(segment_id)
        elif chance < 0.14:
            container.truncate(segment_id, random.randint(segment.start_offset, segment.length))
        elif chance < 0.18:
            container.delete(segment_id)
        elif chance < 0.28:
            self._merge(segment_id)
        elif chance < 0.30:
            container.checkpoint()
        elif chance < 0.32:
            container.reactivate(segment_id)
        elif segment.sealed:
            self._update(segment_id)
        elif chance < 0.37:
            container.seal(segment_id)
        else:
            self._append(segment_id)

    def _append(self, segment_id: SegmentId) -> None:
        data = self.random.randbytes(self.random.choice([0, 1, 10, 60, 200]))
        changes = self._changes() if self.random.random() < 0.6 else None
        seal = self.random.random() < 0.1
        self.container.append(segment_id, data, changes, seal=seal)

    def _update(self, segment_id: SegmentId) -> None:
        self.container.update(segment_id, self._changes())

    def _changes(self) -> list[tuple[AttributeKey, int | None]]:
        self._value += 1
        chance = self.random.random()
        if chance < 0.3:
            return [(EVENTS, self._value)]
        if chance < 0.6:
            return [(WRITER, self._value)]
        if chance < 0.7:
            return [(WRITER, None), (EVENTS, None)]
        return [(EVENTS, self._value), (WRITER, self._value)]

    def _merge(self, source_id: SegmentId) -> None:
        target = self.container.metadata.get(self.random.choice(_NAMES))
        source = self.container.metadata.by_id[source_id]
        if target is None or target is source or target.sealed or source.start_offset:
            return
        if not source.sealed:
            self.container.seal(source_id)
        self.container.merge(SegmentId(target.segment_id), source_id)


def live(seed: int, kind: type[StorageWriter] = StorageWriter) -> RandomLife:
    """Raises whatever went wrong."""
    life = RandomLife(seed, kind)
    run_simulation(seed, lambda _: life.live())
    return life
