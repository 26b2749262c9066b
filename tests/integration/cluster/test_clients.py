"""Clients on a cluster: the asyncio client, both of Pravega's, HTTP, and Spark beside nodes that have ended.

The tests of the asyncio client are those of one server, by way of either controller: one leads, the other relays.
"""

import asyncio
import json
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pyarrow.parquet
import pytest

from segmentstore.cli.http_client import HttpClient
from segmentstore.client import ScalingPolicy, Store, StreamConfig, connect
from segmentstore.cluster.cluster_state import ClusterState, read_cluster_state
from segmentstore.codec.container_hash import container_of
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.demo.cluster_roles import TIER2
from segmentstore.demo.local_cluster import LocalCluster
from segmentstore.host.cluster_access import open_cluster_access
from segmentstore.host.setting_sources import resolve_settings
from tests.client.test_real_server import (
    FAST,
    assert_each_key_in_order,
    scope,
    stream,
    test_a_group_may_start_at_the_tail,
    test_a_large_event_arrives_whole,
    test_a_reader_waits_at_the_tail,
    test_a_segment_is_a_file_that_grows,
    test_a_transaction_survives_a_scale,
    test_a_truncated_stream_begins_at_the_cut,
    test_h75_scales_under_a_writer_and_a_reader_keep_every_key_in_order,
    test_readers_of_a_group_share_a_stream_that_scales,
    test_scopes_and_streams_live_and_die,
    test_tables_keep_entries_versions_and_order,
    test_transactions_commit_abort_and_resume,
    test_what_is_written_is_read,
)
from tests.integration.cluster.conftest import until_up
from tests.integration.pravega_clients.test_java_client import run_scenarios
from tests.integration.pravega_clients.toolchain import WHEEL, require_java, wheel_python
from tests.integration.spark.job_process import run_job

__all__ = [
    "scope",
    "stream",
    "test_a_group_may_start_at_the_tail",
    "test_a_large_event_arrives_whole",
    "test_a_reader_waits_at_the_tail",
    "test_a_segment_is_a_file_that_grows",
    "test_a_transaction_survives_a_scale",
    "test_a_truncated_stream_begins_at_the_cut",
    "test_h75_scales_under_a_writer_and_a_reader_keep_every_key_in_order",
    "test_readers_of_a_group_share_a_stream_that_scales",
    "test_scopes_and_streams_live_and_die",
    "test_tables_keep_entries_versions_and_order",
    "test_transactions_commit_abort_and_resume",
    "test_what_is_written_is_read",
]

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SECONDS_MAX = 150.0
"""No promise, only an end: half a minute is usual beside other tests."""
WHEEL_SECONDS_MAX = 400.0
"""The same of Pravega's Python client, whose pauses grow tenfold."""
KEYS = 8
NUMBERS_MIN = 100
"""So many of each key are written, however slow the machine is."""
JAVA_SCENARIOS = (
    "scopes_are_made_listed_and_deleted",
    "an_acknowledged_event_is_read_one_by_one",
    "a_burst_over_several_segments_keeps_each_keys_order",
    "several_readers_share_a_group",
    "transactions_commit_in_the_order_of_their_commits",
    "a_scaled_stream_is_read_through_its_generations",
    "a_byte_stream_is_written_sought_and_truncated",
    "synchronized_state_counts_every_update",
    "a_table_takes_conditional_changes",
)
WHEEL_SCENARIOS = (
    "scopes_and_streams_are_made_listed_and_deleted",
    "events_over_several_segments_keep_each_keys_order",
    "transactions_are_committed_or_aborted_whole",
    "a_byte_stream_is_written_sought_and_truncated",
)


async def state_of(cluster: LocalCluster) -> ClusterState:
    resolved = resolve_settings(flags={"tier1.kind": cluster.place}, environment={})
    async with open_cluster_access(resolved) as access:
        return await read_cluster_state(access.store)


async def controller_of(cluster: LocalCluster, *, leads: bool) -> str:
    leader = (await state_of(cluster)).leader
    assert leader is not None
    found = [
        each.grpc for each in cluster.with_role("controller") if (each.grpc == leader.grpc) is leads
    ]
    return f"tcp://{found[0]}"


@pytest.fixture(params=["leading", "relaying"])
async def store(cluster: LocalCluster, request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """By way of one controller."""
    address = await controller_of(cluster, leads=request.param == "leading")
    async with connect(address, settings=FAST) as store:
        yield store


async def test_a_segment_is_the_same_at_any_node(cluster: LocalCluster) -> None:
    random = Random(1)
    nodes = [f"http://{each.http}" for each in cluster.with_role("node")]
    expected = {f"any/{number}": b"" for number in range(12)}
    for name in expected:
        async with HttpClient(random.choice(nodes)) as client:
            await client.create(name)
    for number in range(120):
        name = random.choice(list(expected))
        async with HttpClient(random.choice(nodes)) as client:
            length = await client.append(name, b"%d;" % number, offset=len(expected[name]))
        expected[name] += b"%d;" % number
        assert length == len(expected[name])
    for node in nodes:
        async with HttpClient(node) as client:
            listed = [info.name async for info in client.list_all("any/")]
            assert listed == sorted(expected)
            for name, content in expected.items():
                assert (await client.read(name, 0, 1 << 20)).content == content


async def test_a_node_killed_under_a_writer_and_a_reader_costs_repeats_and_moves_no_event(
    cluster: LocalCluster,
) -> None:
    container_id = ContainerId(container_of("killed/t/0.#epoch.0", cluster.plan.containers))
    assignment = (await state_of(cluster)).assignment
    assert assignment is not None
    killed = assignment.containers[container_id].node
    assert killed is not None
    seen: list[bytes] = []
    async with connect(cluster.controllers, settings=FAST) as store:
        await store.scope("killed").create()
        stream = store.stream("killed/t")
        await stream.create(StreamConfig(ScalingPolicy.fixed(3)))

        async def read() -> None:
            async with stream.read() as reader:
                async for event in reader:
                    seen.append(event.data)  # noqa: PERF401  # what was seen so far is looked at

        async def kill() -> None:
            """Until what the killed node had is served by others, and a while longer."""
            await asyncio.sleep(1.0)
            cluster.kill(killed.rpartition("-")[0])
            while True:
                state = await state_of(cluster)
                found = state.assignment
                assert found is not None
                if found.containers[container_id].node != killed and state.runs(container_id):
                    break
                await asyncio.sleep(0.2)
            await asyncio.sleep(1.0)

        number = 0
        async with asyncio.timeout(2 * SECONDS_MAX), asyncio.TaskGroup() as tasks:
            tasks.create_task(read())
            killing = tasks.create_task(kill())
            async with stream.writer() as writer:
                while not killing.done() or number < NUMBERS_MIN:
                    for key in range(KEYS):
                        await writer.write(b"%d:%d" % (key, number), key=f"key {key}")
                    number += 1
                    await asyncio.sleep(0.01)
            await stream.seal()
        assert_each_key_in_order(seen, number)
        async with stream.read() as reader:
            assert_each_key_in_order([event.data async for event in reader], number)


def test_pravegas_java_client_works_on_a_cluster(cluster: LocalCluster, tmp_path: Path) -> None:
    require_java()
    results = run_scenarios(cluster.controllers, tmp_path, JAVA_SCENARIOS)
    failed = {name: results.get(name, "not reached") for name in JAVA_SCENARIOS}
    failed = {
        name: one for name, one in failed.items() if isinstance(one, str) or not one["passed"]
    }
    assert not failed, failed


@pytest.mark.parametrize("name", WHEEL_SCENARIOS)
def test_pravegas_python_client_works_on_a_cluster(cluster: LocalCluster, name: str) -> None:
    address = asyncio.run(controller_of(cluster, leads=False))
    scope = f"wheel{WHEEL_SCENARIOS.index(name)}"
    command = [str(wheel_python()), str(WHEEL / "scenarios.py"), address, scope, name]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=WHEEL_SECONDS_MAX, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, f"exit_code={done.returncode} {done.stderr[-2000:]}"
    outcome = json.loads(lines[-1])
    assert outcome["passed"], outcome["failure"] + done.stderr[-1500:]


def test_spark_reads_a_stream_from_s3_while_every_node_is_gone(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [b"%d" % number for number in range(2000)]

    async def fill() -> None:
        async with connect(cluster.controllers, settings=FAST) as store:
            await store.scope("spark").create()
            stream = store.stream("spark/t")
            await stream.create(StreamConfig(ScalingPolicy.fixed(4)))
            async with stream.writer() as writer:
                for event in events:
                    await writer.write(event, key=event.decode())
        async with HttpClient(f"http://{cluster.with_role('node')[0].http}") as client:
            await client.flush_all()

    asyncio.run(fill())
    for each in cluster.with_role("node"):
        cluster.kill(each.name, signal.SIGKILL)
    for name, value in cluster.environment().items():
        monkeypatch.setenv(name, value)
    words = ["export", str(tmp_path / "out"), "--stream", "spark/t", "--tier2", TIER2]
    run_job([*words, "--endpoint", cluster.s3_url], tmp_path / "log")
    files = sorted((tmp_path / "out").rglob("*.parquet"))
    values = [
        value
        for path in files
        for value in pyarrow.parquet.ParquetFile(path).read(["value"])["value"].to_pylist()
    ]
    assert sorted(values) == sorted(events)
    for each in cluster.with_role("node"):
        subprocess.run(each.start, shell=True, check=True)
    asyncio.run(until_up(cluster))
