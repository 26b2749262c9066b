"""Unmodified clients of two brokers whose partitions, catalogue and coordinator move under them, in order and in this
process; what kills do is tested with real processes (test_several_processes.py, tests/integration/cluster)."""

import asyncio
import logging
import threading
from collections import Counter

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from segmentstore.codec.container_hash import container_of
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.topics.groups.committed_offsets import OFFSETS_TABLE
from segmentstore.topics.topic_records import CATALOGUE_TABLE
from tests.cluster.remote_nodes import RemoteNodes
from tests.cluster.topic_nodes import TopicNode, topic_nodes
from tests.integration.kafka.java_tools import JavaTools

pytestmark = pytest.mark.integration

_LOG = logging.getLogger(__name__)

PARTITIONS = 4
RECORDS = 4_000
UNDER_WAY_MAX = 2_000
"""However long a partition is nowhere: the client takes so many, and refuses further ones at some bound of its own."""
SECONDS_MAX = 240.0
"""No promise, only an end."""


def address_of(node: TopicNode) -> str:
    host, port = node.server.address
    return f"{host}:{port}"


async def move(nodes: RemoteNodes, container_id: ContainerId) -> None:
    """With a moment in which it is nowhere, and all know that."""
    old = nodes.node_of(container_id)
    await nodes.take_away(container_id)
    await nodes.locations.refresh()
    await asyncio.sleep(0.2)
    await nodes.place(container_id, next(node for node in nodes.nodes if node is not old))
    await nodes.locations.refresh()


def produce_all(address: str, is_over: threading.Event) -> Counter[int]:
    """Numbered records, to all partitions, until told to end and some more; how many each of them got."""
    failures: list[KafkaError] = []
    delivered: Counter[int] = Counter()
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 2})

    def take(error: KafkaError | None, message: Message) -> None:
        partition = message.partition()
        if error is not None:
            failures.append(error)
        elif partition is not None:
            delivered[partition] += 1

    number = 0
    while (number < RECORDS or not is_over.is_set()) and not failures:
        if number - sum(delivered.values()) >= UNDER_WAY_MAX:
            producer.poll(0.002)
            continue
        partition = number % PARTITIONS
        producer.produce("t", b"%d" % (number // PARTITIONS), partition=partition, on_delivery=take)
        number += 1
        producer.poll(0.002 if number % 20 == 0 else 0)
    assert producer.flush(SECONDS_MAX) == 0
    assert not failures, failures[:3]
    assert sum(delivered.values()) == number
    return delivered


def consume_all(address: str, expected: "asyncio.Future[Counter[int]]") -> dict[int, list[int]]:
    """By a member of a group that commits as it goes."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    found: dict[int, list[int]] = {each: [] for each in range(PARTITIONS)}
    consumer.subscribe(["t"])
    try:
        while not (
            expected.done()
            and all(len(found[each]) >= count for each, count in expected.result().items())
        ):
            messages = consumer.consume(200, 0.2)
            for message in messages:
                partition, offset, value = message.partition(), message.offset(), message.value()
                if message.error() is not None:
                    continue  # it tries again by itself
                assert partition is not None
                assert offset is not None
                assert value is not None
                # A rebalance behind a coordinator that moved begins at what was committed.
                numbers = found[partition]
                if offset == len(numbers):
                    numbers.append(int(value))
                else:
                    assert numbers[offset] == int(value)
            if messages:
                try:
                    consumer.commit(asynchronous=False)
                except KafkaException as error:
                    _LOG.info("a commit is made again: %s", error)  # the coordinator is on its way
    finally:
        consumer.close()
    return found


async def test_records_come_once_and_in_order_while_everything_moves() -> None:
    async with topic_nodes() as (nodes, made):
        admin = AdminClient({"bootstrap.servers": address_of(made[0])})
        created = admin.create_topics([NewTopic("t", PARTITIONS, 1)])
        await asyncio.to_thread(created["t"].result, SECONDS_MAX)
        is_over = threading.Event()
        loop = asyncio.get_running_loop()
        counts: asyncio.Future[Counter[int]] = loop.create_future()
        producing = asyncio.ensure_future(
            asyncio.to_thread(produce_all, address_of(made[1]), is_over)
        )

        def tell(done: "asyncio.Future[Counter[int]]") -> None:
            error = done.exception()
            if error is not None:
                counts.set_exception(error)
            else:
                counts.set_result(done.result())

        producing.add_done_callback(tell)
        consuming = asyncio.ensure_future(
            asyncio.to_thread(consume_all, address_of(made[0]), counts)
        )
        for _ in range(2):
            for number in range(nodes.container_count):
                await move(nodes, ContainerId(number))
                await asyncio.sleep(0.3)
        is_over.set()
        async with asyncio.timeout(SECONDS_MAX):
            expected = await producing
            found = await consuming
        for partition, count in expected.items():
            assert found[partition] == list(range(count)), f"partition={partition}"


def partitions_of(admin: AdminClient, topic: str) -> int:
    return len(admin.list_topics(topic, timeout=SECONDS_MAX).topics[topic].partitions)


async def test_topics_are_changed_through_a_broker_that_has_not_the_catalogue() -> None:
    async with topic_nodes() as (nodes, made):
        for node in made:
            admin = AdminClient({"bootstrap.servers": address_of(node)})
            name = f"t-{node.node.node_id}"
            created = admin.create_topics([NewTopic(name, 2, 1)])
            await asyncio.to_thread(created[name].result, SECONDS_MAX)
            # The client goes on asking what was the controller.
            await move(nodes, ContainerId(container_of(CATALOGUE_TABLE, nodes.container_count)))
            grown = admin.create_partitions([NewPartitions(name, 3)])
            await asyncio.to_thread(grown[name].result, SECONDS_MAX)
            async with asyncio.timeout(SECONDS_MAX):
                # The other broker, which may be asked as well, hears of it a little later.
                while await asyncio.to_thread(partitions_of, admin, name) != 3:
                    await asyncio.sleep(0.05)
            await move(nodes, ContainerId(container_of(CATALOGUE_TABLE, nodes.container_count)))
            deleted = admin.delete_topics([name])
            await asyncio.to_thread(deleted[name].result, SECONDS_MAX)
        for node in made:
            await node.topics.refresh()
            assert node.topics.names() == []


async def test_java_tools_work_with_two_brokers_and_a_coordinator_that_moved() -> None:
    async with topic_nodes() as (nodes, made):
        tools = [JavaTools(address_of(node)) for node in made]
        await tools[0].topics("--create", "--topic", "t", "--partitions", "4")
        shown = await tools[1].topics("--describe", "--topic", "t")
        assert shown.count("Leader: ") == 4, shown
        assert "Leader: none" not in shown, shown
        lines = "".join(f"{n}\n" for n in range(100))
        await tools[1].console_producer("--topic", "t", lines=lines)
        read = await tools[0].console_consumer(
            "--topic", "t", "--group", "g", "--from-beginning", "--max-messages", "100"
        )
        numbers = [int(line) for line in read.splitlines() if line.isdigit()]
        assert sorted(numbers) == list(range(100))
        await move(nodes, ContainerId(container_of(OFFSETS_TABLE, nodes.container_count)))
        described = await tools[1].groups("--describe", "--group", "g")
        rows = [line.split() for line in described.splitlines() if line.startswith("g ")]
        assert sum(int(row[3]) for row in rows) == 100, described
        assert (await tools[0].groups("--list")).split() == ["g"]
        await tools[0].topics("--delete", "--topic", "t")
        assert (await tools[1].topics("--list")).split() == []
