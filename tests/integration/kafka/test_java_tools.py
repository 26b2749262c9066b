"""The tools of Kafka 4.2 do with this store what they do with Kafka: a store in a process of its own, also killed."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from segmentstore.cli.server_process import ServerProcess
from segmentstore.client.topics import connected_topics
from tests.held_ports import bound_sockets, ports_of
from tests.integration.java_libraries import require_maven
from tests.integration.kafka.clients import partitions_in_sessions
from tests.integration.kafka.java_tools import JavaTools

pytestmark = pytest.mark.integration


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    require_maven("the command-line tools of Kafka were not run")
    # Held while it is down: the tools come back to the same port.
    holders = bound_sockets(1)
    address = f"127.0.0.1:{ports_of(holders)[0]}"
    with ServerProcess(tmp_path / "data", ["--kafka", address]) as process:
        yield process
    for each in holders:
        each.close()


@pytest.fixture
def tools(server: ServerProcess) -> JavaTools:
    return JavaTools(server.ready_line.partition(" kafka=")[2].split()[0])


async def test_topics_are_created_listed_described_altered_and_deleted(tools: JavaTools) -> None:
    created = await tools.topics(
        "--create", "--topic", "logs", "--partitions", "3", "--config", "retention.ms=60000"
    )
    assert "Created topic logs." in created
    again = await tools.says("TopicCommand", "--create", "--topic", "logs")
    assert "topic exists already name='logs'" in again
    wrong = await tools.says(
        "TopicCommand", "--create", "--topic", "other", "--config", "cleanup.policy=squash"
    )
    assert "cleanup.policy" in wrong
    await tools.topics("--create", "--topic", "archive")
    assert (await tools.topics("--list")).split() == ["archive", "logs"]
    described = await tools.topics("--describe", "--topic", "logs")
    assert "PartitionCount: 3" in described
    assert "retention.ms=60000" in described
    assert described.count("Leader: ") == 3
    await tools.topics("--alter", "--topic", "logs", "--partitions", "5")
    assert "PartitionCount: 5" in await tools.topics("--describe", "--topic", "logs")
    await tools.topics("--delete", "--topic", "logs")
    assert (await tools.topics("--list")).split() == ["archive"]


async def test_a_consumer_that_waits_keeps_a_session(
    tools: JavaTools, server: ServerProcess
) -> None:
    await tools.topics("--create", "--topic", "logs", "--partitions", "30")
    wanted = ("--topic", "logs", "--from-beginning", "--max-messages", "3")
    async with asyncio.TaskGroup() as group:
        consumer = group.create_task(tools.console_consumer(*wanted))
        async with asyncio.timeout(120):
            while await asyncio.to_thread(partitions_in_sessions, server.address) < 30:
                assert not consumer.done(), consumer.result()
                await asyncio.sleep(0.1)
        await tools.console_producer("--topic", "logs", lines="one\ntwo\nthree\n")
    assert {"one", "two", "three"} <= set(consumer.result().splitlines())


async def test_lines_of_the_console_producer_reach_the_console_consumer(tools: JavaTools) -> None:
    await tools.topics("--create", "--topic", "logs", "--partitions", "2")
    lines = [f"key-{number % 7}\tvalue {number} é" for number in range(100)]
    await tools.console_producer(
        "--topic",
        "logs",
        "--reader-property",
        "parse.key=true",
        "--reader-property",
        "null.marker=none",
        "--compression-codec",
        "zstd",
        lines="".join(f"{line}\n" for line in [*lines, "key-0\tnone"]),
    )
    shown = await tools.console_consumer(
        "--topic",
        "logs",
        "--from-beginning",
        "--group",
        "readers",
        "--max-messages",
        "101",
        "--formatter-property",
        "print.key=true",
        "--timeout-ms",
        "60000",
    )
    found = [line for line in shown.splitlines() if line.startswith("key-")]
    assert sorted(found) == sorted([*lines, "key-0\tnull"])
    for key in range(7):
        of_key = [line for line in found if line.startswith(f"key-{key}\t") and "null" not in line]
        assert of_key == [line for line in lines if line.startswith(f"key-{key}\t")]
    described = await tools.groups("--describe", "--group", "readers")
    rows = [line.split() for line in described.splitlines() if line.startswith("readers")]
    assert {row[2] for row in rows} == {"0", "1"}
    assert sum(int(row[3]) for row in rows) == 101
    assert {row[5] for row in rows} == {"0"}, "nothing is behind what was committed"


async def test_offsets_are_told_and_records_are_deleted(tools: JavaTools) -> None:
    await tools.topics("--create", "--topic", "logs", "--partitions", "2")
    await tools.producer_performance(
        "--topic",
        "logs",
        "--num-records",
        "1000",
        "--record-size",
        "100",
        "--throughput",
        "-1",
        "--command-property",
        "acks=all",
        # By itself it chooses a partition for 16 KB: one in a hundred runs would leave the other one empty.
        "partitioner.class=org.apache.kafka.clients.producer.RoundRobinPartitioner",
    )
    ends = await tools.get_offsets("--topic", "logs", "--time", "-1")
    assert sum(ends.values()) == 1000
    assert await tools.get_offsets("--topic", "logs", "--time", "-2") == {"logs:0": 0, "logs:1": 0}
    assert sum((await tools.get_offsets("--topic", "logs", "--time", "0")).values()) == 0
    latest = await tools.get_offsets("--topic", "logs", "--time", "-3")
    assert all(0 <= latest[each] < end for each, end in ends.items())
    # What is in a store's own tiers is told in versions that this store does not speak: the tool says so.
    tiered = await tools.says("GetOffsetShell", "--topic", "logs", "--time", "-5")
    assert "does not support LIST_OFFSETS" in tiered
    fuller = max(ends, key=lambda each: ends[each])
    before = ends[fuller] - 7
    place = {"topic": "logs", "partition": int(fuller[-1]), "offset": before}
    said = await tools.delete_records(json.dumps({"partitions": [place], "version": 1}))
    assert f"low_watermark: {before}" in said
    assert (await tools.get_offsets("--topic", "logs", "--time", "-2"))[fuller] == before
    shown = await tools.console_consumer(
        "--topic",
        "logs",
        "--partition",
        fuller[-1],
        "--offset",
        "earliest",
        "--max-messages",
        "7",
        "--timeout-ms",
        "60000",
    )
    assert "Processed a total of 7 messages" in shown


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
async def test_the_performance_tools_write_and_read_all_records(
    tools: JavaTools, compression: str
) -> None:
    await tools.topics("--create", "--topic", "logs", "--partitions", "3")
    written = await tools.producer_performance(
        "--topic",
        "logs",
        "--num-records",
        "20000",
        "--record-size",
        "100",
        "--throughput",
        "-1",
        "--command-property",
        f"compression.type={compression}",
    )
    assert written.startswith("20000 records sent")
    read = await tools.consumer_performance(
        "--topic", "logs", "--num-records", "20000", "--timeout", "60000"
    )
    assert read.split(", ")[4] == "20000"


async def test_groups_are_listed_described_reset_and_deleted(tools: JavaTools) -> None:
    await tools.topics("--create", "--topic", "logs")
    lines = "".join(f"{number}\n" for number in range(20))
    await tools.console_producer("--topic", "logs", lines=lines)
    reading = asyncio.ensure_future(
        tools.console_consumer(
            "--topic",
            "logs",
            "--group",
            "readers",
            "--from-beginning",
            "--max-messages",
            "21",
            # Other tools start and end meanwhile.
            "--timeout-ms",
            "300000",
        )
    )
    members = ""
    while "console-consumer" not in members:
        members = await tools.groups("--describe", "--members", "--group", "readers")
    refused = await tools.groups("--delete", "--group", "readers")
    assert "GroupNotEmptyException" in refused
    await tools.console_producer("--topic", "logs", lines="the last one\n")
    assert "the last one" in await reading
    assert "readers" in (await tools.groups("--list")).split()
    state = await tools.groups("--describe", "--state", "--group", "readers")
    assert "Empty" in state
    reset = await tools.groups(
        "--reset-offsets", "--to-offset", "5", "--group", "readers", "--topic", "logs", "--execute"
    )
    assert ["readers", "logs", "0", "5"] in [line.split() for line in reset.splitlines()]
    again = await tools.console_consumer(
        "--topic", "logs", "--group", "readers", "--max-messages", "1", "--timeout-ms", "60000"
    )
    assert again.split()[0] == "5"
    assert "was successful" in await tools.groups("--delete", "--group", "readers")
    assert "readers" not in (await tools.groups("--list")).split()


async def test_latency_is_measured_and_versions_are_listed(tools: JavaTools) -> None:
    await tools.topics("--create", "--topic", "logs")
    measured = await tools.end_to_end_latency(
        "--topic", "logs", "--num-records", "20", "--producer-acks", "all", "--record-size", "100"
    )
    assert "Avg latency" in measured
    assert "JoinGroup(11): 0 to 9" in await tools.api_versions()


async def test_a_static_member_comes_back_within_its_session(tools: JavaTools) -> None:
    """It leaves without a word, so that its group has it until it is back, and goes on where it was."""
    await tools.topics("--create", "--topic", "logs", "--partitions", "1")
    await tools.console_producer("--topic", "logs", lines="one\ntwo\nthree\n")
    reading = (
        *("--topic", "logs", "--from-beginning", "--group", "readers", "--timeout-ms", "60000"),
        *("--command-property", "group.instance.id=mine"),
        *("--command-property", "session.timeout.ms=1000000"),
        *("--command-property", "max.poll.interval.ms=1000000"),
    )
    ids: list[str] = []
    async with connected_topics(tools.address) as topics:
        for expected in ("one", "two", "three"):
            shown = await tools.console_consumer(*reading, "--max-messages", "1")
            assert shown.split()[0] == expected
            (member,) = (await topics.group("readers")).members
            assert member.member_id.startswith("mine-")
            ids.append(member.member_id)
    assert len(set(ids)) == 3, "each run is another member id"
    described = await tools.groups("--describe", "--members", "--group", "readers")
    assert "GROUP-INSTANCE-ID" in described
    assert "mine" in described.split()


async def test_a_killed_server_costs_no_record_no_duplicate_and_no_committed_offset(
    server: ServerProcess, tools: JavaTools
) -> None:
    await tools.topics("--create", "--topic", "logs", "--partitions", "3")
    await tools.topics("--create", "--topic", "read")
    await tools.console_producer("--topic", "read", lines="one\ntwo\nthree\n")
    reading = ("--topic", "read", "--group", "readers", "--timeout-ms", "60000")
    first = await tools.console_consumer(*reading, "--from-beginning", "--max-messages", "2")
    assert first.split()[:2] == ["one", "two"]
    # Idempotent by default: what is sent again after the kill is not stored again.
    writing = asyncio.ensure_future(
        tools.producer_performance(
            *("--topic", "logs", "--num-records", "3000", "--record-size", "100"),
            *("--throughput", "300", "--command-property", "acks=all", "batch.size=1000"),
        )
    )
    # Not by a tool of Java, which may take as long to start as all of the writing.
    async with connected_topics(tools.address) as topics:
        # Few: the other records take ten seconds, of which this process may stand still for some.
        while sum(each.end for each in await topics.offsets("logs")) < 30:
            await asyncio.sleep(0.05)
    assert not writing.done(), "the kill comes while it writes"
    server.kill()
    server.start()
    assert (await writing).startswith("3000 records sent")
    ends = await tools.get_offsets("--topic", "logs", "--time", "-1")
    assert sum(ends.values()) == 3000
    rest = await tools.console_consumer(*reading, "--max-messages", "1")
    assert rest.split()[0] == "three"
