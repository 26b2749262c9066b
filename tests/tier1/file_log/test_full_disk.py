"""A full disk: what is refused is refused in words, and there is room for what frees space (H52)."""

import asyncio
import errno
from dataclasses import replace

import pytest

from segmentstore.contracts.errors import DurableDataLogError, LogFullError
from segmentstore.contracts.identifiers import LogAddress
from tests.contracts.durable_data_log_suite import entries
from tests.sim.disk import SimulatedDisk
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tests.tier1.file_log.recovered import recovered
from tests.tier1.file_log.worlds import SMALL, SimulatedLogWorld
from tier1.file_log.log import FileDurableDataLog

KIB = 1024
FULL = replace(SMALL, entry_bytes_max=16 * KIB, batch_bytes_max=16 * KIB, space_poll_seconds=0.5)


async def fill(log: FileDurableDataLog) -> list[LogAddress]:
    """Append until ordinary entries are refused."""
    addresses = []
    for _ in range(10_000):
        try:
            addresses.append(await log.append([bytes(4 * KIB)]))
        except LogFullError:
            return addresses
    raise AssertionError("the log never became full")


def test_h52_on_a_full_disk_internal_entries_and_truncation_go_on_and_free_the_log() -> None:
    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld(FULL, disk=SimulatedDisk(capacity_bytes=1024 * KIB))
        log = world.log()
        await log.initialize()
        addresses = await fill(log)
        assert log.statistics().full
        refusals = [log.append([b"x" * 4000]) for _ in range(3)]
        results = await asyncio.gather(*refusals, return_exceptions=True)
        assert all(isinstance(result, LogFullError) for result in results)
        checkpoints = [await log.append([bytes(8 * KIB)], internal=True) for _ in range(3)]
        await log.truncate(addresses[-1])
        again = await log.append([b"room again, without waiting"])
        assert again > checkpoints[-1]
        log.check()
        await log.close()
        found = await recovered(world)
        assert [address for address, _ in found] == [*checkpoints, again]

    run_simulation(1, main)


def test_h52_the_reserve_is_really_there() -> None:
    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld(FULL, disk=SimulatedDisk(capacity_bytes=1024 * KIB))
        log = world.log()
        await log.initialize()
        await fill(log)
        internal = 0
        try:
            while True:
                await log.append([bytes(4 * KIB)], internal=True)
                internal += 4 * KIB
        except LogFullError:
            pass
        assert internal >= FULL.reserve_bytes // 2
        await log.close()

    run_simulation(1, main)


def test_h52_a_truncation_is_recorded_even_when_the_last_reserve_is_used_up() -> None:
    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld(FULL, disk=SimulatedDisk(capacity_bytes=1024 * KIB))
        log = world.log()
        await log.initialize()
        addresses = await fill(log)
        try:
            while True:
                addresses.append(await log.append([bytes(16 * KIB)], internal=True))
        except LogFullError:
            pass
        for address in addresses[:3]:
            await log.truncate(address)
        await log.truncate(addresses[-1])
        addresses.append(await log.append([b"y"]))
        await log.close()
        assert await recovered(world) == [(addresses[-1], b"y")]

    run_simulation(1, main)


def test_h52_a_full_log_opens_again_after_a_crash() -> None:
    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld(FULL, disk=SimulatedDisk(capacity_bytes=1024 * KIB))
        log = world.log()
        await log.initialize()
        addresses = await fill(log)
        await world.kill(log)
        for _ in range(3):
            log = world.log()
            await log.initialize()
            assert [address for address, _ in await entries(log)] == addresses
            await world.kill(log)

    run_simulation(1, main)


def test_h52_service_returns_by_itself_when_somebody_else_frees_space() -> None:
    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld(FULL, disk=SimulatedDisk(capacity_bytes=1024 * KIB))
        log = world.log()
        await log.initialize()
        await fill(log)
        world.disk.capacity_bytes = 4096 * KIB
        await asyncio.sleep(1)
        await log.append([b"welcome back"])
        assert not log.statistics().full
        await log.close()

    run_simulation(1, main)


def test_h52_service_returns_also_when_recycled_files_were_enough_meanwhile() -> None:
    """A log whose freed files suffice makes no new one, and must look for space all the same."""

    async def main(loop: SimLoop) -> None:
        settings = replace(FULL, reserve_bytes=8 * FULL.journal_bytes_max)
        world = SimulatedLogWorld(settings, disk=SimulatedDisk(capacity_bytes=1024 * KIB))
        log = world.log()
        await log.initialize()
        addresses = await fill(log)
        addresses.append(await log.append([b"internal"], internal=True))
        for address in addresses:
            await log.truncate(address)
        world.disk.capacity_bytes = None
        await asyncio.sleep(1)
        assert not log.statistics().full
        await log.append([b"welcome back"])
        await log.close()

    run_simulation(1, main)


def test_h52_a_log_that_breaks_while_it_is_full_is_no_longer_called_full() -> None:
    """Whoever refuses appends because it is full would never learn that it has to be opened anew."""

    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld(FULL, disk=SimulatedDisk(capacity_bytes=1024 * KIB))
        log = world.log()
        await log.initialize()
        await fill(log)
        assert log.statistics().full
        world.disk.faults.plan("create", errno.EIO, path_part="journal")
        world.free()
        await asyncio.sleep(1)
        assert not log.statistics().full
        with pytest.raises(DurableDataLogError, match="failed"):
            await log.append([b"what is wrong?"])
        await log.close()

    run_simulation(1, main)


def test_h52_space_that_flushes_need_is_left_free() -> None:
    async def main(loop: SimLoop) -> None:
        settings = replace(FULL, free_bytes_min=300 * KIB)
        world = SimulatedLogWorld(settings, disk=SimulatedDisk(capacity_bytes=1024 * KIB))
        log = world.log()
        await log.initialize()
        await fill(log)
        assert world.disk.free_bytes() >= 300 * KIB
        await log.close()

    run_simulation(1, main)


async def accepted_at_once(log: FileDurableDataLog, count: int) -> list[LogAddress]:
    """Hand over so many entries before the log can look at the disk; the addresses of those it has not refused."""
    results = await asyncio.gather(
        *[log.append([bytes(4 * KIB)]) for _ in range(count)], return_exceptions=True
    )
    refused = [isinstance(result, LogFullError) for result in results]
    assert refused == sorted(refused), "what comes behind a refused entry is refused"
    return [result for result in results if not isinstance(result, BaseException)]


def test_h52_what_was_accepted_before_the_disk_was_found_full_is_refused_and_does_not_wait() -> (
    None
):
    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld(FULL)
        log = world.log()
        await log.initialize()
        world.fill()
        addresses = await accepted_at_once(log, 200)
        assert 0 < len(addresses) < 200
        assert log.statistics().full
        assert log.statistics().outstanding_entries == 0
        log.check()
        await log.truncate(addresses[-2])
        world.free()
        await asyncio.sleep(1)
        addresses.append(await log.append([b"there is room again"]))
        assert addresses == sorted(set(addresses))
        await log.close()
        assert [address for address, _ in await recovered(world)][-2:] == addresses[-2:]

    run_simulation(1, main)


def test_h52_a_disk_that_fills_before_a_file_is_ahead_leaves_a_reserve_all_the_same() -> None:
    """It is made of what is left free for others."""

    async def main(loop: SimLoop) -> None:
        settings = replace(FULL, free_bytes_min=600 * KIB)
        world = SimulatedLogWorld(settings)
        log = world.log()
        await log.initialize()
        world.disk.capacity_bytes = world.disk.used_bytes() + settings.free_bytes_min
        assert len(await accepted_at_once(log, 40)) == 40
        await fill(log)
        for _ in range(settings.reserve_bytes // 2 // (8 * KIB)):
            await log.append([bytes(4 * KIB)], internal=True)
        await log.close()

    run_simulation(1, main)


@pytest.mark.parametrize("free_bytes_min", [600 * KIB, 400 * KIB])
def test_h52_a_log_that_opens_on_a_disk_that_is_nearly_full_has_a_reserve(
    free_bytes_min: int,
) -> None:
    """One file alone is a dead end: no truncation frees the file that is being written."""

    async def main(loop: SimLoop) -> None:
        settings = replace(FULL, free_bytes_min=free_bytes_min)
        world = SimulatedLogWorld(settings)
        log = world.log()
        await log.initialize()
        await log.close()
        world.disk.capacity_bytes = world.disk.used_bytes() + settings.free_bytes_min
        log = world.log()
        await log.initialize()
        await fill(log)
        assert log.statistics().full
        for _ in range(2 * settings.journal_bytes_max // (8 * KIB)):
            await log.truncate(await log.append([bytes(4 * KIB)], internal=True))
        assert world.disk.free_bytes() >= free_bytes_min // 2
        await log.close()

    run_simulation(1, main)
