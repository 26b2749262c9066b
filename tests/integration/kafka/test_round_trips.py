"""What one client produces every client reads, unchanged: keys and values, nulls, headers, in every codec."""

import time

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition

from tests.integration.kafka.clients import (
    SECONDS_MAX,
    Sent,
    consumer_of_kafka_python,
    new_topic,
    partitions_in_sessions,
    produce_by_aiokafka,
    produce_by_confluent,
    produce_by_kafka_python,
    read_by_aiokafka,
    read_by_confluent,
    read_by_kafka_python,
)
from tests.integration.kafka.kafka_server import KafkaServerProcess

pytestmark = pytest.mark.integration

RECORDS = [
    Sent(b"key", b"value", (("name", b"value"), ("name", b"again"))),
    Sent(None, b"no key"),
    Sent(b"a tombstone", None),
    Sent(b"", b""),
    Sent(None, None, (("empty", b""),)),
    *[Sent(b"%d" % at, b"compresses well " * 20) for at in range(100)],
]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_every_client_reads_what_each_produced(
    server: KafkaServerProcess, codec: str
) -> None:
    topic = new_topic(server.bootstrap)
    offsets = produce_by_confluent(
        server.bootstrap, topic, RECORDS, config={"compression.type": codec}
    )
    name = None if codec == "none" else codec
    # The others refuse a record without a key and a value.
    records = [each for each in RECORDS if each.key is not None or each.value is not None]
    offsets += await produce_by_aiokafka(server.bootstrap, topic, records, compression_type=name)
    expected = RECORDS + records
    is_known_to_kafka_python = codec != "snappy"  # for that it wants a library in C
    if is_known_to_kafka_python:
        offsets += produce_by_kafka_python(server.bootstrap, topic, records, compression_type=name)
        expected += records

    assert offsets == list(range(len(expected)))
    assert read_by_confluent(server.bootstrap, topic, len(expected)) == expected
    assert await read_by_aiokafka(server.bootstrap, topic, len(expected)) == expected
    if is_known_to_kafka_python:
        assert read_by_kafka_python(server.bootstrap, topic, len(expected)) == expected


async def test_a_header_without_a_value_stays_one(server: KafkaServerProcess) -> None:
    topic = new_topic(server.bootstrap)
    record = Sent(b"k", b"v", (("none", None), ("empty", b"")))
    produce_by_confluent(server.bootstrap, topic, [record])

    assert read_by_confluent(server.bootstrap, topic, 1) == [record]


async def test_a_value_of_ten_megabytes(server: KafkaServerProcess) -> None:
    topic = new_topic(server.bootstrap, config={"max.message.bytes": "12000000"})
    record = Sent(b"k", bytes(range(256)) * 40_000)
    produce_by_confluent(
        server.bootstrap,
        topic,
        [record, Sent(b"k", b"next")],
        config={"message.max.bytes": 12_000_000},
    )
    await produce_by_aiokafka(server.bootstrap, topic, [record], max_request_size=12_000_000)

    found = read_by_confluent(server.bootstrap, topic, 3)
    assert found == [record, Sent(b"k", b"next"), record]
    assert await read_by_aiokafka(server.bootstrap, topic, 3) == found


async def test_a_reader_starts_inside_a_batch(server: KafkaServerProcess) -> None:
    topic = new_topic(server.bootstrap)
    records = [Sent(None, b"%d" % at) for at in range(100)]
    produce_by_confluent(server.bootstrap, topic, records, config={"linger.ms": 500})

    assert read_by_confluent(server.bootstrap, topic, 43, start=57) == records[57:]
    assert await read_by_aiokafka(server.bootstrap, topic, 43, start=57) == records[57:]
    assert read_by_kafka_python(server.bootstrap, topic, 43, start=57) == records[57:]


@pytest.mark.parametrize("codec", ["none", "lz4"])
async def test_offsets_are_found_by_time(server: KafkaServerProcess, codec: str) -> None:
    topic = new_topic(server.bootstrap)
    start = int(time.time() * 1000) - 1_000_000
    producer = Producer(
        {"bootstrap.servers": server.bootstrap, "linger.ms": 200, "compression.type": codec}
    )
    for at in range(50):
        producer.produce(topic, partition=0, value=b"%d" % at, timestamp=start + at * 1000)
    assert producer.flush(SECONDS_MAX) == 0

    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "none"})
    wanted = [start - 5, start + 20_001, start + 49_000, start + 49_001]
    found = [
        consumer.offsets_for_times([ConfluentPartition(topic, 0, each)], timeout=SECONDS_MAX)
        for each in wanted
    ]
    watermarks = consumer.get_watermark_offsets(ConfluentPartition(topic, 0), timeout=SECONDS_MAX)
    consumer.close()
    other = AIOKafkaConsumer(bootstrap_servers=server.bootstrap)
    await other.start()
    try:
        place = TopicPartition(topic, 0)
        by_other = [(await other.offsets_for_times({place: each}))[place] for each in wanted]
    finally:
        await other.stop()

    assert [each[0].offset for each in found] == [0, 21, 49, -1]
    assert watermarks == (0, 50)
    assert [None if each is None else each.offset for each in by_other] == [0, 21, 49, None]
    assert by_other[1] is not None
    assert by_other[1].timestamp == start + 21_000


def test_a_consumer_in_a_session_reads_what_comes_to_any_of_its_partitions(
    server: KafkaServerProcess,
) -> None:
    topic = new_topic(server.bootstrap, 20)
    producer = Producer({"bootstrap.servers": server.bootstrap})
    consumer = consumer_of_kafka_python(server.bootstrap, topic, 20)
    for at in (3, 17, 3, 0, 19):
        producer.produce(topic, partition=at, value=b"%d" % at)
        assert producer.flush(SECONDS_MAX) == 0
        found = next(consumer)
        assert (found.partition, found.value) == (at, b"%d" % at)
    assert partitions_in_sessions(server.address) >= 20
    consumer.close()
    until = time.monotonic() + SECONDS_MAX
    while partitions_in_sessions(server.address):
        assert time.monotonic() < until, "a session outlives its connection"
        time.sleep(0.05)
