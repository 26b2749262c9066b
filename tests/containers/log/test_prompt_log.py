"""A log may have written an entry, or refused it, before append() returns: as the file log does with lone frames."""

import asyncio
from asyncio import Future
from collections.abc import Sequence

import pytest

from segmentstore.contracts.errors import ContainerStoppedError, DurableDataLogError
from segmentstore.contracts.identifiers import BufferView, LogAddress
from tests.containers.node import MemoryTiers, make_container, running
from tests.containers.test_segment_container import append, read_all
from tier1.memory_log import MemoryDurableDataLog


class PromptLog(MemoryDurableDataLog):
    """Entries are durable when append() returns, but for those with an odd number in `slow`."""

    def __init__(self, tiers: MemoryTiers, *, slow: bool = False) -> None:
        super().__init__(tiers.log_store, entry_bytes_max=300)
        self._slow = slow
        self._number = 0
        self.broken = False

    def append(self, entry: Sequence[BufferView], *, internal: bool = False) -> Future[LogAddress]:
        if self.broken:
            future: Future[LogAddress] = asyncio.get_running_loop().create_future()
            future.set_exception(DurableDataLogError("the disk said no"))
            future.exception()
            return future
        future = super().append(entry, internal=internal)
        self._number += 1
        if not (self._slow and self._number % 2):
            self._complete()
        return future


@pytest.mark.parametrize("slow", [False, True])
async def test_l1_frames_are_committed_in_order_whether_durable_at_once_or_later(
    slow: bool,
) -> None:
    tiers = MemoryTiers()
    async with running(tiers, log=PromptLog(tiers, slow=slow)) as container:
        await container.create("a")
        async with container.open_segment("a") as segment:
            done: list[int] = []
            futures = []
            for number in range(200):
                futures.append(segment.append(b"%04d" % number * (1 + number % 7 * 20)))
                futures[-1].add_done_callback(lambda future: done.append(future.result()))
                if number % 3 == 0:
                    await asyncio.sleep(0)
            ends = await asyncio.gather(*futures)
        assert ends == sorted(ends) == done
        wanted = b"".join(b"%04d" % number * (1 + number % 7 * 20) for number in range(200))
        assert await read_all(container, "a") == wanted


async def test_a_frame_that_is_durable_at_once_is_committed_in_the_same_turn() -> None:
    tiers = MemoryTiers()
    async with running(tiers, log=PromptLog(tiers)) as container:
        await container.create("a")
        await append(container, "a", b"first")
        async with container.open_segment("a") as segment:
            future = segment.append(b"lone")
            assert not future.done(), "committed inside append()"
            await asyncio.sleep(0)
            assert future.done()


async def test_h51_a_log_that_fails_at_once_ends_the_container_and_everybody_learns_of_it() -> None:
    tiers = MemoryTiers()
    log = PromptLog(tiers)
    container = make_container(tiers, log=log)
    await container.start()
    run = asyncio.ensure_future(container.run())
    await container.create("a")
    async with container.open_segment("a") as segment:
        log.broken = True
        futures = [segment.append(b"x" * 200) for _ in range(3)]
        async with asyncio.timeout(60):
            results = await asyncio.gather(*futures, return_exceptions=True)
            ended = await asyncio.gather(run, return_exceptions=True)
    assert all(isinstance(result, ContainerStoppedError) for result in results)
    assert isinstance(ended[0], DurableDataLogError)
