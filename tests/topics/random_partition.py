"""A partition under random schedules: producers that send again what failed, failures, restarts, trims, files.

Method: producers keep up to five batches under way, and send again, in order, whatever was not acknowledged, to either
of two owners of the partition. Commits are held back, fail, or the whole store is started again. Both owners make files
of what is in batches and delete dead ones meanwhile; requests to the object store fail, happen although they failed,
come late, and end with the process. In the end the partition is opened anew and the log is compared with what the
producers know.

Invariants that are checked:

- each value of a producer is in the log once, in the order in which it was sent first;
- a batch is told the offset at which the log has it;
- offsets follow one another; what was readable once reads the same for ever, above the log start;
- log start and high watermark never go back; no refusal is told for good to a producer that keeps the rules;
- registered files follow one another without a gap up to the cold end, and each is there; behind a sweep no other is.
"""

import asyncio
from asyncio import Future
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from random import Random

from segmentstore.codec.topic_files import (
    COLD_END,
    FIRST_FILE,
    LAST_FILE,
    RecordFileName,
    decode_file,
    file_key,
)
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    DurableDataLogError,
    LogFullError,
)
from segmentstore.topics.errors import OffsetOutOfRangeError, PartitionUnavailableError
from segmentstore.topics.partition import Partition
from segmentstore.topics.partition_log import Appended
from tests.http.memory_segments import MemorySegments
from tests.sim.loop import SimLoop
from tests.sim.object_store import SimulatedObjectStore, StoreFaults
from tests.topics.batches import (
    SEGMENT,
    SMALL,
    files_in,
    open_partition,
    read_all,
    records_in,
)
from tests.topics.random_producers import (
    IN_FLIGHT_MAX,
    Background,
    Producer,
    Values,
    check_told,
    note_read,
)

OWNERS = 2
PRODUCERS = 3
SETTINGS = replace(SMALL, file_bytes=3_000, file_sweep_seconds=0.0)
FAULTS = StoreFaults(
    error_before=0.05, error_after=0.08, late=0.08, late_seconds_max=30.0, own_retry=0.3
)


class World:
    """One partition's segment, and its owners of the moment."""

    def __init__(self, loop: SimLoop, seed: int) -> None:
        self.random = Random(seed)
        self.segments = MemorySegments()
        self.objects = SimulatedObjectStore(loop, Random(seed + 1), FAULTS)
        self.background = Background()
        self.owners: list[Partition] = []
        self.producers = [Producer(n, Random(self.random.random())) for n in range(PRODUCERS)]
        self.readable: Values = {}
        self.log_start = 0
        self.seen: Counter[str] = Counter()

    async def open_owners(self) -> None:
        self.owners = [await self.opened() for _ in range(OWNERS)]

    async def opened(self) -> Partition:
        """An owner in a process of its own."""
        delay = self.random.choice(["0", "0", "40"])
        return await open_partition(
            self.segments,
            settings=SETTINGS,
            config={"file.delete.delay.ms": delay},
            record_files=files_in(self.objects.mount()),
        )

    async def work_at_files(self) -> None:
        """An owner makes a file, or deletes dead ones; what else happens may come in between."""
        owners = [self.random.choice(self.owners)] if self.random.random() < 0.6 else self.owners
        for owner in owners:
            if not owner.is_open:
                await owner.recover()
        for owner in owners:
            self.start_work(owner, sweeps=self.random.random() < 0.4)
        if self.random.random() < 0.5:
            await self.background.wait()
        else:
            await asyncio.sleep(self.random.random() * 0.03)

    def start_work(self, owner: Partition, *, sweeps: bool) -> None:
        async def work() -> None:
            try:
                if sweeps:
                    self.seen["dead"] += await owner.sweep_files()
                else:
                    self.seen["files"] += bool(await owner.make_file())
            except PartitionUnavailableError:
                self.seen["files refused"] += 1

        self.background.begin(work())

    async def send(self) -> None:
        """Some producers send what they have, each to one owner; meanwhile the log stalls, fails or works."""
        trouble = self.random.random()
        owners = [self.random.choice(self.owners) for _ in self.producers]
        for owner in owners:
            if not owner.is_open:
                await owner.recover()
        if trouble < 0.5:
            self.segments.hold()
        under_way: list[tuple[Producer, list[Future[Appended]], list[Future[Appended]]]] = []
        for producer, owner in zip(self.producers, owners, strict=True):
            while len(producer.waiting) < self.random.randint(1, IN_FLIGHT_MAX):
                producer.make()
            firsts = [owner.produce(batch) for batch, _ in producer.waiting]
            agains = firsts
            if self.random.random() < 0.4:  # as behind a connection that was broken
                agains = [owner.produce(batch) for batch, _ in producer.waiting]
            under_way.append((producer, firsts, agains))
            if self.random.random() < 0.3:
                await asyncio.sleep(0)
        if trouble < 0.25:
            self.segments.fail(
                self.random.choice(
                    [
                        ContainerStoppedError("stopped"),
                        LogFullError("full"),
                        DurableDataLogError("log failed"),
                    ]
                )
            )
            self.seen["failed"] += 1
        elif trouble < 0.5:
            if self.random.random() < 0.3:
                await asyncio.sleep(1)
            self.segments.let_go()
        if trouble > 0.9:
            await self.restart()
            return
        for producer, firsts, agains in under_way:
            await asyncio.gather(*firsts, *agains, return_exceptions=True)
            producer.take(firsts, agains, self.seen)

    async def restart(self) -> None:
        """What is committed at this moment stays; producers hear of nothing that was under way."""
        self.segments.hold()  # the old process commits nothing any more
        self.seen["killed"] += self.background.cancel()
        for owner in self.owners:
            await owner.close()
        self.segments = self.segments.restarted()
        self.seen["restarted"] += 1
        await self.open_owners()

    async def look(self) -> None:
        owner = self.random.choice(self.owners)
        if not owner.is_open:
            await owner.recover()
        offset = self.random.randrange(owner.high_watermark + 1)
        try:
            records = records_in(await owner.fetch(offset, self.random.randrange(2000)))
        except OffsetOutOfRangeError:
            self.seen["below the log start"] += 1
            return
        except PartitionUnavailableError:
            self.seen["read refused"] += 1
            return
        note_read(self.readable, records)
        self.seen["looked"] += 1

    async def trim(self) -> None:
        owner = self.random.choice(self.owners)
        if not owner.is_open:
            await owner.recover()
        before = self.log_start + self.random.choice([self.random.randrange(10), 30])
        before = min(before, owner.high_watermark)
        try:
            self.log_start = max(self.log_start, await owner.delete_records(before))
            self.seen["trimmed"] += 1
        except (OffsetOutOfRangeError, PartitionUnavailableError):
            self.seen["trim refused"] += 1

    async def settle(self) -> None:
        """Every producer gets everything acknowledged."""
        self.objects.settle()
        await self.background.wait()
        for owner in self.owners:
            await owner.close()
        (owner,) = self.owners = [await self.opened()]
        for producer in self.producers:
            answers = [owner.produce(batch) for batch, _ in producer.waiting]
            await asyncio.gather(*answers, return_exceptions=True)
            producer.take(answers, answers, self.seen)
            assert not producer.waiting

    async def check(self) -> None:
        (owner,) = self.owners
        owner.check()
        assert owner.log_start_offset == self.log_start
        records = await read_all(owner)
        assert [r.offset for r in records] == list(range(self.log_start, owner.high_watermark))
        latest = max(records, key=lambda each: each.timestamp_ms, default=None)
        assert await owner.latest_record() == (
            None if latest is None else (latest.offset, latest.timestamp_ms)
        )
        values = {record.offset: record.value for record in records}
        for offset, value in self.readable.items():
            if offset >= self.log_start:
                assert values[offset] == value, f"offset={offset}"
        check_told(self.producers, values, log_start=self.log_start, end=owner.high_watermark)
        await self.check_files()

    async def check_files(self) -> None:
        """What is registered, is there; behind a sweep nothing else is that a sweep deletes."""
        (owner,) = self.owners
        await asyncio.sleep(FAULTS.late_seconds_max)  # puts and deletions that come late as well
        await owner.sweep_files()
        await asyncio.sleep(FAULTS.late_seconds_max)
        await owner.delete_doomed()
        attributes = await self.segments.attributes(SEGMENT)
        first, last = attributes.get(FIRST_FILE, 1), attributes.get(LAST_FILE, 0)
        cold_end = attributes.get(COLD_END, 0)
        assert isinstance(first, int)
        assert isinstance(last, int)
        assert isinstance(cold_end, int)
        files = [decode_file(attributes[file_key(n)]) for n in range(first, last + 1)]
        for one, other in pairwise(files):
            assert one.end_offset == other.first_offset, files
        assert not files or files[-1].end_offset == cold_end
        assert not files or files[0].end_offset > self.log_start
        names = {file.name("t", 0).key for file in files}
        there = set(self.objects.keys())
        assert names <= there, names - there
        for key in there - names:
            name = RecordFileName.parsed(key)
            assert name is not None
            assert not name.name_number, f"dead {key}"
            assert name.first_offset >= cold_end, f"dead {key}"


async def one_schedule(loop: SimLoop, seed: int) -> Counter[str]:
    """What happened, by word."""
    world = World(loop, seed)
    await world.open_owners()
    for _ in range(90):
        choice = world.random.random()
        if choice < 0.45:
            await world.send()
        elif choice < 0.65:
            await world.work_at_files()
        elif choice < 0.9:
            await world.look()
        else:
            await world.trim()
    await world.settle()
    await world.check()
    await world.owners[0].close()
    return world.seen
