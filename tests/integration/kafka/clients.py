"""Three clients behind a few calls, for tests that want the same of each."""

import time
import urllib.request
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast
from uuid import uuid4

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from confluent_kafka import Consumer, Message, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

with warnings.catch_warnings():
    # It reads its descriptions of messages in a way that Python gives up.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

SECONDS_MAX = 120.0
"""No promise, only an end."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A record, as a test sends and expects it."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def new_topic(bootstrap: str, partitions: int = 1, config: dict[str, str] | None = None) -> str:
    """A topic that no other test has."""
    name = f"topic-{uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(name, partitions, config=config or {})]).values():
        made.result(SECONDS_MAX)
    return name


def new_group() -> str:
    return f"group-{uuid4().hex}"


def produce_by_confluent(
    bootstrap: str,
    topic: str,
    records: Sequence[Sent],
    config: Mapping[str, str | int | bool] | None = None,
) -> list[int]:
    """The offsets in order, when every record is acknowledged."""
    offsets: dict[int, int] = {}

    def told(at: int) -> Callable[[object, Message], None]:
        def tell(error: object, message: Message) -> None:
            assert error is None, f"a record was not stored: {error}"
            offset = message.offset()
            assert offset is not None
            offsets[at] = offset

        return tell

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **(config or {})})
    for at, each in enumerate(records):
        producer.produce(
            topic,
            partition=0,
            key=each.key,
            value=each.value,
            headers=list(each.headers),
            on_delivery=told(at),
        )
        producer.poll(0)
    assert producer.flush(SECONDS_MAX) == 0, "records are left"
    return [offsets[at] for at in range(len(records))]


async def produce_by_aiokafka(
    bootstrap: str, topic: str, records: Sequence[Sent], **config: object
) -> list[int]:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, **config)
    await producer.start()
    try:
        futures = [
            await producer.send(
                topic, partition=0, key=each.key, value=each.value, headers=list(each.headers)
            )
            for each in records
        ]
        return [(await each).offset for each in futures]
    finally:
        await producer.stop()


def produce_by_kafka_python(
    bootstrap: str, topic: str, records: Sequence[Sent], **config: object
) -> list[int]:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, **config)
    try:
        futures = [
            producer.send(
                topic, partition=0, key=each.key, value=each.value, headers=list(each.headers)
            )
            for each in records
        ]
        return [each.get(SECONDS_MAX).offset for each in futures]
    finally:
        producer.close()


def read_by_confluent(
    bootstrap: str,
    topic: str,
    count: int,
    *,
    start: int = 0,
    config: Mapping[str, str | int | bool] | None = None,
) -> list[Sent]:
    """`count` records from an offset on, outside of any group."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", **(config or {})})
    try:
        consumer.assign([ConfluentPartition(topic, 0, start)])
        found: list[Sent] = []
        until = time.monotonic() + SECONDS_MAX
        while len(found) < count and time.monotonic() < until:
            message = consumer.poll(1.0)
            if message is None:
                continue
            assert message.error() is None, f"a record was not read: {message.error()}"
            headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
            found.append(Sent(message.key(), message.value(), tuple(headers)))
        return found
    finally:
        consumer.close()


async def read_by_aiokafka(
    bootstrap: str, topic: str, count: int, *, start: int = 0, **config: object
) -> list[Sent]:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, **config)
    await consumer.start()
    try:
        place = TopicPartition(topic, 0)
        consumer.assign([place])
        consumer.seek(place, start)
        found = [await consumer.getone() for _ in range(count)]
        return [Sent(each.key, each.value, tuple(each.headers)) for each in found]
    finally:
        await consumer.stop()


def read_by_kafka_python(bootstrap: str, topic: str, count: int, *, start: int = 0) -> list[Sent]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap)
    try:
        place = kafka.TopicPartition(topic, 0)
        consumer.assign([place])
        consumer.seek(place, start)
        found = [next(consumer) for _ in range(count)]
        return [Sent(each.key, each.value, tuple(each.headers)) for each in found]
    finally:
        consumer.close()


def consumer_of_kafka_python(bootstrap: str, topic: str, partitions: int) -> kafka.KafkaConsumer:
    """Of all of them, from the beginning."""
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap)
    consumer.assign([kafka.TopicPartition(topic, at) for at in range(partitions)])
    consumer.seek_to_beginning()
    return consumer


def partitions_in_sessions(address: str) -> int:
    """What the sessions of consumers remember, of the server with that HTTP address."""
    with urllib.request.urlopen(f"{address}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    name = "segmentstore_kafka_fetch_session_partitions "
    (value,) = [line.removeprefix(name) for line in lines if line.startswith(name)]
    return int(float(value))
