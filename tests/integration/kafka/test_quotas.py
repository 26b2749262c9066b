"""Clients that are above their rate hear of it, wait, and lose nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, ThrottleEvent, TopicPartition

from tests.integration.kafka.clients import SECONDS_MAX, new_topic
from tests.integration.kafka.kafka_server import KafkaServerProcess

pytestmark = pytest.mark.integration

RATES = ("--set=kafka.producer_byte_rate=200000", "--set=kafka.consumer_byte_rate=200000")


@pytest.fixture
def slow_server(tmp_path: Path) -> Iterator[KafkaServerProcess]:
    with KafkaServerProcess(tmp_path / "data", RATES) as server:
        yield server


def test_a_producer_and_a_consumer_are_told_to_wait(slow_server: KafkaServerProcess) -> None:
    topic, told = new_topic(slow_server.bootstrap), list[ThrottleEvent]()
    config = {"bootstrap.servers": slow_server.bootstrap, "throttle_cb": told.append}
    producer = Producer({**config, "client.id": "producer", "linger.ms": 0})
    # The first is above the allowance of a second by itself, however slowly the machine takes them.
    values = [b"%06d" % at * (5_000 if at else 50_000) for at in range(20)]
    for value in values:
        producer.produce(topic, partition=0, value=value)
        producer.flush(SECONDS_MAX)
    producer.poll(0)
    # When it is over the client is told so, by a time of nothing.
    assert any(each.throttle_time > 0 for each in told), "the producer was not told to wait"
    told.clear()
    consumer = Consumer(
        {**config, "client.id": "consumer", "group.id": "none", "max.partition.fetch.bytes": 65_536}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = [consumer.poll(SECONDS_MAX) for _ in values]
    assert [None if each is None else each.value() for each in found] == values
    assert any(each.throttle_time > 0 for each in told), "the consumer was not told to wait"
    consumer.close()
