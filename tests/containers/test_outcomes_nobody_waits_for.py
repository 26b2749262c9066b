"""A container that stops fails what is under way; a caller who left meanwhile has not forgotten to look."""

import asyncio
import gc
from typing import Any

from segmentstore.contracts.errors import ContainerStoppedError
from tests.containers.node import MemoryTiers, make_container


async def test_nothing_is_complained_of_when_a_waiter_left_before_the_container_stopped() -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, said: complaints.append(said))
    container = make_container(MemoryTiers())
    await container.start()
    await container.create("a")
    async with container.open_segment("a") as segment:
        waiters = [asyncio.shield(segment.append(b"under way")) for _ in range(3)]
        for waiter in waiters:
            waiter.cancel()
        await asyncio.sleep(0)
        container._processor._pipeline.fail(ContainerStoppedError("a test"))
        behind = asyncio.shield(segment.append(b"too late"))
        behind.cancel()
        await asyncio.sleep(0)
        del waiters, waiter, behind
    await asyncio.sleep(0)
    gc.collect()
    await asyncio.sleep(0)
    assert not complaints
