"""A cluster of processes: it serves every container, whatever single process ends, and its commands say so.

Whatever single process dies or stands still under load, no answer was wrong, and appends go on soon. All faults, for
longer: `python -m tests.integration.cluster.faults`. They are in one file, for there is one cluster for each file.
"""

import asyncio
import signal
import subprocess
import time
from collections.abc import Callable
from math import isinf
from pathlib import Path
from random import Random

import pytest

from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.http_client import HttpClient, ServerError
from segmentstore.cluster.cluster_state import ClusterState, read_cluster_state
from segmentstore.codec.container_hash import container_of
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.demo.local_cluster import LocalCluster
from segmentstore.host.cluster_access import open_cluster_access
from segmentstore.host.setting_sources import resolve_settings
from tests.cli.command_line import CommandLine, Result
from tests.integration.cluster import faults
from tests.integration.cluster.clock_faults import step_clock_of_node
from tests.integration.cluster.conftest import SESSION_SECONDS
from tests.integration.cluster.fault_run import FaultSettings
from tests.integration.cluster.kafka_load import kafka_load
from tests.integration.cluster.partition_faults import (
    cut_node_from_bookies,
    cut_node_from_zookeeper,
)
from tests.integration.cluster.pravega_load import pravega_loads
from tests.integration.cluster.process_shim import can_be_built
from tests.integration.cluster.processes import Processes
from tests.integration.cluster.spreading import spread_containers
from tests.integration.java_libraries import missing
from tests.integration.pravega_clients.toolchain import require_java

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SECONDS_MAX = 300.0
"""No promise, only an end: half a minute is usual beside other tests."""
LOADS_SECONDS_MAX = 1100.0
"""Of Pravega's client; its pauses between attempts grow up to 30 s."""
TWO_FAULTS = pytest.mark.timeout(1200)
"""Longer than other tests: two faults under load, and clients with pauses of their own behind each."""
SHORT = FaultSettings(
    before_seconds=2.0,
    after_seconds=1.0,
    operations_min=110,
    session_seconds=SESSION_SECONDS,
    s3_seconds=5.0,
    cuts=1,
)
PAUSE_SECONDS_MAX = 90.0
"""Between two acknowledged appends to one segment, when one process dies, without the time in which processes waited
for a processor. On a machine of its own it is below 15 s, as rounds of faults show; here the disk may stall for seconds
besides, for each step of a recovery, and JVMs, whose waits for a processor are not known, start beside it."""


@pytest.fixture
def commands(capfdbinary: pytest.CaptureFixture[bytes]) -> CommandLine:
    return CommandLine(capfdbinary)


async def state_of(cluster: LocalCluster) -> ClusterState:
    resolved = resolve_settings(flags={"tier1.kind": cluster.place}, environment={})
    async with open_cluster_access(resolved) as access:
        return await read_cluster_state(access.store)


def owner_or_none(cluster: LocalCluster, name: str) -> str | None:
    """The name of the node that has the segment's container; None while that is on its way."""
    state = asyncio.run(state_of(cluster))
    assert state.assignment is not None
    container_id = ContainerId(container_of(name, cluster.plan.containers))
    node_id = state.assignment.containers[container_id].node
    return None if node_id is None else node_id.rpartition("-")[0]


def owner_of(cluster: LocalCluster, name: str) -> str:
    """The same, however long that is on its way: loads change behind a test, and by them the leader may move some."""
    end = time.monotonic() + SECONDS_MAX
    while (found := owner_or_none(cluster, name)) is None:
        assert time.monotonic() < end, f"given to none {name=}"
        time.sleep(0.2)
    return found


def http_of(cluster: LocalCluster, node: str) -> str:
    return f"http://{cluster.of(node).http}"


async def append(server: str, name: str, content: bytes) -> None:
    async with HttpClient(server) as client:
        await client.ensure(name)
        await client.append(name, content)


async def content_of(server: str, name: str) -> bytes:
    async with HttpClient(server) as client:
        return (await client.read(name, 0, 1 << 20)).content


async def eventually(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not await asyncio.to_thread(check):
            await asyncio.sleep(0.2)


def test_every_container_is_served_and_check_has_nothing_to_say(cluster: LocalCluster) -> None:
    asyncio.run(spread_containers(cluster))

    def is_served() -> bool:
        state = asyncio.run(state_of(cluster))
        count = sum(len(state.containers_of(node_id)) for node_id in state.nodes)
        return asyncio.run(cluster.problems()) == [] and count == cluster.plan.containers

    # One may be on its way, by the loads that the tests before have left.
    asyncio.run(eventually(is_served))


def test_what_a_killed_node_acknowledged_is_at_another_one(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    node = owner_of(cluster, "killed")
    asyncio.run(append(http_of(cluster, node), "killed", b"acknowledged"))
    cluster.kill(node)

    def is_elsewhere() -> bool:
        state = asyncio.run(state_of(cluster))
        container_id = ContainerId(container_of("killed", cluster.plan.containers))
        return state.runs(container_id) and owner_of(cluster, "killed") != node

    asyncio.run(eventually(is_elsewhere))
    found = asyncio.run(content_of(http_of(cluster, owner_of(cluster, "killed")), "killed"))
    assert found == b"acknowledged"
    # From wherever it is called, also beside another package of that name.
    (tmp_path / "segmentstore").mkdir()
    (tmp_path / "segmentstore" / "__init__.py").write_text("raise SystemExit(9)\n")
    start = cluster.of(node).start
    assert subprocess.run(start, shell=True, check=False, cwd=tmp_path).returncode == 0
    asyncio.run(eventually(lambda: asyncio.run(cluster.problems()) == []))


def test_a_node_that_is_told_to_end_has_its_containers_moved_first(cluster: LocalCluster) -> None:
    node = owner_of(cluster, "moved")
    asyncio.run(append(http_of(cluster, node), "moved", b"acknowledged"))
    process = cluster.of(node).process
    process.send(signal.SIGTERM)
    asyncio.run(process.end(0, seconds_max=SECONDS_MAX))
    # It has ended: nothing has to expire, and nothing is left to do.
    state = asyncio.run(state_of(cluster))
    assert len(state.nodes) == 2
    assert not state.wishes.drained
    target = owner_of(cluster, "moved")
    assert target != node
    found = asyncio.run(content_of(http_of(cluster, target), "moved"))
    assert found == b"acknowledged"


def test_a_container_is_moved_and_a_node_is_drained_by_command(
    cluster: LocalCluster, commands: CommandLine
) -> None:
    node = owner_of(cluster, "wished")
    container = container_of("wished", cluster.plan.containers)
    other = next(each.name for each in cluster.with_role("node") if each.name != node)

    def command(*words: str) -> Result:
        result = commands("cluster", *words, "--cluster", cluster.place)
        assert result.exit_code == 0, result.errors
        return result

    command("move", str(container), other)
    asyncio.run(eventually(lambda: owner_or_none(cluster, "wished") == other))
    command("drain", other)
    drained = [row["node"] for row in command("nodes", "-o", "json").rows if row["drained"]]
    assert [name.rpartition("-")[0] for name in drained] == [other]
    asyncio.run(eventually(lambda: has_no_container(cluster, other)))
    command("undrain", other)
    command("move", str(container), "any")
    command("rebalance")
    asyncio.run(eventually(lambda: not has_no_container(cluster, other)))
    asyncio.run(eventually(lambda: asyncio.run(cluster.problems()) == []))

    def are_told_to_run() -> bool:
        info = command("info", "-o", "json").row
        rows = command("containers", "-o", "json").rows
        running = cluster.plan.containers
        return info["containers_running"] == running and all(row["runs"] for row in rows)

    # Another may move behind the look before: loads are made even step by step.
    end = time.monotonic() + SECONDS_MAX
    while not are_told_to_run():
        assert time.monotonic() < end, "not every container is told to run"
        time.sleep(0.2)


def has_no_container(cluster: LocalCluster, node: str) -> bool:
    state = asyncio.run(state_of(cluster))
    return not any(
        state.containers_of(node_id) for node_id in state.nodes if node_id.startswith(f"{node}-")
    )


def test_check_names_the_node_that_is_gone_and_ends_with_unavailable(
    cluster: LocalCluster, commands: CommandLine
) -> None:
    for each in cluster.with_role("controller"):
        cluster.kill(each.name)
    assignment = asyncio.run(state_of(cluster)).assignment
    assert assignment is not None
    # None moves without a leader; one that was on its way when it died stays so.
    node = next(each.node for each in assignment.containers.values() if each.node is not None)
    cluster.kill(node.rpartition("-")[0])
    # Without a leader it stays so, once the session is over.
    asyncio.run(eventually(lambda: len(asyncio.run(state_of(cluster)).nodes) == 2))
    result = commands("cluster", "check", "--cluster", cluster.place)
    assert result.exit_code == ExitCode.UNAVAILABLE
    assert "which is gone" in result.errors


def test_h86_a_name_that_is_served_elsewhere_is_refused_or_handed_on_and_never_made_twice(
    cluster: LocalCluster,
) -> None:
    node = owner_of(cluster, "elsewhere")
    asyncio.run(append(http_of(cluster, node), "elsewhere", b"once"))
    nodes = [f"http://{each.http}" for each in cluster.with_role("node")]

    def is_served() -> bool:
        found = [asyncio.run(content_or_status(each, "elsewhere")) for each in nodes]
        assert set(found) <= {b"once", 503}
        return b"once" in found

    # It may be on its way.
    asyncio.run(eventually(is_served))


async def content_or_status(server: str, name: str) -> bytes | int:
    try:
        return await content_of(server, name)
    except ServerError as error:
        return error.status


SHIMMED = (
    cut_node_from_zookeeper,
    cut_node_from_bookies,
    step_clock_of_node,
)
"""They start a process with a library that is compiled for it."""
SEVERAL = (faults.two_leaders, *SHIMMED)
"""More than one process is away, or one for longer: for these no pause is promised."""


@pytest.mark.parametrize(
    "fault",
    [
        faults.kill_node,
        faults.stop_node,
        faults.kill_leader,
        faults.two_leaders,
        faults.kill_bookie,
        faults.lose_zookeeper,
        faults.lose_s3,
        faults.rolling_restart,
        *SHIMMED,
    ],
)
async def test_a_fault_costs_no_acknowledged_operation(
    cluster: LocalCluster, fault: faults.Fault
) -> None:
    if fault in SHIMMED and not can_be_built():
        missing("cc is missing: no clock was set and nothing was cut; install a C compiler")
    report = await faults.report_of(
        fault,
        Processes(cluster.processes_path),
        random=Random(1),
        prefix=f"faults/{fault.__name__}",
        settings=SHORT,
    )
    assert not report.violations, report.violations[0]
    assert not report.failed_requests, report
    # ZooKeeper's JVM may start so slowly that sessions end meanwhile: the fault itself says that nothing is promised.
    took_too_long = fault is faults.lose_zookeeper and isinf(report.pause_seconds_max)
    if fault not in SEVERAL and not took_too_long:
        assert report.own_pause_seconds < PAUSE_SECONDS_MAX, report
    assert report.history.checked_count > 200, report


@TWO_FAULTS
async def test_events_and_transactions_of_pravegas_client_outlive_a_node_and_the_leader(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    require_java()
    processes = Processes(cluster.processes_path)
    async with pravega_loads(
        processes.controllers, scope="outlived", directory=tmp_path, seconds_max=LOADS_SECONDS_MAX
    ) as loads:
        for fault in (faults.kill_node, faults.kill_leader):
            report = await faults.report_of(
                fault,
                processes,
                random=Random(2),
                prefix=f"outlived/{fault.__name__}",
                settings=SHORT,
            )
            assert not report.violations, report.violations[0]
            for each in loads:
                await each.until_it_goes_on()
        for each in loads:
            await each.finish()


@TWO_FAULTS
async def test_records_of_a_kafka_client_outlive_a_node_and_one_that_stands_still(
    cluster: LocalCluster,
) -> None:
    processes = Processes(cluster.processes_path)
    async with kafka_load(processes.kafka, topic="outlived") as load:
        for fault in (faults.kill_node, faults.stop_node):
            report = await faults.report_of(
                fault,
                processes,
                random=Random(3),
                prefix=f"records/{fault.__name__}",
                settings=SHORT,
            )
            assert not report.violations, report.violations[0]
            await load.until_it_goes_on()
        await load.finish()
