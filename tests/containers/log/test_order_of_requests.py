"""Operations of one segment happen in the order of the calls, whatever keeps some of them from being accepted (H35).

Goal: no operation of any kind overtakes another of its segment while writers are slowed, the cache or the queue to the
log is full, or attributes are not in memory.

Method: bursts of operations of all kinds, submitted without waiting, some of them over several turns of the loop, to
segments and a table over a slow Tier 2. What each came to must be what it comes to one behind the other, and futures
complete in the order of the calls.
"""

import asyncio
from asyncio import Future
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from random import Random

import pytest

from containers.cache.cache_manager import CacheManager
from containers.cache.cache_storage import CacheStorage
from containers.container_settings import AttributeMemorySettings, ContainerSettings
from containers.segment_container import StreamSegmentContainer
from containers.segments.segment_handle import SegmentHandle
from segmentstore.contracts.errors import SegmentSealedError
from segmentstore.contracts.identifiers import AttributeKey
from segmentstore.contracts.segments import AttributeUpdate
from segmentstore.contracts.tables import NO_VERSION, TableEntry
from tests.containers.attributes.test_random_attribute_lives import SlowlyReadObjectStore
from tests.containers.node import FAST_FLUSH, MemoryTiers, make_container, running
from tests.containers.test_segment_container import read_all
from tests.sim.simulation import run_simulation
from tests.sim.submission_order import SubmissionOrder, submissions_watched

LAST = [AttributeKey(b"last-%02d" % number) for number in range(10)]
TABLE = "table"
VERBS = ["append"] * 10 + ["update"] * 4 + ["merge", "barrier", "truncate", "put", "put", "put"]


@pytest.mark.parametrize("turns", range(4))
async def test_h35_the_last_of_many_puts_of_a_key_counts_in_a_table_that_is_not_in_memory(
    turns: int,
) -> None:
    tiers = MemoryTiers()
    async with running(tiers) as container:
        await container.create_table(TABLE)
        async with container.open_table(TABLE) as table:
            await table.update([TableEntry(b"k%d" % each, b"v", NO_VERSION) for each in range(10)])
        await container.flush()
    async with running(tiers) as container, container.open_table(TABLE) as table:
        await container.flush()
        puts = [
            table.update([TableEntry(b"k", b"%d" % number, NO_VERSION)]) for number in range(600)
        ]
        for _ in range(turns):
            await asyncio.sleep(0)
        puts.append(table.update([TableEntry(b"k", b"last", NO_VERSION)]))
        versions = [(await put)[0] for put in puts]
        assert versions == sorted(versions)
        (found,) = await table.get([b"k"])
        assert found is not None
        assert found.value == b"last"


class Bursts:
    """One container, some segments and a table, and what they must be."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.tiers = MemoryTiers()
        self.tiers.object_store = SlowlyReadObjectStore(seed)
        self.content = {name: bytearray() for name in ("a", "b")}
        self.attributes: dict[str, dict[AttributeKey, int]] = {name: {} for name in self.content}
        self.sealed: set[str] = set()
        self.entries: dict[bytes, bytes] = {}
        self.number = 0
        self.outcomes: list[Callable[[], Awaitable[None]]] = []

    def settings(self) -> ContainerSettings:
        choose = self.random.choice
        default = ContainerSettings()
        return ContainerSettings(
            writer=FAST_FLUSH,
            processor=replace(
                default.processor,
                admitted_requests_max=choose([1, 3, 256]),
                admitted_bytes_max=choose([100, 1 << 20]),
                pipeline=replace(
                    default.processor.pipeline, queued_bytes_max=choose([2_000, 8 << 20])
                ),
            ),
            throttler=replace(
                default.throttler,
                items_begin=choose([5, 400_000]),
                items_stop=choose([50, 800_000]),
                delay_seconds_max=0.001,
            ),
            attribute_memory=AttributeMemorySettings(
                bytes_max=1, look_seconds=0.0005, throttle_factor=1e9
            ),
            housekeeping_seconds=0.01,
        )

    async def play(self) -> None:
        cache = CacheManager(storage=CacheStorage(budget_bytes=1 << 20))
        ballast = cache.shares.open()
        container = make_container(self.tiers, settings=self.settings(), cache=cache)
        await container.start()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(container.run())
            for name in self.content:
                await container.create(name)
            await container.create_table(TABLE)
            for _ in range(10):
                ballast.charge(self.random.choice([0, 0, 600_000]))
                await self.burst(container)
                ballast.charge(0)
                await self.compare(container)
                if self.random.random() < 0.3:
                    await container.flush()
                await asyncio.sleep(self.random.choice([0, 0.002, 0.05]))
            await container.close()

    async def burst(self, container: StreamSegmentContainer) -> None:
        random = self.random
        sources = [f"source-{self.number}-{each}" for each in range(3)]
        for source in sources:
            await container.create(source)
            async with container.open_segment(source) as segment:
                await segment.append(source.encode())
        async with (
            asyncio.timeout(60),
            container.open_table(TABLE) as table,
            container.open_segment("a") as a,
            container.open_segment("b") as b,
        ):
            for _ in range(random.randrange(1, 80)):
                self.number += 1
                match random.choice(VERBS):
                    case "put":
                        entry = TableEntry(b"k%d" % random.randrange(5), b"%d" % self.number)
                        self.entries[entry.key] = entry.value
                        self.expect_done(table.update([entry]))
                    case "merge" if sources:
                        async with container.open_segment(sources[-1]) as source_handle:
                            self.merge(random.choice([a, b]), source_handle, sources.pop())
                    case verb:
                        self.submit(verb, random.choice([a, b]))
                if random.random() < 0.2:
                    await asyncio.sleep(random.choice([0, 0, 0.001]))
            for outcome in self.outcomes:
                await outcome()
            self.outcomes.clear()

    def submit(self, verb: str, segment: SegmentHandle) -> None:
        name, processor = segment.name, segment._processor
        match verb:
            case "append":
                data = b"%d;" % self.number * self.random.choice([0, 1, 10, 2000])
                seal = self.random.random() < 0.01
                updates = self.updates(name, refused=name in self.sealed)
                future = segment.append(data, attribute_updates=updates, seal=seal)
                self.expect(future, name, data, seals=seal)
            case "update":
                self.expect_done(segment.update_attributes(self.updates(name, refused=False)))
            case "barrier":
                self.expect_done(segment.barrier())
            case "truncate":
                self.expect_done(processor.truncate(segment._metadata, 0))
            case _:
                pass

    def merge(self, target: SegmentHandle, source: SegmentHandle, name: str) -> None:
        updates = self.updates(target.name, refused=target.name in self.sealed)
        future = target.merge(source, attribute_updates=updates, seal_source=True)
        self.expect(future, target.name, name.encode())

    def updates(self, name: str, *, refused: bool) -> list[AttributeUpdate]:
        keys = self.random.sample(LAST, self.random.choice([0, 1, 2]))
        if not refused:
            self.attributes[name] |= dict.fromkeys(keys, self.number)
        return [AttributeUpdate(key, self.number) for key in keys]

    def expect(
        self, future: "Future[int]", name: str, data: bytes = b"", *, seals: bool = False
    ) -> None:
        """As it comes out behind everything before it."""
        if name in self.sealed:

            async def refused() -> None:
                with pytest.raises(SegmentSealedError):
                    await future

            self.outcomes.append(refused)
            return
        content = self.content[name]
        content += data
        length = len(content)
        if seals:
            self.sealed.add(name)

        async def done() -> None:
            end = await future
            assert not data or end == length

        self.outcomes.append(done)

    def expect_done(self, future: "Future[int] | Future[Sequence[int]]") -> None:
        async def done() -> None:
            await future

        self.outcomes.append(done)

    async def compare(self, container: StreamSegmentContainer) -> None:
        for name, content in self.content.items():
            assert await read_all(container, name) == content
            assert await container.attributes(name) == self.attributes[name]
        async with container.open_table(TABLE) as table:
            found = await table.get(list(self.entries))
            assert [each and each.value for each in found] == list(self.entries.values())
        container.check()
        for name in sorted(self.sealed):
            await container.delete(name)
            await container.create(name)
            self.content[name].clear()
            self.attributes[name].clear()
        self.sealed.clear()


def play_bursts(seed: int) -> SubmissionOrder:
    with submissions_watched() as order:
        run_simulation(seed, lambda _: Bursts(seed).play())
    return order


@pytest.mark.parametrize("seed", range(20))
def test_h35_operations_of_every_kind_happen_in_the_order_of_the_calls(seed: int) -> None:
    play_bursts(seed)


def test_the_bursts_make_operations_of_every_kind_wait_for_one_another() -> None:
    in_order = set[str]()
    for seed in range(100, 105):
        in_order |= play_bursts(seed).in_order.keys()
    assert in_order >= {"append", "update_attributes", "merge", "barrier", "truncate"}
