"""Producers that number their batches store each record once and in order, whatever breaks on the way to the log."""

import asyncio
import time
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.held_ports import bound_sockets, ports_of
from tests.integration.kafka.clients import (
    SECONDS_MAX,
    Sent,
    new_topic,
    produce_by_confluent,
    produce_by_kafka_python,
    read_by_confluent,
)
from tests.integration.kafka.kafka_server import KafkaServerProcess
from tests.integration.kafka.lost_answers import AnswerLoser

pytestmark = pytest.mark.integration

COUNT = 1000
UNDER_WAY = 200


@pytest.mark.parametrize("client", ["confluent", "aiokafka", "kafka-python"])
async def test_lost_answers_lose_and_repeat_nothing(tmp_path: Path, client: str) -> None:
    records = [Sent(b"%d" % at, b"%d" % at) for at in range(COUNT)]
    holders = bound_sockets(1)
    (port,) = ports_of(holders)
    options = [f"--set=kafka.advertised_address=127.0.0.1:{port}"]
    try:
        with KafkaServerProcess(tmp_path / "data", options) as server:
            loser = AnswerLoser(server_port=server.port, every=4)
            wall = await asyncio.start_server(loser.serve, "127.0.0.1", port, reuse_port=False)
            bootstrap = f"127.0.0.1:{port}"
            try:
                topic = await asyncio.to_thread(new_topic, bootstrap)
                await _produce_in_small_batches(client, bootstrap, topic, records)
                losses = loser.losses
                found = await asyncio.to_thread(read_by_confluent, bootstrap, topic, COUNT)
            finally:
                wall.close()
                await loser.close()
    finally:
        for each in holders:
            each.close()

    assert losses > 3
    assert found == records


async def _produce_in_small_batches(
    client: str, bootstrap: str, topic: str, records: list[Sent]
) -> None:
    if client == "confluent":
        await asyncio.to_thread(
            produce_by_confluent,
            bootstrap,
            topic,
            records,
            config={
                "enable.idempotence": True,
                "batch.num.messages": 20,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
            },
        )
        return
    if client == "kafka-python":
        await asyncio.to_thread(
            produce_by_kafka_python,
            bootstrap,
            topic,
            records,
            batch_size=300,
            reconnect_backoff_ms=10,
            reconnect_backoff_max_ms=50,
            retry_backoff_ms=10,
        )
        return
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        enable_idempotence=True,
        max_batch_size=500,
        retry_backoff_ms=10,
    )
    await producer.start()
    try:
        sent = [
            await producer.send(topic, each.value, key=each.key, partition=0) for each in records
        ]
        await asyncio.gather(*sent)
    finally:
        await producer.stop()


def test_kill_9_of_the_server_loses_and_repeats_nothing(tmp_path: Path) -> None:
    acknowledged: list[int] = []
    with KafkaServerProcess(tmp_path / "data") as server:
        topic = new_topic(server.bootstrap)
        producer = Producer(
            {
                "bootstrap.servers": server.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.num.messages": 10,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
            }
        )

        def told(error: object, message: object) -> None:
            assert error is None, f"a record was not stored: {error}"
            acknowledged.append(len(acknowledged))

        sent = 0
        for _ in range(3):
            # Killed while batches are under way: some of the last ones are stored, and their answers are lost.
            goal = len(acknowledged) + 100
            until = time.monotonic() + SECONDS_MAX
            while len(acknowledged) < goal and time.monotonic() < until:
                if sent - len(acknowledged) < UNDER_WAY:
                    producer.produce(topic, b"%d" % sent, partition=0, on_delivery=told)
                    sent += 1
                producer.poll(0.001)
            assert len(acknowledged) >= goal, f"{len(acknowledged)} of {sent} are acknowledged"
            server.kill()
            server.start()
        assert producer.flush(SECONDS_MAX) == 0, "records are left"
        found = read_by_confluent(server.bootstrap, topic, sent)
        more = read_by_confluent_end(server.bootstrap, topic)

    assert [each.value for each in found] == [b"%d" % at for at in range(sent)]
    assert len(acknowledged) == sent == more


def read_by_confluent_end(bootstrap: str, topic: str) -> int:
    """The offset behind the last record."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none"})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=SECONDS_MAX)
        return int(end)
    finally:
        consumer.close()
