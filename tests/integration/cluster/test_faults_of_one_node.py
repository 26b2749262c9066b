"""The driver of faults on a standalone store: kill -9 and restart cost nothing acknowledged, and a lie is found."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from tests.integration.cluster import faults, standalone_store
from tests.integration.cluster.cluster_health import LOOK_SECONDS, RECOVER_SECONDS_MAX
from tests.integration.cluster.fault_run import FaultRun, FaultSettings
from tests.integration.cluster.lying_proxy import LIES, proxy_of
from tests.integration.cluster.processes import Processes, is_running
from tests.integration.cluster.workload import WorkloadSettings

pytestmark = pytest.mark.integration

SHORT = FaultSettings(before_seconds=1.0, after_seconds=0.5, operations_min=160)
HTTP_ONLY = WorkloadSettings(table_clients=0, segments=3, mixed_clients=6, pause_seconds=0.02)
LIES_MIN = 10
"""One may be told while an append is on its way that makes it true."""


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    directory = tmp_path_factory.mktemp("store")
    # By a process of its own, as it is started again: it belongs to none of the tests.
    command = [sys.executable, "-m", standalone_store.__name__, str(directory)]
    subprocess.run(command, check=True, cwd=standalone_store.ROOT)
    found = Processes(directory / "processes.json")
    yield found
    pid = found.row("node").pid
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    while is_running(pid):
        time.sleep(0.01)


async def test_a_kill_and_a_restart_under_load_lose_and_change_nothing(
    processes: Processes,
) -> None:
    for number in range(2):
        report = await faults.report_of(
            faults.kill_node,
            processes,
            random=Random(number),
            prefix=f"kill/{number}",
            settings=SHORT,
        )
        assert not report.violations, report.violations[0]
        assert report.history.checked_count > 300
        assert report.failover_seconds


@pytest.mark.parametrize("lie", LIES)
async def test_a_node_that_lies_is_found_out(
    processes: Processes, tmp_path: Path, lie: str
) -> None:
    async with proxy_of(processes.row("node").http, lie, Random(1)) as (address, proxy):
        rows = json.loads(processes.path.read_text())
        rows[0]["http"] = address
        path = tmp_path / "processes.json"
        path.write_text(json.dumps(rows))

        async def until_it_has_lied(_: FaultRun) -> None:
            async with asyncio.timeout(RECOVER_SECONDS_MAX):
                while proxy.told < LIES_MIN:
                    await asyncio.sleep(LOOK_SECONDS)

        report = await faults.report_of(
            until_it_has_lied,
            Processes(path),
            random=Random(2),
            prefix=f"lies/{lie}",
            settings=SHORT,
            work=HTTP_ONLY,
        )
    assert report.violations
