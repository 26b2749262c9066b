"""Reading a log fetches one range of entries while the one before it is taken, and never more than that.

The next ledgers are opened meanwhile, a few of them.
"""

import asyncio
from contextlib import aclosing
from dataclasses import replace
from random import Random

import pytest

from segmentstore.contracts.durable_data_log import LogEntry
from tests.contracts.durable_data_log_suite import entries, payloads
from tests.tier1.bookkeeper.simulated_ledgers import SimulatedLedgerClient, SimulatedLedgerReader
from tests.tier1.bookkeeper.simulated_network import Network
from tests.tier1.bookkeeper.worlds import SMALL, BookKeeperLogWorld
from tier1.bookkeeper.ledgers import LedgerId, LedgerReader
from tier1.bookkeeper.log import BookKeeperDurableDataLog

RANGE_ENTRIES = 4
TAKEN_SECONDS = 1.0
"""That the one who reads needs for a range of entries; a request takes as long, to and fro."""


class Requests:
    """Counts requests for entries, and readers that are closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = self.closed = 0
        read, close = SimulatedLedgerReader.read, SimulatedLedgerReader.close

        async def counted(reader: SimulatedLedgerReader, first: int, last: int) -> list[memoryview]:
            self.begun += 1
            await asyncio.sleep(TAKEN_SECONDS)
            return await read(reader, first, last)

        async def noted(reader: SimulatedLedgerReader) -> None:
            self.closed += 1
            await close(reader)

        monkeypatch.setattr(SimulatedLedgerReader, "read", counted)
        monkeypatch.setattr(SimulatedLedgerReader, "close", noted)


@pytest.fixture
async def log() -> BookKeeperDurableDataLog:
    """Opened again, over two ledgers with six ranges of entries each."""
    world = BookKeeperLogWorld(
        # Entries have one byte, so a request aims at as many of them.
        settings=replace(SMALL, read_bytes_max=RANGE_ENTRIES),
        network=Network(Random(1)),
    )
    for _ in range(2):
        owner = world.log()
        await owner.initialize()
        # The first range of a ledger has eight.
        for number in range(8 + 5 * RANGE_ENTRIES):
            await owner.append([bytes([number])])
        await owner.close()
    opened = world.log()
    await opened.initialize()
    return opened


def is_last_of_range(entry: LogEntry, number: int) -> bool:
    in_ledger = number % (8 + 5 * RANGE_ENTRIES)
    return in_ledger >= 7 and (in_ledger - 7) % RANGE_ENTRIES == 0


async def test_requests_and_replay_take_turns_beside_one_another(
    log: BookKeeperDurableDataLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = Requests(monkeypatch)
    loop = asyncio.get_running_loop()
    began = loop.time()
    taken = ranges = 0
    async with aclosing(log.read()) as found:
        async for entry in found:
            if is_last_of_range(entry, taken):
                ranges += 1
                await asyncio.sleep(TAKEN_SECONDS)
                assert requests.begun <= ranges + 1, "one range ahead"
            taken += 1
    assert taken == 2 * (8 + 5 * RANGE_ENTRIES)
    assert ranges == requests.begun == 12
    # The first request, and then the longer of both for each range; 24 s one behind the other.
    assert loop.time() - began == pytest.approx(13 * TAKEN_SECONDS)
    await log.close()


async def log_of_small_ledgers(count: int) -> BookKeeperDurableDataLog:
    """Each of them with one entry, of an owner of its own."""
    world = BookKeeperLogWorld(network=Network(Random(1)))
    for number in range(count):
        owner = world.log()
        await owner.initialize()
        await owner.append([bytes([number])])
        await owner.close()
    log = world.log()
    await log.initialize()
    return log


async def test_a_reading_that_ends_early_leaves_no_request_and_no_reader(
    log: BookKeeperDurableDataLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = Requests(monkeypatch)
    tasks = asyncio.all_tasks()
    async with aclosing(log.read()) as found:
        async for entry in found:
            assert bytes(entry.payload) == b"\0"
            await asyncio.sleep(0)
            break
    assert requests.begun == 2
    assert requests.closed == 2, "the second ledger was opened ahead"
    assert asyncio.all_tasks() == tasks
    await log.close()


async def test_of_many_small_ledgers_four_are_open_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = await log_of_small_ledgers(12)
    is_open = most = 0
    open_fenced, close = SimulatedLedgerClient.open_fenced, SimulatedLedgerReader.close

    async def slow(client: SimulatedLedgerClient, ledger_id: LedgerId) -> LedgerReader:
        nonlocal is_open, most
        is_open += 1
        most = max(most, is_open)
        await asyncio.sleep(TAKEN_SECONDS)
        return await open_fenced(client, ledger_id)

    async def noted(reader: SimulatedLedgerReader) -> None:
        nonlocal is_open
        is_open -= 1
        await close(reader)

    monkeypatch.setattr(SimulatedLedgerClient, "open_fenced", slow)
    monkeypatch.setattr(SimulatedLedgerReader, "close", noted)
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await payloads(log) == [bytes([number]) for number in range(12)]
    assert loop.time() - began == pytest.approx(3 * TAKEN_SECONDS)
    assert most == 4
    assert is_open == 0
    await log.close()


async def test_a_reading_that_ends_while_it_opens_ledgers_closes_those_that_were_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = await log_of_small_ledgers(3)
    requests = Requests(monkeypatch)
    tasks = asyncio.all_tasks()
    reading = asyncio.create_task(entries(log))
    # The first entries are on their way, and every ledger is open.
    await asyncio.sleep(TAKEN_SECONDS / 2)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert requests.begun == 1
    assert requests.closed == 3
    assert asyncio.all_tasks() == tasks
    await log.close()


async def test_what_is_left_of_a_ledger_is_fetched_at_once_if_it_is_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = BookKeeperLogWorld(
        settings=replace(SMALL, ledger_bytes_max=1 << 20), network=Network(Random(1))
    )
    owner = world.log()
    await owner.initialize()
    large, small = bytes(30_000), b"small"
    # Of 270,000 bytes the first eight entries leave 30,000 and the small ones: fewer than a request aims at.
    contents = [large] * 9 + [small] * 600
    for content in contents:
        await owner.append([content])
    await owner.close()
    log = world.log()
    await log.initialize()
    requests = Requests(monkeypatch)
    assert await payloads(log) == contents
    assert requests.begun == 2
    await log.close()
