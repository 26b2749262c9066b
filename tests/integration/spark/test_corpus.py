"""A real corpus goes into a topic by every producer and comes out the same by every reader, Spark among them.

Lines of the standard library as JSON records, a fifth of them by each of HTTP, gRPC, our client, kcat and
confluent-kafka; read by each of these and by Spark; from the log, then from files of records, which are inspected by
the command line and by the reader that knows the format's page alone; after kill -9; and from Tier 2 with no service.

    python -m tests.integration.spark.test_corpus        the whole standard library, by hand
"""

import asyncio
import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import grpc
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession

from segmentstore.cli.http_client import HttpClient
from segmentstore.cli.server_process import ServerProcess
from segmentstore.client.topics import NewRecord, connected_topics
from segmentstore.codec.record_batch import decode_batches
from segmentstore.codec.topics_api import topics_pb2 as api
from segmentstore.topics.api.grpc_server import SERVICE
from tests.held_ports import bound_sockets, ports_of
from tests.integration.kafka.kcat import kcat, require_kcat

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TOPIC: Final = "corpus"
LINES_MAX: Final = 10_000
PER_REQUEST: Final = 2_000
READER: Final = Path(__file__).parents[3] / "examples" / "read_segment_file.py"
SECONDS_MAX: Final = 600.0


def lines_of_the_library(most: int | None) -> list[bytes]:
    """JSON records, in one order."""
    root = Path(sysconfig.get_path("stdlib"))
    found: list[bytes] = []
    for path in sorted(root.rglob("*.py")):
        if "site-packages" in path.parts:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines()):
            record = {"file": str(path.relative_to(root)), "line": number, "text": line}
            found.append(json.dumps(record).encode())
            if len(found) == most:
                return found
    return found


def digest(values: Sequence[bytes]) -> str:
    """Of the records in their order."""
    return hashlib.sha256(b"\n".join(values)).hexdigest()


class Store:
    """A server with all its ways to topics; its ports outlive it."""

    def __init__(self, directory: Path) -> None:
        self._holders = bound_sockets(2)
        kafka, grpc_port = ports_of(self._holders)
        self.kafka, self.grpc = f"127.0.0.1:{kafka}", f"127.0.0.1:{grpc_port}"
        self.tier2 = directory / "data"
        self.server = ServerProcess(
            self.tier2,
            [
                f"--kafka={self.kafka}",
                f"--set=kafka.grpc_address={self.grpc}",
                "--tier2=filesystem",
                "--set=kafka.file_seconds=1h",
                "--set=kafka.file_bytes=256KiB",
            ],
        )

    def close(self) -> None:
        for each in self._holders:
            each.close()

    def wait_for_topics(self) -> None:
        """Behind each start: one that takes long is announced before topics answer."""
        until = time.monotonic() + SECONDS_MAX
        while True:
            try:
                with urllib.request.urlopen(f"{self.server.address}/v1/topics"):
                    return
            except urllib.error.HTTPError as error:
                with error:
                    if error.code != 503 or time.monotonic() >= until:
                        raise
            time.sleep(0.05)

    def flush(self) -> None:
        """What is in no file yet is in Tier 2 as batches afterwards."""

        async def work() -> None:
            async with HttpClient(self.server.address) as client:
                await client.flush_all()

        asyncio.run(work())

    def files(self) -> list[Path]:
        """Of records, in the order of their offsets."""
        return sorted(self.tier2.rglob("topics/**/*.seg"))

    # --- producers ---------------------------------------------------------------------------

    def produce_by_http(self, values: Sequence[bytes]) -> None:
        for some in pages(values):
            body = b"".join(
                json.dumps({"value": value.decode()}).encode() + b"\n" for value in some
            )
            self._http(
                "POST", "/partitions/0/records", body, {"Content-Type": "application/x-ndjson"}
            )

    def produce_by_grpc(self, values: Sequence[bytes]) -> None:
        with grpc.insecure_channel(self.grpc) as channel:
            produce = channel.unary_unary(
                f"/{SERVICE}/Produce",
                request_serializer=api.ProduceRequest.SerializeToString,
                response_deserializer=api.ProduceResponse.FromString,
            )
            for some in pages(values):
                records = api.Records(records=[api.Record(value=value) for value in some])
                produce(api.ProduceRequest(topic=TOPIC, partition=0, records=records))

    def produce_by_our_client(self, values: Sequence[bytes]) -> None:
        async def work() -> None:
            async with connected_topics(self.kafka) as topics:
                for some in pages(values):
                    await topics.produce(TOPIC, 0, [NewRecord(value=value) for value in some])

        asyncio.run(work())

    def produce_by_kcat(self, values: Sequence[bytes]) -> None:
        words = ("-P", "-t", TOPIC, "-p", "0", "-z", "lz4")
        kcat(self.kafka, *words, given="".join(f"{value.decode()}\n" for value in values))

    def produce_by_confluent(self, values: Sequence[bytes]) -> None:
        producer = Producer({"bootstrap.servers": self.kafka, "compression.type": "zstd"})
        for value in values:
            while True:
                try:
                    producer.produce(TOPIC, value, partition=0)
                except BufferError:
                    producer.poll(0.1)
                else:
                    break
        assert producer.flush(SECONDS_MAX) == 0

    # --- readers -----------------------------------------------------------------------------

    def read_by_http(self, count: int) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < count:
            place = f"/partitions/0/records?offset={len(found)}"
            answer = self._http("GET", place, None, {"Accept": "application/x-ndjson"})
            found += [json.loads(line)["value"].encode() for line in answer.splitlines()]
        return found

    def read_by_grpc(self, count: int) -> list[bytes]:
        found: list[bytes] = []
        with grpc.insecure_channel(self.grpc) as channel:
            fetch = channel.unary_unary(
                f"/{SERVICE}/Fetch",
                request_serializer=api.FetchRequest.SerializeToString,
                response_deserializer=api.FetchResponse.FromString,
            )
            while len(found) < count:
                request = api.FetchRequest(
                    topic=TOPIC, partition=0, offset=len(found), as_batches=True
                )
                records, _ = decode_batches(fetch(request).batches, len(found))
                found += [each.value or b"" for each in records]
        return found

    def read_by_our_client(self, count: int) -> list[bytes]:
        async def work() -> list[bytes]:
            found: list[bytes] = []
            async with connected_topics(self.kafka) as topics:
                while len(found) < count:
                    page = await topics.fetch(TOPIC, 0, offset=len(found))
                    found += [each.value or b"" for each in page.records]
            return found

        return asyncio.run(work())

    def read_by_kcat(self, count: int) -> list[bytes]:
        words = ("-C", "-t", TOPIC, "-p", "0", "-o", "beginning", "-c", str(count), "-q")
        return kcat(self.kafka, *words).encode().splitlines()

    def read_by_confluent(self, count: int) -> list[bytes]:
        consumer = Consumer({"bootstrap.servers": self.kafka, "group.id": "none"})
        try:
            consumer.assign([TopicPartition(TOPIC, 0, 0)])
            found: list[bytes] = []
            while len(found) < count:
                for message in consumer.consume(count - len(found), timeout=5.0):
                    assert message.error() is None, f"not read: {message.error()}"
                    found.append(message.value() or b"")
            return found
        finally:
            consumer.close()

    def create(self) -> None:
        self._http("PUT", "", b'{"partitions": 1}', {})

    def _http(self, method: str, place: str, body: bytes | None, headers: dict[str, str]) -> bytes:
        url = f"{self.server.address}/v1/topics/{TOPIC}{place}"
        request = urllib.request.Request(url, data=body, headers=headers, method=method)
        with urllib.request.urlopen(request) as answer:
            content: bytes = answer.read()
        return content


def pages(values: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for begin in range(0, len(values), PER_REQUEST):
        yield values[begin : begin + PER_REQUEST]


def read_by_spark(spark: SparkSession, store: Store, *, offline: bool = False) -> list[bytes]:
    options = {"tier2": str(store.tier2), "topic": TOPIC}
    options |= {"mode": "offline"} if offline else {"kafka": store.kafka}
    rows = spark.read.format("segmentstore").options(**options).load().select("offset", "value")
    return [bytes(row.value) for row in sorted(rows.collect(), key=lambda row: row.offset)]


def read_by_the_page(paths: Sequence[Path]) -> list[bytes]:
    """By a program that knows Python, lz4 and the page of the format."""
    found: list[bytes] = []
    for path in paths:
        done = subprocess.run(
            [sys.executable, str(READER), str(path)], capture_output=True, check=True
        )
        found += [json.loads(line)["value"].encode() for line in done.stdout.splitlines()]
    return found


def run(
    spark: SparkSession, store: Store, values: Sequence[bytes], say: Callable[[str], None]
) -> None:
    """The whole corpus, in and out. Raises AssertionError."""
    expected, count = digest(values), len(values)
    share = -(-count // 5)
    producers = {
        "HTTP": store.produce_by_http,
        "gRPC": store.produce_by_grpc,
        "our client": store.produce_by_our_client,
        "kcat": store.produce_by_kcat,
        "confluent-kafka": store.produce_by_confluent,
    }
    readers: dict[str, Callable[[int], list[bytes]]] = {
        "HTTP": store.read_by_http,
        "gRPC": store.read_by_grpc,
        "our client": store.read_by_our_client,
        "kcat": store.read_by_kcat,
        "confluent-kafka": store.read_by_confluent,
        "Spark": lambda _: read_by_spark(spark, store),
    }

    def read_by_all(where: str) -> None:
        for name, read in readers.items():
            assert digest(read(count)) == expected, f"{name} reads something else {where}"
            say(f"{count} records by {name} {where}: equal")

    with store.server:
        store.wait_for_topics()
        store.create()
        for number, (name, produce) in enumerate(producers.items()):
            produce(values[number * share : (number + 1) * share])
            say(f"{share} records in by {name}")
        read_by_all("while the files are made")
        store.server.kill()
        store.server.start()
        store.wait_for_topics()
        read_by_all("after kill -9")
        assert store.files(), "no file of records was made"
        store.flush()
        assert store.server.terminate() == 0
    say(f"{len(store.files())} files of {sum(each.stat().st_size for each in store.files())} bytes")
    for path in store.files():
        command = [sys.executable, "-m", "segmentstore.cli", "segment", "inspect", str(path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    in_files = read_by_the_page(store.files())
    assert digest(in_files) == digest(values[: len(in_files)]), "the page's reader reads others"
    say(f"{len(in_files)} records by the reader of the page: equal")
    assert digest(read_by_spark(spark, store, offline=True)) == expected
    say(f"{count} records by Spark from Tier 2 alone: equal")


def test_a_corpus_is_the_same_by_every_way_in_and_out(spark: SparkSession, tmp_path: Path) -> None:
    require_kcat()
    store = Store(tmp_path)
    try:
        run(spark, store, lines_of_the_library(LINES_MAX), lambda _: None)
    finally:
        store.close()


def main() -> None:
    """The whole library, and what is seen of it."""
    values = lines_of_the_library(None)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark: SparkSession = (
        SparkSession.builder.master("local[2]").config("spark.driver.memory", "3g").getOrCreate()
    )
    with tempfile.TemporaryDirectory() as directory:
        store = Store(Path(directory))
        try:
            run(spark, store, values, lambda line: print(line, flush=True))  # noqa: T201
        finally:
            store.close()
            spark.stop()


if __name__ == "__main__":
    main()
