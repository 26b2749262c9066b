"""kcat over the librdkafka of Debian, which asks for exact versions: produce and read in each codec, groups, times."""

import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from segmentstore.codec.kafka_protocol.fetch import FetchResponse
from segmentstore.codec.record_batch import Compression, parse_header
from tests.integration.kafka.clients import SECONDS_MAX, new_group, new_topic
from tests.integration.kafka.kafka_server import KafkaServerProcess
from tests.integration.kafka.kcat import kcat, require_kcat
from tests.integration.kafka.topic_files import FILE_OPTIONS, wait_for_files
from tests.kafka.node import Client, fetch, fetched

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def _installed() -> None:
    require_kcat()


@pytest.mark.parametrize("codec", list(Compression), ids=lambda each: each.name.lower())
async def test_what_it_compresses_is_stored_compressed_and_read_back(
    server: KafkaServerProcess, codec: Compression
) -> None:
    topic = new_topic(server.bootstrap)
    lines = "".join(f"line {at} which compresses well\n" for at in range(100))
    name = codec.name.lower()
    kcat(
        server.bootstrap,
        "-P",
        "-t",
        topic,
        "-p",
        "0",
        "-z",
        name,
        # All in one batch: one of few lines is not compressed where that makes it longer.
        "-X",
        "linger.ms=60000",
        "-X",
        "batch.num.messages=100",
        given=lines,
    )

    read = kcat(server.bootstrap, "-C", "-t", topic, "-o", "beginning", "-e", "-q")
    assert read == lines
    client = await Client.connect("127.0.0.1", server.port)
    try:
        answer = await client.ask(fetch((0, 0), topic=topic), FetchResponse)
    finally:
        client.close()
    records = fetched(answer).records
    assert records is not None
    assert parse_header(records).compression is codec


def test_keys_nulls_headers_groups_and_times(server: KafkaServerProcess) -> None:
    topic, group = new_topic(server.bootstrap, 2), new_group()
    for partition in ("0", "1"):
        given = "key:value\n:\n"
        kcat(
            server.bootstrap,
            "-P",
            "-t",
            topic,
            "-p",
            partition,
            "-K:",
            "-Z",
            "-H",
            "a=b",
            given=given,
        )

    found = kcat(
        server.bootstrap, "-C", "-t", topic, "-p", "1", "-o", "0", "-e", "-q", "-f", "%K|%S|%h\n"
    )
    assert found == "3|5|a=b\n-1|-1|a=b\n"
    group_read = ["-X", "auto.offset.reset=earliest", "-e", "-q", "-f", "%s\n", "-G", group, topic]
    assert sorted(kcat(server.bootstrap, *group_read).splitlines()) == ["", "", "value", "value"]
    assert "offset 0" in kcat(server.bootstrap, "-Q", "-t", f"{topic}:0:1000")
    assert f'topic "{topic}" with 2 partitions' in kcat(server.bootstrap, "-L")


def test_it_reads_files_from_the_beginning_from_an_offset_and_by_time(tmp_path: Path) -> None:
    with KafkaServerProcess(tmp_path / "data", FILE_OPTIONS) as server:
        topic = new_topic(server.bootstrap)
        start = int(time.time() * 1000) - 500_000
        producer = Producer({"bootstrap.servers": server.bootstrap})
        for at in range(100):
            producer.produce(topic, b"%d" % at, partition=0, timestamp=start + at * 1_000)
        assert producer.flush(SECONDS_MAX) == 0
        wait_for_files(server, topic, 100)
        words = ["-C", "-t", topic, "-p", "0", "-e", "-q"]
        for place, first in (("beginning", 0), ("40", 40), (f"s@{start + 70_500}", 71)):
            read = kcat(server.bootstrap, *words, "-o", place)
            assert read.split() == [str(at) for at in range(first, 100)]
