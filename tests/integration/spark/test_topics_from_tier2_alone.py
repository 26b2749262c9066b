"""Everything but Tier 2 is lost, and the topics come back: records that are in files and in chunks, what retention and
compaction have left, committed offsets; read by Kafka's clients, over HTTP and by Spark.

Method: a real client produces to three topics whose records become files, one of which is compacted and one cut; Tier 1
and the identity are deleted; the store is recovered, verified, read, and goes on.
"""

import asyncio
import base64
import json
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from segmentstore.cli.http_client import HttpClient
from segmentstore.codec.topic_files import COLD_END, LOG_START
from segmentstore.recovery.tier2_access import open_tier2
from segmentstore.topics.topic_records import parse_partition_segment
from tests.integration.kafka.clients import SECONDS_MAX, Sent, new_topic, produce_by_confluent
from tests.integration.kafka.kafka_server import KafkaServerProcess
from tests.tier2.object_stores.s3.conftest import bucket, credentials, moto_url

__all__ = ["bucket", "credentials", "moto_url"]

pytestmark = [pytest.mark.integration, pytest.mark.slow]

FILES_SOON = "--set=kafka.file_seconds=0.2"
COMPACTS = "--set=kafka.compaction_seconds=0.2"
COMPACTS_LATER = "--set=kafka.compaction_seconds=3600"
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
GROUP = "a-group"
CUT_AT = 130
KEYS = 7
LARGE_BYTES = 100_000


@dataclass(frozen=True, order=True)
class Row:
    """A record as every reader is to show it."""

    offset: int
    key: bytes | None
    value: bytes | None


def produce(bootstrap: str, topic: str, rounds: int) -> int:
    """Batches of every codec, and a record that is longer than all of them; how many records.

    A pass of compaction is due when half of the files' bytes were in none, and how long small files are depends on how
    many there are.
    """
    count = 0
    for _ in range(rounds):
        for codec in CODECS:
            records = [
                Sent(b"%d" % (count % KEYS), None if count % 31 == 30 else b"%d" % count * 9)
                for count in range(count, count + 40)
            ]
            config = {"compression.type": codec}
            produce_by_confluent(bootstrap, topic, records, config)
            count += len(records)
        time.sleep(0.3)  # the next ones are in another file
    large = Sent(b"large", Random(7).randbytes(LARGE_BYTES))
    return count + len(produce_by_confluent(bootstrap, topic, [large]))


async def wait_for_files(server: KafkaServerProcess, place: str, ends: dict[str, int]) -> None:
    """Until records below these offsets are in files, as Tier 2 shows it."""
    until = time.monotonic() + SECONDS_MAX
    seen: dict[str, object] = {}
    async with HttpClient(server.address) as client:
        while time.monotonic() < until:
            await client.flush_all()
            seen = await attribute_of_topics(place, COLD_END)
            if all(seen.get(topic, 0) == end for topic, end in ends.items()):
                return
            await asyncio.sleep(0.2)
    pytest.fail(f"records are not in files: {seen} {ends}")


async def attribute_of_topics(place: str, key: bytes) -> dict[str, object]:
    found: dict[str, object] = {}
    async with open_tier2(place) as opened:
        for reader in opened.containers:
            async with aclosing(reader.list_segments("", "")) as records:
                async for record in records:
                    partition = parse_partition_segment(record.name)
                    if partition is not None:
                        found[partition[0]] = record.core_attributes.get(key, 0)  # type: ignore[call-overload]
    return found


def read(bootstrap: str, topic: str, last: int) -> list[Row]:
    """From the beginning, up to the last offset."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "auto.offset.reset": "earliest"}
    )
    try:
        consumer.assign([ConfluentPartition(topic, 0, 0)])
        found: list[Row] = []
        until = time.monotonic() + SECONDS_MAX
        while (not found or found[-1].offset < last) and time.monotonic() < until:
            message = consumer.poll(1.0)
            if message is not None:
                assert message.error() is None, f"a record was not read: {message.error()}"
                offset = message.offset()
                assert offset is not None
                found.append(Row(offset, message.key(), message.value()))
        return found
    finally:
        consumer.close()


def last_of_keys(rows: Sequence[Row]) -> dict[bytes | None, Row]:
    return {row.key: row for row in rows}


def read_over_http(server: KafkaServerProcess, topic: str, first: int, end: int) -> list[Row]:
    found: list[Row] = []
    offset = first
    while offset < end:
        url = f"{server.address}/v1/topics/{topic}/partitions/0/records?offset={offset}"
        request = urllib.request.Request(url, headers={"Accept": "application/json"})
        with urllib.request.urlopen(request, timeout=SECONDS_MAX) as answer:
            page = json.load(answer)
        found += [
            Row(each["offset"], _bytes_of(each, "key"), _bytes_of(each, "value"))
            for each in page["records"]
        ]
        offset = page["next_offset"]
    return found


def _bytes_of(record: dict[str, str | None], field: str) -> bytes | None:
    if f"{field}_base64" in record:
        return base64.b64decode(record[f"{field}_base64"] or "")
    text = record.get(field)
    return None if text is None else text.encode()


def read_by_spark(spark: SparkSession, topic: str, options: dict[str, str]) -> list[Row]:
    frame = spark.read.format("segmentstore").options(topic=topic, **options).load()
    rows = frame.select("offset", "key", "value").collect()
    return sorted(
        Row(
            row[0],
            None if row[1] is None else bytes(row[1]),
            None if row[2] is None else bytes(row[2]),
        )
        for row in rows
    )


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "segmentstore.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (arguments, done.stderr)
    return done


def committed(bootstrap: str, topics: Sequence[str]) -> list[tuple[str, int, str | None]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    try:
        places = [ConfluentPartition(topic, 0) for topic in topics]
        return [
            (each.topic, each.offset, each.metadata)
            for each in consumer.committed(places, timeout=SECONDS_MAX)
        ]
    finally:
        consumer.close()


def commit(bootstrap: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    try:
        place = ConfluentPartition(topic, 0, offset, metadata=f"note of {topic}")
        consumer.commit(offsets=[place], asynchronous=False)
    finally:
        consumer.close()


@pytest.mark.parametrize(
    ("kind", "copy"), [("volumes", False), ("volumes", True), ("s3", False), ("s3", True)]
)
def test_topics_come_back_from_tier_2_alone(
    tmp_path: Path,
    spark: SparkSession,
    kind: str,
    copy: bool,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place, endpoint, tier2 = str(tmp_path / "old"), "", [f"--tier2={kind}"]
    if kind == "s3":
        request.getfixturevalue("credentials")
        endpoint = request.getfixturevalue("moto_url")
        monkeypatch.setenv("SEGMENTSTORE_S3_ENDPOINT_URL", endpoint)
        place = f"s3://{request.getfixturevalue('bucket')}/store"
        tier2 = [f"--tier2={place}"]
    with KafkaServerProcess(tmp_path / "old", [FILES_SOON, COMPACTS, *tier2]) as old:
        plain, cut, compacted = topics = [
            new_topic(old.bootstrap, config=config)
            for config in (
                {"compression.type": "zstd"},
                {"file.delete.delay.ms": "0"},
                {"cleanup.policy": "compact", "file.delete.delay.ms": "0"},
            )
        ]
        ends = {topic: produce(old.bootstrap, topic, 2) for topic in topics}
        asyncio.run(wait_for_files(old, place, ends))
        admin = AdminClient({"bootstrap.servers": old.bootstrap})
        for done in admin.delete_records([ConfluentPartition(cut, 0, CUT_AT)]).values():
            assert done.result(SECONDS_MAX).low_watermark == CUT_AT
        until = time.monotonic() + SECONDS_MAX
        while len(read(old.bootstrap, compacted, ends[compacted] - 1)) > ends[compacted] // 4:
            assert time.monotonic() < until, "it is not compacted"
        for number, topic in enumerate(topics):
            commit(old.bootstrap, topic, 100 + number)
            ends[topic] += len(
                produce_by_confluent(old.bootstrap, topic, [Sent(b"last", b"in a chunk")] * 3)
            )
        # Compaction goes on behind it: what it replaces then, Tier 2 names, and it stays.
        asyncio.run(flushed(old))
        expected = {topic: read(old.bootstrap, topic, ends[topic] - 1) for topic in topics}
        notes = committed(old.bootstrap, topics)
        old.kill()
    assert [len(expected[topic]) for topic in (plain, cut)] == [ends[plain], ends[cut] - CUT_AT]
    assert {row.key: row.value for row in expected[compacted]} == {
        row.key: row.value for row in [Row(0, each.key, each.value) for each in expected[plain]]
    }
    assert [offset for _, offset, _ in notes] == [100, 101, 102]
    for name in ("tier1", "identity", "lock"):
        path = tmp_path / "old" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    new_data = tmp_path / "new"
    arguments = ["recover", "--from-tier2", place, "--data", str(new_data), "--quiet"]
    command(*arguments, *(["--copy"] if copy else []))
    if copy or kind == "volumes":
        place, endpoint, tier2 = str(new_data), "", []
    if copy:
        shutil.rmtree(tmp_path / "old")
    verified = command("tier2", "verify", place, "--deep", "--quiet")
    assert ", 0 problems" in verified.stderr
    assert "files of records: " in verified.stderr
    with KafkaServerProcess(new_data, [FILES_SOON, COMPACTS_LATER, *tier2]) as new:
        assert asyncio.run(attribute_of_topics(place, LOG_START))[cut] == CUT_AT
        for topic in topics:
            rows = read(new.bootstrap, topic, ends[topic] - 1)
            if topic == compacted:
                # What was compacted between the read and the kill is gone, and nothing else.
                assert set(rows) <= set(expected[topic])
                assert last_of_keys(rows) == last_of_keys(expected[topic])
            else:
                assert rows == expected[topic]
            assert read_over_http(new, topic, rows[0].offset, ends[topic]) == rows
            words = {"tier2": place, "kafka": new.bootstrap, "mode": "offline"}
            words |= {"endpoint": endpoint} if endpoint else {}
            assert read_by_spark(spark, topic, words) == rows
        assert committed(new.bootstrap, topics) == notes
        for topic in topics:
            sent = [Sent(b"goes on", b"%d" % n) for n in range(5)]
            assert produce_by_confluent(new.bootstrap, topic, sent) == list(
                range(ends[topic], ends[topic] + 5)
            )
        asyncio.run(wait_for_files(new, place, {topic: ends[topic] + 5 for topic in topics}))
        assert read(new.bootstrap, cut, ends[cut] + 4)[: len(expected[cut])] == expected[cut]


async def flushed(server: KafkaServerProcess) -> None:
    async with HttpClient(server.address) as client:
        await client.flush_all()
