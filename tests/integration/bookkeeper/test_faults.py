"""Whatever dies below a log on BookKeeper, no entry is lost, repeated or moved; the loss of one delays none for long.

The longer forms are in faults.py, by `python -m tests.integration.bookkeeper.faults`.
"""

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.bookkeeper import faults
from tests.integration.bookkeeper.cluster import PASSWORD, PATIENT, Cluster
from tests.integration.java_libraries import missing
from tier1.bookkeeper.ledgers import Quorum

pytestmark = pytest.mark.integration

WAIT_SECONDS_MAX = 60.0
"""Of an append, when one server dies. Quiet it is a tenth of a second; beside other tests the disk under all bookies
may stall for seconds, also several times for one append. That appends go on without the server is not a matter of
time: it comes back only then (faults.py)."""
_END_SECONDS_MAX = 180
"""One whose threads hold it never ends; one that ends has started Python and a JVM before, 28 s at a load of 30."""
UNCLOSED = """
import asyncio, sys
from tier1.bookkeeper.java_client import JavaLedgerClient
from tier1.bookkeeper.ledgers import Quorum

async def main():
    client = await JavaLedgerClient.connect(sys.argv[1], password=sys.argv[2].encode())
    writer = await client.create(Quorum(), labels={})
    for _ in range(100):
        await asyncio.gather(*(writer.append([bytes(1000)]) for _ in range(20)))
    print("written")

asyncio.run(main())
"""


async def test_a_bookie_that_is_killed_delays_no_append_for_long(cluster: Cluster) -> None:
    outcome = await faults.kill_bookie(cluster)
    assert outcome.longest_wait_seconds < WAIT_SECONDS_MAX
    assert outcome.appended_meanwhile >= faults.APPENDED_MEANWHILE


async def test_a_bookie_that_stands_still_delays_no_append_for_long(cluster: Cluster) -> None:
    outcome = await faults.stop_bookie(cluster)
    assert outcome.longest_wait_seconds < WAIT_SECONDS_MAX
    assert outcome.appended_meanwhile >= faults.APPENDED_MEANWHILE


async def test_a_bookie_with_a_full_disk_delays_no_append_for_long(cluster: Cluster) -> None:
    try:
        outcome = await faults.fill_bookie(cluster)
    except subprocess.CalledProcessError as error:
        missing(f"a small disk cannot be mounted here, so no bookie was filled: {error.stderr!r}")
        return
    assert outcome.longest_wait_seconds < WAIT_SECONDS_MAX


async def test_zookeeper_that_is_gone_delays_no_append_for_long(cluster: Cluster) -> None:
    outcome = await faults.lose_zookeeper(cluster)
    assert outcome.appended_meanwhile >= faults.APPENDED_MEANWHILE


async def test_all_bookies_may_die_at_once(cluster: Cluster) -> None:
    outcome = await faults.kill_all_bookies(cluster)
    assert outcome.checked > 0


async def test_owners_that_take_the_log_from_one_another_lose_nothing(cluster: Cluster) -> None:
    outcome = await faults.duel(cluster, turns=25)
    assert outcome.checked > 25 * 20


async def test_a_bookie_is_replaced_at_once_where_that_is_wanted(cluster: Cluster) -> None:
    client = await cluster.client(settings=replace(PATIENT, replaces_at_once=True))
    writers = [await client.create(Quorum(3, 3, 3), labels={}) for _ in range(6)]
    await asyncio.gather(*(writer.append([b"before"]) for writer in writers))
    await cluster.ensemble.kill(cluster.ensemble.bookies[0])
    async with asyncio.timeout(300):
        await asyncio.gather(
            *(writer.append([b"%d" % number]) for number in range(50) for writer in writers)
        )
    for writer in writers:
        await writer.close()
        assert (await client.open_fenced(writer.ledger_id)).last_entry == 50


async def test_a_process_that_leaves_its_client_open_ends_at_once(cluster: Cluster) -> None:
    """Its JVM has threads that nothing ends; and one that must not ask for the interpreter while it is taken down."""
    for _ in range(3):
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", UNCLOSED, cluster.ensemble.servers, PASSWORD.decode()],
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            timeout=_END_SECONDS_MAX,
        )
        assert (done.returncode, done.stdout) == (0, "written\n"), done.stderr[-2000:]
