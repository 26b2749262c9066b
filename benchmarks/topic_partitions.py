"""Many partitions of topics in one process: 10,000 that are idle, and 100 that get 10,000 records a second.

What must hold: memory stays in the budget of the cache, idle partitions cost next to nothing, and what a minute of load
puts into Tier 2 costs what its files do. Dollars are those of an object store that takes 5 for a million puts.
"""

import os
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from random import Random
from typing import Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.workbench import Row, print_rows, row
from segmentstore.cli.server_process import ServerProcess

IDLE: Final = 10_000
BUSY: Final = 100
PER_SECOND: Final = 10_000
SECONDS: Final = 60
RECORD_BYTES: Final = 100
CACHE_BYTES: Final = 256 << 20
DOLLARS_PER_PUT: Final = 5e-6
_IDLE_SECONDS: Final = 150
_CREATE_SECONDS_MAX: Final = 600.0
_BATCHES_PER_SECOND: Final = 20


class Server:
    """A store with Kafka's protocol, and what it costs."""

    def __init__(self, directory: Path) -> None:
        self.process = ServerProcess(
            directory / "data",
            [
                *("--kafka=127.0.0.1:0", "--wire=off", "--controller=off"),
                f"--set=cache.bytes_max={CACHE_BYTES}",
            ],
        )

    @property
    def kafka(self) -> str:
        return self.process.ready_line.split("kafka=")[1].split()[0]

    def create(self, topic: str, partitions: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.kafka})
        wait = _CREATE_SECONDS_MAX
        made = admin.create_topics(
            [NewTopic(topic, partitions)], operation_timeout=wait, request_timeout=wait
        )
        made[topic].result(wait)

    def metric(self, name: str) -> float:
        """Over all that carry the name."""
        with urllib.request.urlopen(f"{self.process.address}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return sum(
            float(each.split()[-1]) for each in lines if each.split("{")[0].split()[0] == name
        )

    def cpu_seconds(self) -> float:
        """User and system time, threads included."""
        fields = (
            Path(f"/proc/{self.process.process_id}/stat").read_text().rpartition(")")[2].split()
        )
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        """Of memory."""
        pages = int(Path(f"/proc/{self.process.process_id}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


def idle(directory: Path) -> list[Row]:
    """10,000 partitions with nothing in them, over two passes of retention, which look at each."""
    server = Server(directory)
    with server.process:
        server.create("warm", 1)
        before = server.resident_bytes()
        begin = time.perf_counter()
        server.create("idle", IDLE)
        seconds = time.perf_counter() - begin
        used = server.cpu_seconds()
        time.sleep(_IDLE_SECONDS)
        used = server.cpu_seconds() - used
        grown = server.resident_bytes() - before
    return [
        row(f"{IDLE:,} idle partitions: made", IDLE / seconds, "/s", 1.0),
        row(f"{IDLE:,} idle partitions: memory of each", grown / IDLE, "B", 10_000),
        row(f"{IDLE:,} idle partitions: CPU, of a core", 100 * used / _IDLE_SECONDS, "%", 5.0),
    ]


def busy(directory: Path) -> list[Row]:
    """100 partitions, keyed records, a minute."""
    server = Server(directory)
    with server.process:
        server.create("busy", BUSY)
        producer = Producer({"bootstrap.servers": server.kafka, "linger.ms": 5})
        value, random = Random(1).randbytes(RECORD_BYTES), Random(2)
        used, highest, sent = server.cpu_seconds(), 0, 0
        begin = time.perf_counter()
        while (now := time.perf_counter() - begin) < SECONDS:
            while sent < now * PER_SECOND:
                producer.produce("busy", value, key=b"%08d" % random.getrandbits(24))
                sent += 1
            producer.poll(0)
            highest = max(highest, server.resident_bytes())
            time.sleep(1 / _BATCHES_PER_SECOND)
        assert producer.flush(60) == 0, "records are left"
        seconds = time.perf_counter() - begin
        used = server.cpu_seconds() - used
        files = server.metric("segmentstore_kafka_file_puts_total")
    hours = seconds / 3600
    return [
        row(f"{BUSY} partitions: records taken", sent / seconds, "1/s", PER_SECOND),
        row(f"{BUSY} partitions: CPU, of a core", 100 * used / seconds, "%", 58.0),
        row(
            f"{BUSY} partitions: memory, of the cache's budget",
            highest / 1e6,
            "MB",
            CACHE_BYTES / 1e6,
        ),
        row(f"{BUSY} partitions: puts of files a minute", files / seconds * 60, "puts", BUSY * 6),
        row(
            f"{BUSY} partitions: dollars an hour",
            files * DOLLARS_PER_PUT / hours,
            "$",
            BUSY * 360 * DOLLARS_PER_PUT,
        ),
    ]


def main() -> list[Row]:
    """The rows of `python -m benchmarks topic_partitions`."""
    rows: list[Row] = []
    for part in (idle, busy):
        with tempfile.TemporaryDirectory() as directory:
            rows += part(Path(directory))
        print(f"  {part.__name__} {rows}", file=sys.stderr, flush=True)
    print_rows(rows)
    return rows
