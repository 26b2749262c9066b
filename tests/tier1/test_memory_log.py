"""The memory log: conformance, and what is its own."""

import asyncio

import pytest

from segmentstore.contracts.durable_data_log import DurableDataLog
from tests.contracts.durable_data_log_suite import LogWithReserveSuite
from tier1.memory_log import MemoryDurableDataLog, MemoryLogStore


class MemoryLogWorld:
    def __init__(self) -> None:
        self.store = MemoryLogStore(bytes(range(16)))

    def log(self) -> DurableDataLog:
        return MemoryDurableDataLog(self.store)

    async def kill(self, log: DurableDataLog) -> None:
        pass

    def take_over(self) -> DurableDataLog:
        return self.log()

    def fill(self) -> None:
        self.store.capacity_bytes = 10_000

    def free(self) -> None:
        self.store.capacity_bytes = None


class TestMemoryLog(LogWithReserveSuite):
    @pytest.fixture
    def world(self) -> MemoryLogWorld:
        return MemoryLogWorld()


async def test_all_appends_of_one_turn_complete_in_one_callback() -> None:
    store = MemoryLogStore(bytes(16))
    log = MemoryDurableDataLog(store)
    await log.initialize()
    futures = [log.append([b"x"]) for _ in range(1000)]
    await asyncio.sleep(0)
    assert all(future.done() for future in futures)
    store.check()


async def test_the_epoch_floor_is_exceeded() -> None:
    log = MemoryDurableDataLog(MemoryLogStore(bytes(16)), epoch_floor=57)
    assert await log.initialize() == 58
