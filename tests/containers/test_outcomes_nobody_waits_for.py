"""A container that stops fails what is under way; a caller who left meanwhile has not forgotten to look."""

import asyncio
import gc
from typing import Any

import pytest

from containers.log.throttler import STOP, Throttle
from segmentstore.contracts.errors import ContainerStoppedError, LogFullError
from tests.containers.node import MemoryTiers, make_container, running


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
        container._components.processor._pipeline.fail(ContainerStoppedError("a test"))
        behind = asyncio.shield(segment.append(b"too late"))
        behind.cancel()
        await asyncio.sleep(0)
        del waiters, waiter, behind
    await asyncio.sleep(0)
    gc.collect()
    await asyncio.sleep(0)
    assert not complaints


async def test_a_caller_who_left_the_queue_before_the_disk_filled_does_not_end_the_container(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiers = MemoryTiers()
    async with running(tiers) as container:
        await container.create("a")
        processor = container._components.processor
        async with container.open_segment("a") as segment:
            with monkeypatch.context() as full:
                full.setattr(processor._throttler, "throttle", lambda: Throttle(STOP, "cache_full"))
                processor.refresh_throttle()
                left, stays = segment.append(b"x"), segment.append(b"y")
                left.cancel()
                tiers.log_store.capacity_bytes = 1
            processor.refresh_throttle()
            assert processor.log_full
            async with asyncio.timeout(60):
                with pytest.raises(LogFullError):
                    await stays
            tiers.log_store.capacity_bytes = None
            processor.refresh_throttle()
            assert await segment.append(b"z") == 1
