"""Readers beside a writer, merges, flushes and eviction, all at once and in another order per seed.

Goal: a reader that follows a segment from its first byte to its seal sees exactly what was appended, though every byte
moves from cache to Tier 2, or from a merged source to its target, while it reads. Method: the deterministic loop, with
shuffled callbacks and random delays; the reads' order of events is compared between two runs of one seed.
"""

import asyncio
from contextlib import aclosing
from random import Random

import pytest

from containers.read_index.segment_read_index import SegmentReadIndex
from segmentstore.contracts.errors import SegmentNotFoundError
from segmentstore.contracts.segments import ReadResultEntryKind
from tests.containers.reading.read_index_bench import (
    MIB,
    ReadIndexBench,
    acknowledge,
    append,
    confirmed,
    merge,
    publish,
    seal,
)
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation

STEPS = 25
FOLLOWERS = 6


class World:
    """One target that grows by appends and merges, until it is sealed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.bench = ReadIndexBench(budget_bytes=2 * MIB)
        self.bench.tier2.delays = Random(seed + 1)
        self.bench.tier2.one_block_at_a_time = seed % 2 == 1
        self.target = self.bench.open()
        self.content = b""
        self.merges: list[tuple[int, SegmentReadIndex]] = []
        self.ended = False

    async def pause(self) -> None:
        await asyncio.sleep(self.random.random() / 20)

    async def write(self) -> None:
        for _ in range(STEPS):
            data = self.random.randbytes(self.random.choice([1, 100, 5_000, 60_000]))
            if self.random.random() < 0.3:
                source = self.bench.open()
                append(source, data)
                if self.random.random() < 0.5:
                    publish(self.bench, source)
                    acknowledge(source)
                seal(source)
                await self.pause()
                self.merges.append((self.target.metadata.length, source))
                merge(self.target, source)
                source.end_reads(SegmentNotFoundError(source.metadata.name))
            else:
                append(self.target, data)
            self.content += data
            await self.pause()
        seal(self.target)

    async def flush(self) -> None:
        while not self.ended:
            await self.pause()
            metadata = self.target.metadata
            if not self.merges:
                end = metadata.length
                publish(self.bench, self.target, end)
                await self.pause()
                acknowledge(self.target, end)
                continue
            begin, source = self.merges.pop(0)
            end = begin + source.metadata.length
            tier2 = self.bench.tier2.published
            published = tier2.get(metadata.segment_id, b"")
            tier2[metadata.segment_id] = published + self.content[len(published) : end]
            tier2.pop(source.metadata.segment_id, None)
            await self.pause()
            acknowledge(self.target, end)
            self.target.complete_merge(source)
            self.bench.container.remove(source.metadata.segment_id)

    async def evict(self) -> None:
        while not self.ended:
            await self.pause()
            self.bench.cache.evict(self.random.choice([4096, 100_000, MIB]))
            self.bench.container.check()

    async def follow(self, *, window: int) -> bytes:
        content = b""
        while True:
            async with aclosing(
                self.target.read(len(content), window, confirm=confirmed)
            ) as entries:
                async for entry in entries:
                    piece = await entry.content()
                    content += piece
                    if entry.kind is ReadResultEntryKind.END_OF_SEGMENT or not piece:
                        return content

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            background = [group.create_task(self.flush()), group.create_task(self.evict())]
            followers = [
                group.create_task(self.follow(window=self.random.choice([100, 9_000, MIB])))
                for _ in range(FOLLOWERS)
            ]
            leaver = group.create_task(self.follow(window=5_000))
            await self.write()
            leaver.cancel()
            for follower in followers:
                assert await follower == self.content
            self.ended = True
            for task in background:
                await task
        await self.bench.container.close()
        assert self.bench.memory.occupied_bytes == 0


@pytest.mark.slow
@pytest.mark.simulation
@pytest.mark.parametrize("seed", range(5))
def test_followers_see_every_byte_once_while_it_moves(seed: int) -> None:
    async def main(_loop: SimLoop) -> None:
        await World(seed).run()

    first = run_simulation(seed, main, shuffled=True)
    second = run_simulation(seed, main, shuffled=True)
    assert first.fingerprint == second.fingerprint
