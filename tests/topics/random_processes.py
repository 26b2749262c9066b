"""A topic over several processes whose containers move, in random schedules.

Idempotent producers send to the process that another one believes to lead, or to any; containers move while batches and
files are under way, with and without their process noticing; processes end and come back; topics beside it are created
and deleted by any process, in whose files nothing may be left.

Invariants, proved at the end: every record that was acknowledged is there once, at the offset that was told, in the
order of its producer; what was read once is read again; every registered file is there; of deleted topics neither a
segment nor a file is left.
"""

import asyncio
from asyncio import Future
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from random import Random
from uuid import UUID

from segmentstore.codec.topic_files import RecordFileName
from segmentstore.contracts.errors import ContainerStoppedError
from segmentstore.topics.errors import (
    NotLeaderError,
    PartitionUnavailableError,
    TopicError,
    TopicExistsError,
    TopicNotFoundError,
    TopicsUnavailableError,
)
from segmentstore.topics.partition import Partition
from segmentstore.topics.partition_log import Appended
from segmentstore.topics.topic_records import partition_segment_name
from segmentstore.topics.topics import Topics
from tests.sim.loop import SimLoop
from tests.topics.batches import SMALL, batch_of, files_in, read_all, records_in
from tests.topics.random_producers import (
    IN_FLIGHT_MAX,
    Background,
    Producer,
    Values,
    check_told,
    note_read,
)
from tests.topics.several_processes import CONTAINERS, Processes
from tier2.object_stores.memory import MemoryObjectStore

PROCESSES = 3
PARTITIONS = 3
SETTINGS = replace(SMALL, file_bytes=3_000, file_sweep_seconds=0.0, segment_sweep_seconds_first=5.0)


class World:
    """One topic, its producers (two for each partition), and other topics that come and go."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.store = Processes(PROCESSES, seed=seed)
        self.objects = MemoryObjectStore()
        self.topics: list[Topics] = []
        self.producers = {
            index: [Producer(2 * index + n, Random(self.random.random())) for n in range(2)]
            for index in range(PARTITIONS)
        }
        self.read: dict[int, Values] = {index: {} for index in range(PARTITIONS)}
        self.ids_beside: set[UUID] = set()
        """Of all topics that were made beside it."""
        self.background = Background()
        self.seen: Counter[str] = Counter()

    async def start(self) -> None:
        self.topics = [self.new_topics(number) for number in range(PROCESSES)]
        for each in self.topics:
            await each.start()
        await self.topics[0].create("t", PARTITIONS, {})
        for each in self.topics:
            await each.refresh()

    def new_topics(self, number: int) -> Topics:
        return self.store.topics(
            self.store.processes[number],
            settings=SETTINGS,
            record_files=files_in(self.objects),
        )

    def segment(self, index: int) -> str:
        found = self.topics[0].describe("t")
        assert found is not None
        return partition_segment_name("t", found.topic_id, index)

    def believed_leader(self, index: int) -> Topics:
        """As one process has heard; or any."""
        some = self.random.choice(self.store.processes)
        leader = some.leader_of(self.segment(index))
        if leader is None or self.random.random() < 0.1:
            return self.random.choice(self.topics)
        numbers = [each.number for each in self.store.processes if each.broker == leader]
        return self.topics[numbers[0]]

    async def open(self, index: int) -> Partition | None:
        try:
            return await self.believed_leader(index).own_partition("t", index)
        except NotLeaderError:
            self.seen["not leader"] += 1
        except PartitionUnavailableError:
            self.seen["unavailable"] += 1
        return None

    # --- what happens ------------------------------------------------------------------------

    async def send(self) -> None:
        places: list[tuple[Producer, Partition]] = []
        for index, producers in self.producers.items():
            for producer in producers:
                partition = await self.open(index)
                if partition is not None:
                    places.append((producer, partition))
        trouble = self.random.random()
        if trouble < 0.4:
            self.store.segments.hold()
        under_way: list[tuple[Producer, list[Future[Appended]]]] = []
        for producer, partition in places:
            while len(producer.waiting) < self.random.randint(1, IN_FLIGHT_MAX):
                producer.make()
            under_way.append(
                (producer, [partition.produce(batch) for batch, _ in producer.waiting])
            )
            if self.random.random() < 0.3:
                await asyncio.sleep(0)
        if trouble < 0.4:
            if self.random.random() < 0.7:
                self.move()
                self.seen["moved under way"] += 1
            if trouble < 0.2:
                self.store.segments.fail(ContainerStoppedError("moved"))
            else:
                self.store.segments.let_go()
        for producer, futures in under_way:
            await asyncio.gather(*futures, return_exceptions=True)
            if self.random.random() < 0.15:
                self.seen["answers lost"] += 1  # it sends them again, maybe to the next leader
                continue
            producer.take(futures, futures, self.seen)

    def move(self) -> None:
        number = self.random.choice([None, *range(PROCESSES), *range(PROCESSES)])
        self.store.move(self.segment(self.random.randrange(PARTITIONS)), number)
        self.seen["moved"] += 1
        if self.random.random() < 0.5:
            self.notice()

    def notice(self) -> None:
        self.random.choice(self.topics).close_left()
        self.random.choice(self.store.processes).look()

    async def look(self) -> None:
        index = self.random.randrange(PARTITIONS)
        partition = await self.open(index)
        if partition is None:
            return
        offset = self.random.randrange(partition.high_watermark + 1)
        try:
            records = records_in(await partition.fetch(offset, self.random.randrange(2000)))
        except PartitionUnavailableError:
            self.seen["read refused"] += 1
            return
        note_read(self.read[index], records)
        self.seen["looked"] += 1

    async def make_file(self) -> None:
        partition = await self.open(self.random.randrange(PARTITIONS))
        if partition is None:
            return

        async def work() -> None:
            try:
                self.seen["files"] += bool(await partition.make_file())
                if self.random.random() < 0.3:
                    self.seen["dead"] += await partition.sweep_files()
            except TopicError:
                self.seen["files refused"] += 1

        self.background.begin(work())

    async def change_topics(self) -> None:
        """A topic beside it, by any process: made, written to, with a file, deleted."""
        name = self.random.choice(["a", "b"])
        topics = self.random.choice(self.topics)
        other = self.random.choice(self.topics)

        async def work() -> None:
            with suppress(TopicExistsError, TopicsUnavailableError):
                await topics.create(name, 2, {})
                self.seen["created"] += 1
                if (made := topics.describe(name)) is not None:
                    self.ids_beside.add(made.topic_id)
            for each in self.topics:
                with suppress(TopicError):
                    partition = await each.own_partition(name, self.random.randrange(2))
                    await partition.produce(_batch())
                    if self.random.random() < 0.7:
                        self.seen["files beside"] += bool(await partition.make_file())
            if self.random.random() < 0.7:
                with suppress(TopicNotFoundError, TopicsUnavailableError):
                    await other.delete(name)
                    self.seen["deleted"] += 1

        self.background.begin(work())

    async def restart(self) -> None:
        """Another process begins in the place of one, which has lost all containers and goes on with what it was at."""
        number = self.random.randrange(PROCESSES)
        self.store.restart(number)
        old = self.topics[number]
        self.topics[number] = self.new_topics(number)
        self.store.processes[number].look()
        await self.topics[number].start()
        old.close_left()
        self.background.begin(old.close())
        self.seen["restarted"] += 1

    # --- the end -----------------------------------------------------------------------------

    async def settle(self) -> None:
        await self.background.wait()
        for number in range(CONTAINERS):
            self.store.owners[list(self.store.owners)[number]] = number % PROCESSES
        for process, topics in zip(self.store.processes, self.topics, strict=True):
            process.look()
            topics.close_left()
            await topics.refresh()
        for name in ("a", "b"):
            with suppress(TopicNotFoundError):
                await self.topics[0].delete(name)
        for each in self.topics:
            await each._changes.finish_all(each._changes.unsettled())
            await each.refresh()
        await self.topics[0]._gone.sweep_segments()
        for each in self.topics:
            await each.close()  # partitions: what is read at the end is what the segments say
        for index, producers in self.producers.items():
            partition = await self.leader(index)
            for producer in producers:
                answers = [partition.produce(batch) for batch, _ in producer.waiting]
                await asyncio.gather(*answers, return_exceptions=True)
                producer.take(answers, answers, self.seen)
            for producer in producers:
                if producer.waiting:
                    # What was judged beside a failure is judged again.
                    partition = await self.leader(index)
                    answers = [partition.produce(batch) for batch, _ in producer.waiting]
                    await asyncio.gather(*answers, return_exceptions=True)
                    producer.take(answers, answers, self.seen)
                assert not producer.waiting

    async def leader(self, index: int) -> Partition:
        owner = self.store.owner_of(self.segment(index))
        assert owner is not None
        return await self.topics[owner].own_partition("t", index)

    async def check(self) -> None:
        self.store.tables.check()
        assert self.store.segments.names() == sorted(map(self.segment, range(PARTITIONS)))
        for topics in self.topics:
            assert topics.names() == ["t"]
            found = topics.describe("t")
            assert found is not None
            assert topics.describe(found.topic_id) == found
            assert not any(map(topics.describe, self.ids_beside)), "a topic that is gone has its id"
            catalogue = topics._catalogue
            known = {each.record.topic_id: each for each in catalogue.all().values()}
            assert catalogue._by_id == known
        registered: set[str] = set()
        for index, producers in self.producers.items():
            partition = await self.leader(index)
            partition.check()
            records = await read_all(partition)
            assert [each.offset for each in records] == list(range(partition.high_watermark))
            values = {each.offset: each.value for each in records}
            check_told(producers, values, log_start=0, end=partition.high_watermark)
            for offset, value in self.read[index].items():
                assert values[offset] == value, f"partition={index} offset={offset}"
            files = partition._registered
            if len(files):
                segment = partition._log.require_open()
                for file in await files.some(segment, files.first, 1000):
                    registered.add(file.name("t", index).key)
        there = {info.key async for info in self.objects.list("")}
        assert registered <= there, registered - there
        left = [
            key
            for key in there
            if RecordFileName.parsed(key) is not None and not key.startswith("topics/t/")
        ]
        assert not left, left


def _batch() -> bytes:
    return batch_of(b"beside" * 10)


async def one_schedule(loop: SimLoop, seed: int) -> Counter[str]:
    """What happened, by word."""
    del loop
    world = World(seed)
    await world.start()
    for _ in range(80):
        choice = world.random.random()
        if choice < 0.4:
            await world.send()
        elif choice < 0.5:
            world.move()
        elif choice < 0.62:
            world.notice()
        elif choice < 0.75:
            await world.look()
        elif choice < 0.87:
            await world.make_file()
        elif choice < 0.95:
            await world.change_topics()
        elif seed % 2:
            await world.restart()
        if world.random.random() < 0.3:
            await asyncio.sleep(world.random.random() * 0.01)
        if world.random.random() < 0.2:
            with suppress(TopicsUnavailableError):
                await world.random.choice(world.topics).refresh()
    await world.settle()
    await world.check()
    for each in world.topics:
        await each.close()
    return world.seen
