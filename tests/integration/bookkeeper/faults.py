"""Faults of a real BookKeeper while a log is written; what they cost its writer, and that they cost no entry.

    python -m tests.integration.bookkeeper.faults           each fault once, the long ones too; minutes
    python -m tests.integration.bookkeeper.faults duel kill_bookie

Each prints how many entries were acknowledged and checked, and the longest wait of a writer.
"""

import asyncio
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from tests.integration.bookkeeper.checked_log import CheckedOwner, check_log
from tests.integration.bookkeeper.cluster import Cluster
from tests.integration.bookkeeper.log_owners import Process, started
from tests.integration.bookkeeper.registered_bookies import until_all_are_registered
from tier1.bookkeeper.java_client import JavaLedgerClient
from tier1.bookkeeper.local_ensemble import LocalEnsemble
from tier1.bookkeeper.settings import BookKeeperLogSettings

APPENDED_MEANWHILE = 100
"""What is away comes back only when so many more were acknowledged without it."""
SETTINGS = BookKeeperLogSettings(ledger_bytes_max=4 << 20, look_again_seconds=0.5)
"""Some ledgers a second, so that a fault meets rollovers."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one fault."""

    checked: int
    longest_wait_seconds: float
    appended_meanwhile: int

    def __str__(self) -> str:
        return (
            f"checked={self.checked} appended_during_the_fault={self.appended_meanwhile}"
            f" longest_wait={self.longest_wait_seconds:.2f} s"
        )


async def kill_bookie(cluster: Cluster) -> Outcome:
    """A bookie dies by SIGKILL, and comes back after some seconds."""
    ensemble = cluster.ensemble

    async def fault(owner: CheckedOwner) -> None:
        await ensemble.kill(ensemble.bookies[0])
        await asyncio.sleep(3)
        await owner.until_more(APPENDED_MEANWHILE)
        await ensemble.restart(0)

    return await written_during(cluster, fault)


async def stop_bookie(cluster: Cluster) -> Outcome:
    """A bookie stands still for longer than it is given to answer."""
    ensemble = cluster.ensemble

    async def fault(owner: CheckedOwner) -> None:
        ensemble.send(ensemble.bookies[1], signal.SIGSTOP)
        try:
            await asyncio.sleep(8)
            await owner.until_more(APPENDED_MEANWHILE)
        finally:
            ensemble.send(ensemble.bookies[1], signal.SIGCONT)

    return await written_during(cluster, fault)


async def lose_zookeeper(cluster: Cluster) -> Outcome:
    """ZooKeeper dies, and comes back after three seconds."""
    return await _without_zookeeper(cluster, 3)


async def lose_zookeeper_for_a_minute(cluster: Cluster) -> Outcome:
    return await _without_zookeeper(cluster, 60)


async def _without_zookeeper(cluster: Cluster, seconds: float) -> Outcome:
    ensemble = cluster.ensemble

    async def fault(owner: CheckedOwner) -> None:
        await ensemble.kill(ensemble.zookeeper)
        await asyncio.sleep(seconds)
        await owner.until_more(APPENDED_MEANWHILE)
        await ensemble.start_zookeeper()
        # A bookie whose session is over registers anew, or ends itself and is started again.
        await until_all_are_registered(ensemble)

    return await written_during(cluster, fault)


async def fill_bookie(cluster: Cluster) -> Outcome:
    """The disk of a bookie becomes full: a fifth bookie has one of 128 MB."""
    ensemble = cluster.ensemble
    directory = ensemble.bookie_directory(len(ensemble.bookies))
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128m", "none", str(directory)]
    subprocess.run(mount, check=True, capture_output=True)
    try:
        number = await ensemble.add_bookie()
        watcher = await cluster.client()
        await _until_living(watcher, number + 1)

        async def fault(_: CheckedOwner) -> None:
            await _until_living(watcher, number)

        return await written_during(cluster, fault, entry_bytes=60_000)
    finally:
        await ensemble.kill(ensemble.bookies.pop())
        subprocess.run(["umount", "--lazy", str(directory)], check=True, capture_output=True)
        directory.rmdir()


async def _until_living(client: JavaLedgerClient, count: int) -> None:
    # A disk of 128 MB is filled as fast as the machine's own disk takes the other copies.
    async with asyncio.timeout(300):
        while await client.living_bookies() != count:
            await asyncio.sleep(0.2)


async def kill_all_bookies(cluster: Cluster) -> Outcome:
    """All bookies die at once, as in a power cut, and come back."""
    ensemble = cluster.ensemble

    async def fault(_: CheckedOwner) -> None:
        for bookie in ensemble.bookies:
            ensemble.send(bookie, signal.SIGKILL)
        for bookie in ensemble.bookies:
            await ensemble.kill(bookie)
        await ensemble.up()

    return await written_during(cluster, fault)


async def duel(cluster: Cluster, *, turns: int = 100) -> Outcome:
    """Two owners take the log from one another, each while the other writes."""
    processes = [await started(cluster) for _ in range(2)]
    owners: list[CheckedOwner] = []
    running: asyncio.Task[None] | None = None
    for turn in range(turns):
        owner = await _opened(processes[turn % 2], turn)
        owners.append(owner)
        if running is not None:
            await running
            assert owners[turn - 1].has_lost_the_log
        running = asyncio.create_task(owner.run())
        while len(owner.acknowledged) < 20:
            await asyncio.sleep(0.01)
    owners[-1].is_stopping = True
    if running is not None:
        await running
    return await _checked(cluster, owners, meanwhile=sum(len(each.acknowledged) for each in owners))


async def written_during(
    cluster: Cluster, fault: Callable[[CheckedOwner], Awaitable[None]], *, entry_bytes: int = 2000
) -> Outcome:
    """One owner writes before, while and after the fault."""
    owner = await _opened(await started(cluster), 0)
    owner.entry_bytes = entry_bytes
    writing = asyncio.create_task(owner.run())
    await asyncio.sleep(1)
    await owner.until_more(1)
    before = len(owner.acknowledged)
    await fault(owner)
    meanwhile = len(owner.acknowledged) - before
    await asyncio.sleep(2)
    await owner.until_more(1)
    owner.is_stopping = True
    await writing
    owner.check()
    return await _checked(cluster, [owner], meanwhile=meanwhile)


async def _opened(process: Process, number: int) -> CheckedOwner:
    log = process.log(settings=SETTINGS, owner=f"owner {number}")
    await log.initialize()
    return CheckedOwner(log, number)


async def _checked(cluster: Cluster, owners: list[CheckedOwner], *, meanwhile: int) -> Outcome:
    for owner in owners:
        owner.check()
        await owner.log.close()
    successor = (await started(cluster)).log(settings=SETTINGS, owner="the one that checks")
    await successor.initialize()
    checked = await check_log(successor, owners)
    await successor.close()
    return Outcome(checked, max(each.longest_wait_seconds for each in owners), meanwhile)


FAULTS = (kill_bookie, stop_bookie, fill_bookie, lose_zookeeper, kill_all_bookies, duel)
LONG_FAULTS = (lose_zookeeper_for_a_minute,)


async def main(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        ensemble = LocalEnsemble.opened(Path(directory) / "ensemble")
        try:
            for fault in (*FAULTS, *LONG_FAULTS):
                if names and fault.__name__ not in names:
                    continue
                await ensemble.up()
                cluster = Cluster(ensemble)
                began = time.perf_counter()
                outcome = await fault(cluster)
                seconds = time.perf_counter() - began
                print(f"{fault.__name__:<28} {outcome} seconds={seconds:.0f}", flush=True)  # noqa: T201
                await cluster.close()
        finally:
            await ensemble.down(number=signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
