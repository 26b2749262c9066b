"""A partition under random schedules: idempotent producers that send again what failed, failures, restarts, trims.

Method: producers keep up to five batches under way, and send again, in order, whatever was not acknowledged, to either
of two owners of the partition. Commits are held back, fail, or the whole store is started again. In the end the
partition is opened anew and the log is compared with what the producers know.

Invariants that are checked:

- each value of a producer is in the log once, in the order in which it was sent first;
- a batch is told the offset at which the log has it;
- offsets follow one another; what was readable once reads the same for ever, above the log start;
- log start and high watermark never go back; no refusal is told for good to a producer that keeps the rules.
"""

import asyncio
from asyncio import Future
from collections import Counter
from random import Random

from segmentstore.codec.record_batch import Compression
from segmentstore.contracts.errors import (
    ContainerStoppedError,
    DurableDataLogError,
    LogFullError,
)
from segmentstore.topics.errors import OffsetOutOfRangeError, PartitionUnavailableError
from segmentstore.topics.partition import Appended, Partition
from tests.http.memory_segments import MemorySegments
from tests.sim.loop import SimLoop
from tests.topics.batches import NOW, batch_of, open_partition, read_all, records_in

OWNERS = 2
PRODUCERS = 3
IN_FLIGHT_MAX = 5


class Producer:
    """Idempotent, as Kafka's clients are: in order, and again from the first one that failed."""

    def __init__(self, number: int, random: Random) -> None:
        self.number = number
        self.random = random
        self.next_sequence = 0
        self.waiting: list[tuple[bytes, list[bytes]]] = []
        """Not acknowledged: batches and their values."""
        self.offsets: dict[bytes, int] = {}
        """Of acknowledged values."""
        self.sent: list[bytes] = []

    def make(self) -> None:
        count = self.random.randint(1, 3)
        values = [
            b"%d:%d:" % (self.number, self.next_sequence + i) + b"x" * self.random.randrange(200)
            for i in range(count)
        ]
        batch = batch_of(
            *values,
            time=NOW + self.random.randrange(1000),
            producer=(self.number, 0, self.next_sequence),
            compression=self.random.choice([Compression.NONE, Compression.ZSTD]),
        )
        self.next_sequence += count
        self.waiting.append((batch, values))
        self.sent += values

    def take(
        self,
        firsts: "list[Future[Appended]]",
        agains: "list[Future[Appended]]",
        seen: Counter[str],
    ) -> None:
        """What was not acknowledged, the first time or again, stays to be sent."""
        outcomes = [
            again if first.exception() else first
            for first, again in zip(firsts, agains, strict=True)
        ]
        kept: list[tuple[bytes, list[bytes]]] = []
        for (batch, values), outcome in zip(self.waiting, outcomes, strict=True):
            error = outcome.exception()
            if error is None:
                appended = outcome.result()
                seen["duplicate"] += appended.duplicate
                seen["appended"] += not appended.duplicate
                for i, value in enumerate(values):
                    self.offsets[value] = appended.base_offset + i
            else:
                assert isinstance(error, PartitionUnavailableError), repr(error)
                seen[f"stored={error.stored}"] += 1
                kept.append((batch, values))
        self.waiting = kept


class World:
    """One partition's segment, and its owners of the moment."""

    def __init__(self, loop: SimLoop, seed: int) -> None:
        self.random = Random(seed)
        self.segments = MemorySegments()
        self.owners: list[Partition] = []
        self.producers = [Producer(n, Random(self.random.random())) for n in range(PRODUCERS)]
        self.readable: dict[int, bytes | None] = {}
        self.log_start = 0
        self.seen: Counter[str] = Counter()

    async def open_owners(self) -> None:
        self.owners = [await open_partition(self.segments) for _ in range(OWNERS)]

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
        for record in records:
            known = self.readable.setdefault(record.offset, record.value)
            assert known == record.value, f"offset={record.offset}"
        self.seen["looked"] += 1

    async def trim(self) -> None:
        owner = self.random.choice(self.owners)
        if not owner.is_open:
            await owner.recover()
        before = self.log_start + self.random.randrange(10)
        try:
            self.log_start = max(self.log_start, await owner.delete_records(before))
            self.seen["trimmed"] += 1
        except (OffsetOutOfRangeError, PartitionUnavailableError):
            self.seen["trim refused"] += 1

    async def settle(self) -> None:
        """Every producer gets everything acknowledged."""
        for owner in self.owners:
            await owner.close()
        (owner,) = self.owners = [await open_partition(self.segments)]
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
        values = {record.offset: record.value for record in records}
        for offset, value in self.readable.items():
            if offset >= self.log_start:
                assert values[offset] == value, f"offset={offset}"
        everything = sorted(
            (offset, value) for p in self.producers for value, offset in p.offsets.items()
        )
        assert [offset for offset, _ in everything] == list(range(owner.high_watermark))
        for offset, value in everything:
            assert offset < self.log_start or values[offset] == value, f"offset={offset}"
        for producer in self.producers:
            offsets = [producer.offsets[value] for value in producer.sent]
            assert offsets == sorted(offsets), "a producer's records changed places"


async def one_schedule(loop: SimLoop, seed: int) -> Counter[str]:
    """What happened, by word."""
    world = World(loop, seed)
    await world.open_owners()
    for _ in range(60):
        choice = world.random.random()
        if choice < 0.6:
            await world.send()
        elif choice < 0.9:
            await world.look()
        else:
            await world.trim()
    await world.settle()
    await world.check()
    await world.owners[0].close()
    return world.seen
