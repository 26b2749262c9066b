"""The disk fails: nothing that was acknowledged is lost, and every failure has a name (H48, H51, H79)."""

import asyncio
import errno
from dataclasses import replace
from random import Random

import pytest

from segmentstore.contracts.errors import DurableDataLogError, LogFullError
from segmentstore.contracts.identifiers import LogAddress
from tests.contracts.durable_data_log_suite import entries
from tests.sim.disk import Boundary, SimulatedDisk
from tests.sim.loop import SimLoop
from tests.sim.power_cuts import Persistence, power_cut_image
from tests.sim.simulation import run_simulation
from tests.tier1.file_log.history import History, work
from tests.tier1.file_log.recovered import recovered
from tests.tier1.file_log.worlds import SMALL, TINY, SimulatedLogWorld
from tier1.file_log.log import FileDurableDataLog

KIB = 1024
FIRST_JOURNAL = "journal-0000000001-000001"
CALLS = (
    "open",
    "create",
    "write",
    "sync",
    "sync_directory",
    "remove",
    "list",
    "free",
    "read",
    "link",
)


def test_h48_after_a_failed_sync_nothing_is_acknowledged_although_the_next_sync_would_say_ok() -> (
    None
):
    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld()
        log = world.log()
        await log.initialize()
        kept = await log.append([b"kept"])
        await asyncio.sleep(1)
        world.disk.faults.plan("sync", errno.EIO, path_part=FIRST_JOURNAL)
        failed = [log.append([b"in the failed sync"]), log.append([b"too"])]
        results = await asyncio.gather(*failed, return_exceptions=True)
        assert all(isinstance(result, DurableDataLogError) for result in results)
        boundaries = world.disk.boundaries
        with pytest.raises(DurableDataLogError):
            await log.append([b"later"])
        with pytest.raises(DurableDataLogError):
            await log.truncate(kept)
        await log.close()
        assert world.disk.boundaries == boundaries, "a failed log wrote again"

    run_simulation(1, main)


def test_h48_h39_frames_of_a_failed_sync_that_recovery_serves_survive_the_next_power_cut() -> None:
    """They read back from the page cache although the platter never got them."""

    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld()
        log = world.log()
        await log.initialize()
        await log.append([b"kept"])
        world.disk.faults.plan("sync", errno.EIO, path_part=FIRST_JOURNAL)
        with pytest.raises(DurableDataLogError):
            await log.append([b"in the failed sync"])
        await world.kill(log)
        served = await recovered(world)
        assert [payload for _, payload in served] == [b"kept", b"in the failed sync"]
        image = power_cut_image(world.disk, Persistence.NOTHING, Random(1))
        assert await recovered(SimulatedLogWorld(disk=image)) == served

    run_simulation(1, main)


def test_h51_entries_in_flight_behind_a_failed_one_fail_too() -> None:
    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld(replace(SMALL, batch_bytes_max=8 * KIB))
        log = world.log()
        await log.initialize()
        await log.append([b"first"])
        world.disk.faults.plan("write", errno.EIO, path_part=FIRST_JOURNAL, skip=1)
        futures = [log.append([bytes(8 * KIB)]) for _ in range(5)]
        results = await asyncio.gather(*futures, return_exceptions=True)
        good = [isinstance(result, int) for result in results]
        assert good == sorted(good, reverse=True)
        assert (good[0], good[-1]) == (True, False)
        await log.close()

    run_simulation(1, main)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("error_number", [errno.EIO, errno.ENOSPC])
def test_an_error_in_any_call_is_translated_and_loses_nothing(kind: str, error_number: int) -> None:
    """Every call of that kind fails once, in a run of its own: while opening, while working, in the background."""

    async def one(skip: int) -> bool:
        world, history = SimulatedLogWorld(TINY, seed=skip), History()
        world.disk.faults.plan(kind, error_number, path_part="/data/log", skip=skip)
        for number in range(3):
            log: FileDurableDataLog = world.log()
            try:
                await log.initialize()
                history.served = await entries(log)
                await work(log, history, Random(number), rounds=6)
                log.check()
            except (DurableDataLogError, LogFullError):
                pass
            await world.kill(log)
        world.disk.faults.clear()
        history.judge(await recovered(world))
        return world.disk.faults.struck > 0

    async def main(loop: SimLoop) -> int:
        skip = 0
        while await one(skip) and skip < 60:
            skip += 1
        return skip

    assert run_simulation(1, main).result > 0


# --- a full disk ---------------------------------------------------------------------------------


def test_accepted_entries_wait_for_a_file_rather_than_fail() -> None:
    """More is accepted in one go than the files ahead can hold: the rest waits for the filler."""

    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld(TINY)
        log = world.log()
        await log.initialize()
        addresses = await asyncio.gather(*[log.append([bytes(8 * KIB)]) for _ in range(30)])
        assert addresses == sorted(addresses)
        await log.close()

    run_simulation(1, main)


def test_h50_a_file_goes_only_after_a_synced_frame_of_the_next_one() -> None:
    """All of one file is truncated and the next is begun, its first frame on its way: the one must stay till then."""

    async def main(loop: SimLoop) -> int:
        world = SimulatedLogWorld(replace(TINY, recycled_journals_max=1))
        images: list[tuple[SimulatedDisk, LogAddress]] = []
        addresses = [LogAddress(0)]

        def take(boundary: Boundary) -> None:
            if boundary.kind == "remove":
                # Of everything un-synced only the removals persist.
                image = power_cut_image(world.disk, Persistence.NOTHING, Random(1))
                for path in [path for path in image.names if path not in world.disk.names]:
                    del image.names[path]
                images.append((image, addresses[-1]))

        log = world.log()
        await log.initialize()
        world.disk.on_boundary = take
        for _ in range(600):
            last = log.append([bytes(8 * KIB)])
            await asyncio.sleep(0)
            await log.truncate(addresses[-1])
            addresses.append(await last)
            await log.truncate(addresses[-1])
        world.disk.on_boundary = None
        await log.close()
        for image, acknowledged in images:
            successor = SimulatedLogWorld(TINY, disk=image).log()
            await successor.initialize()
            assert await successor.append([b"x"]) > acknowledged, "addresses came back"
            await successor.close()
        return len(images)

    assert run_simulation(1, main).result > 0


def test_files_are_recycled_up_to_a_bound_and_the_rest_is_removed() -> None:
    async def main(loop: SimLoop) -> None:
        settings = replace(TINY, recycled_journals_max=5)
        world = SimulatedLogWorld(settings)
        log = world.log()
        await log.initialize()
        inspector = world.disk.mount("inspector")
        created: set[str] = set()
        for _ in range(40):
            addresses = await asyncio.gather(*[log.append([bytes(8 * KIB)]) for _ in range(4)])
            created.update(inspector.list(world.path))
            await log.truncate(addresses[-1])
            journals = [name for name in inspector.list(world.path) if "journal" in name]
            assert len(journals) <= 1 + settings.recycled_journals_max + 1
        assert len(created) < 20, "files are made anew instead of being recycled"
        await log.close()

    run_simulation(1, main)
