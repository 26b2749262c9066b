"""Topics in a cluster: each partition at the node that has its container, and nothing lost when one is killed.

Clients are as published: confluent-kafka, kcat, the console tools of Kafka. They are given the addresses of all nodes,
and find leaders and coordinator by themselves.
"""

import asyncio
import json
import signal
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import chain
from typing import Any

import aiohttp
import pytest
from confluent_kafka.admin import AdminClient

from segmentstore.client.kafka_connection import open_kafka_connection
from segmentstore.codec.kafka_protocol.cluster import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from segmentstore.demo.local_cluster import LocalCluster
from tests.integration.cluster.spreading import SECONDS_MAX, is_well, spread_containers, until
from tests.integration.java_libraries import require_maven
from tests.integration.kafka.clients import new_group, new_topic
from tests.integration.kafka.committing_members import are_at_the_end, committing_members
from tests.integration.kafka.java_tools import tools_class_path
from tests.integration.kafka.kcat import kcat, require_kcat
from tests.integration.kafka.numbered_records import NumberedRecords, read_partition

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PARTITIONS = 6
MANY_PARTITIONS = 30
NODES = ("node0", "node1", "node2")


@pytest.fixture
def cluster(cluster: LocalCluster) -> LocalCluster:
    """Every node has containers: those before may have left all of them at one."""
    asyncio.run(spread_containers(cluster))
    return cluster


def node_at(cluster: LocalCluster, kafka: str) -> str:
    return next(each.name for each in cluster.with_role("node") if each.kafka == kafka)


def leaders(cluster: LocalCluster, topic: str) -> list[str]:
    """Names of nodes, by partition."""
    admin = AdminClient({"bootstrap.servers": cluster.kafka})
    until = time.monotonic() + SECONDS_MAX
    while time.monotonic() < until:
        told = admin.list_topics(topic, timeout=SECONDS_MAX)
        partitions = told.topics[topic].partitions
        ids = [partitions[each].leader for each in sorted(partitions)]
        if ids and all(each in told.brokers for each in ids):
            addresses = [f"{told.brokers[each].host}:{told.brokers[each].port}" for each in ids]
            return [node_at(cluster, each) for each in addresses]
        time.sleep(0.1)
    raise AssertionError(f"not every partition has a leader {topic=}")


async def coordinator(cluster: LocalCluster, group: str) -> str:
    """The name of the node."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            for each in cluster.with_role("node"):
                host, _, port = each.kafka.rpartition(":")
                connection = await open_kafka_connection(host, int(port))
                try:
                    found = await connection.ask(
                        FindCoordinatorRequest(key=group), FindCoordinatorResponse
                    )
                finally:
                    await connection.close()
                if found.error_code == 0:
                    return node_at(cluster, f"{found.host}:{found.port}")
            await asyncio.sleep(0.1)


async def ask(
    cluster: LocalCluster, node: str, method: str, path: str, content: object = None
) -> tuple[int, Any]:
    """Over HTTP: status, and the object of the answer."""
    url = f"http://{cluster.of(node).http}/v1/topics{path}"
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, json=content) as answer,
    ):
        body = await answer.read()
        return answer.status, json.loads(body) if body else None


def test_every_node_is_a_broker_and_partitions_are_led_by_several(cluster: LocalCluster) -> None:
    told = AdminClient({"bootstrap.servers": cluster.kafka}).list_topics(timeout=SECONDS_MAX)
    addresses = {f"{each.host}:{each.port}" for each in told.brokers.values()}
    assert addresses == {each.kafka for each in cluster.with_role("node")}
    # Containers are drawn by the hash of a name of chance: of so many they are at one node in none of very many runs.
    assert len(set(leaders(cluster, new_topic(cluster.kafka, MANY_PARTITIONS)))) > 1
    topic = new_topic(cluster.kafka, PARTITIONS)
    with NumberedRecords(cluster.kafka, topic, PARTITIONS) as records:
        records.wait_for_more(50)
        records.stop()
        records.compare()


def test_kcat_finds_the_leaders(cluster: LocalCluster) -> None:
    require_kcat()
    topic = new_topic(cluster.kafka, PARTITIONS)
    lines = [f"line {number}" for number in range(60)]
    for partition in range(PARTITIONS):
        given = "".join(f"{line}\n" for line in lines[partition::PARTITIONS])
        kcat(cluster.kafka, "-P", "-t", topic, "-p", f"{partition}", given=given)
    read = kcat(cluster.kafka, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", "%p %s\n")
    found = sorted((int(line.split()[0]), int(line.split()[-1])) for line in read.splitlines())
    assert found == sorted((number % PARTITIONS, number) for number in range(60))


async def test_topics_are_made_changed_and_deleted_at_any_node(cluster: LocalCluster) -> None:
    for place, node in enumerate(NODES):
        second, third = NODES[(place + 1) % 3], NODES[(place + 2) % 3]
        name = f"made-at-{node}"
        assert (await ask(cluster, node, "PUT", f"/{name}", {"partitions": 3}))[0] == 201
        for each in NODES:
            status, told = await ask(cluster, each, "GET", f"/{name}")
            assert (status, len(told["partitions"])) == (200, 3), each
            assert name in (await ask(cluster, each, "GET", ""))[1]["topics"]
        assert (await ask(cluster, second, "PUT", f"/{name}", {"partitions": 3}))[0] == 409
        changes = {"partitions": 5, "config": {"retention.ms": "60000"}}
        status, told = await ask(cluster, second, "PATCH", f"/{name}", changes)
        assert (status, len(told["partitions"])) == (200, 5)
        assert (await ask(cluster, third, "DELETE", f"/{name}"))[0] == 204

        async def is_gone(name: str = name) -> bool:
            return {(await ask(cluster, each, "GET", f"/{name}"))[0] for each in NODES} == {404}

        await until(is_gone)


async def test_records_are_written_and_read_over_http_at_nodes_that_do_not_lead(
    cluster: LocalCluster,
) -> None:
    topic = await asyncio.to_thread(new_topic, cluster.kafka, PARTITIONS)
    for partition, leader in enumerate(await asyncio.to_thread(leaders, cluster, topic)):
        writer, reader = [each for each in NODES if each != leader]
        path = f"/{topic}/partitions/{partition}/records"
        for number in range(3):
            records = [{"value": f"{number} {each}"} for each in range(4)]
            status, told = await ask(cluster, writer, "POST", path, records)
            assert status == 200, told
            offsets = [each["offset"] for each in told["records"]]
            assert offsets == [4 * number + each for each in range(4)]
        for node in (reader, leader):
            status, told = await ask(cluster, node, "GET", f"{path}?offset=1")
            assert status == 200, told
            assert told["records"][0]["value"] == "0 1"
            assert (told["next_offset"], told["high_watermark"]) == (12, 12)
        waiting = asyncio.create_task(
            ask(cluster, reader, "GET", f"{path}?offset=12&wait_seconds=20")
        )
        await asyncio.sleep(0.2)
        await ask(cluster, writer, "POST", path, [{"value": "late"}])
        _, told = await waiting
        assert [each["value"] for each in told["records"]] == ["late"]
        assert (await ask(cluster, reader, "GET", f"{path}?offset=99"))[0] == 416


class ConsoleTools:
    """Kafka's own console producer and consumer on one topic: a line after the other, until stop()."""

    def __init__(self, producer: Process, consumer: Process) -> None:
        self._producer = producer
        self._consumer = consumer
        self._stopping = asyncio.Event()
        self.sent = 0
        self.read: set[int] = set()

    async def send(self) -> None:
        assert self._producer.stdin is not None
        while not self._stopping.is_set():
            self._producer.stdin.write(b"%d\n" % self.sent)
            await self._producer.stdin.drain()
            self.sent += 1
            await asyncio.sleep(0.01)
        self._producer.stdin.close()

    async def receive(self) -> None:
        assert self._consumer.stdout is not None
        async for line in self._consumer.stdout:
            if line.strip().isdigit():
                self.read.add(int(line))

    async def finish(self) -> None:
        """Every line was written, and read."""
        self._stopping.set()
        async with asyncio.timeout(SECONDS_MAX):
            assert await self._producer.wait() == 0
            while len(self.read) < self.sent:
                await asyncio.sleep(0.1)


@asynccontextmanager
async def console_tools(cluster: LocalCluster, topic: str) -> AsyncIterator[ConsoleTools]:
    producer, consumer = [
        await asyncio.create_subprocess_exec(
            *("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
            *("-cp", await asyncio.to_thread(tools_class_path), f"org.apache.kafka.tools.{tool}"),
            *("--bootstrap-server", cluster.kafka, "--topic", topic, *more),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        for tool, more in (
            # As it comes it drops a line that was refused three times, one second and a half in all.
            (
                "ConsoleProducer",
                ("--message-send-max-retries", "1000000", "--request-timeout-ms", "10000"),
            ),
            ("consumer.ConsoleConsumer", ("--from-beginning",)),
        )
    ]
    tools = ConsoleTools(producer, consumer)
    try:
        async with asyncio.TaskGroup() as tasks:
            working = [tasks.create_task(tools.send()), tasks.create_task(tools.receive())]
            yield tools
            for each in working:
                each.cancel()
    finally:
        for process in (producer, consumer):
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def test_a_node_that_is_told_to_end_hands_its_partitions_on(cluster: LocalCluster) -> None:
    topic = await asyncio.to_thread(new_topic, cluster.kafka, PARTITIONS)
    with NumberedRecords(cluster.kafka, topic, PARTITIONS) as records:
        await asyncio.to_thread(records.wait_for_more, 20)
        for ending in dict.fromkeys(await asyncio.to_thread(leaders, cluster, topic)):
            process = cluster.of(ending).process
            cluster.kill(ending, signal.SIGTERM)
            await process.wait_until_ended()
            await asyncio.to_thread(records.wait_for_more, 20)
            await asyncio.to_thread(cluster.start, ending)
            await until(lambda: is_well(cluster))
        await asyncio.to_thread(records.stop)
        await asyncio.to_thread(records.compare)


async def test_a_leader_and_then_the_coordinator_are_killed_and_nothing_is_lost(
    cluster: LocalCluster,
) -> None:
    require_maven("Kafka's console tools were not run on a cluster")
    topic = await asyncio.to_thread(new_topic, cluster.kafka, PARTITIONS)
    lines = await asyncio.to_thread(new_topic, cluster.kafka, 3)
    group = new_group()
    async with (
        committing_members(cluster.kafka, group, topic) as consumers,
        console_tools(cluster, lines) as console,
    ):
        await consumers.until_shared(PARTITIONS)
        with NumberedRecords(cluster.kafka, topic, PARTITIONS) as records:
            await asyncio.to_thread(records.wait_for_more, 20)
            for killed in (
                (await asyncio.to_thread(leaders, cluster, topic))[0],
                await coordinator(cluster, group),
            ):
                process = cluster.of(killed).process
                cluster.kill(killed)
                await process.wait_until_ended()
                cluster.start(killed)
                await asyncio.to_thread(records.wait_for_more, 50)
            await asyncio.to_thread(records.stop)
            await asyncio.to_thread(records.compare)

            await consumers.until_found(records.sent)
            await until(
                lambda: asyncio.to_thread(are_at_the_end, cluster.kafka, group, topic, PARTITIONS)
            )
        await console.finish()
    found = [await asyncio.to_thread(read_partition, cluster.kafka, lines, n) for n in range(3)]
    values = [[int(value) for _, value in each] for each in found]
    assert all(each == sorted(set(each)) for each in values)
    assert sorted(chain(*values)) == list(range(console.sent))
