"""A real consumer over a compacted topic while it is compacted, and while the server is killed: the last value of each
key is there, offsets grow, and a consumer in the middle is not lost.

Method: a server that compacts every fifth of a second, and makes a file of whatever is as old; an idempotent producer
of few keys; consumers that read all along, and others that read everything at the end.

A pass is due when half of the files' bytes were in none. How many bytes a file has besides its records depends on how
many files there are, and so on the machine: what is to be in a last pass is followed by more bytes than all before it.
"""

import asyncio
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import Event, Thread

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer
from confluent_kafka import TopicPartition as ConfluentPartition

from tests.integration.kafka.clients import SECONDS_MAX, new_topic, read_by_aiokafka
from tests.integration.kafka.kafka_server import KafkaServerProcess
from tests.integration.kafka.topic_files import FILE_OPTIONS, files_of
from tier2.format.record_file import open_record_file

pytestmark = pytest.mark.integration

OPTIONS = [
    *FILE_OPTIONS,
    "--set=kafka.compaction_seconds=0.2",
    "--set=writer.flush_interval_seconds=1",  # the objects of replaced files wait for that
]
COMPACTED = {
    "cleanup.policy": "compact",
    "delete.retention.ms": "600000",
    "file.delete.delay.ms": "1000",
}
KEYS = 40
KILLS = 3
SENT_BEFORE_EACH = 250
LARGE = 10
LARGE_BYTES = 32_000
"""Together they are longer than the files of all other records, had each of these a file of its own."""
COMPACTED_SECONDS_MAX = 300.0
"""A pass makes each file anew, with some writes that are synced: two seconds, and two minutes at a load of fifty."""


@dataclass
class Sending:
    """What was sent, in order, and what of it was acknowledged."""

    topic: str
    bootstrap: str
    random: Random = field(default_factory=lambda: Random(4))
    sent: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    acknowledged: set[int] = field(default_factory=set)
    """By the number of the record, which is its offset: each is there once, in order."""

    def __post_init__(self) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "batch.num.messages": 20,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
            }
        )

    def send_more(self, count: int) -> None:
        goal, until = len(self.sent) + count, time.monotonic() + SECONDS_MAX
        while len(self.sent) < goal:
            stored = len(self.acknowledged)
            assert time.monotonic() < until, f"{stored} of {len(self.sent)} are stored"
            if len(self.sent) - stored < 200:
                key = b"key-%d" % self.random.randrange(KEYS)
                is_tombstone = self.random.random() < 0.1
                self._send(key, None if is_tombstone else b"%d" % len(self.sent) + b"x" * 50)
            self._producer.poll(0.003)

    def send_large(self) -> None:
        """Under keys of their own."""
        for number in range(LARGE):
            self._send(b"large-%d" % number, self.random.randbytes(LARGE_BYTES))

    def _send(self, key: bytes, value: bytes | None) -> None:
        number = len(self.sent)
        self.sent.append((key, value))

        def told(error: object, message: Message) -> None:
            assert error is None, f"a record was not stored: {error}"
            # None where an answer was lost, and that of a later record tells that this one is stored.
            assert message.offset() in (None, number), f"{number=} is at {message.offset()}"
            self.acknowledged.add(number)

        self._producer.produce(self.topic, key=key, value=value, partition=0, on_delivery=told)

    def finish(self) -> None:
        assert self._producer.flush(SECONDS_MAX) == 0, "records are left"

    @property
    def last_of_each_key(self) -> dict[bytes, tuple[int, bytes | None]]:
        """Offset and value."""
        return {key: (number, value) for number, (key, value) in enumerate(self.sent)}


class Reader:
    """A consumer that reads from the beginning, in a thread of its own."""

    def __init__(self, bootstrap: str, topic: str, *, pause_seconds: float = 0.0) -> None:
        self.found: list[tuple[int, bytes | None, bytes | None]] = []
        self._end = Event()
        self._arguments = bootstrap, topic, pause_seconds
        self._thread = Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        bootstrap, topic, pause_seconds = self._arguments
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "none",
                "auto.offset.reset": "error",
                "max.partition.fetch.bytes": 2_000,
                "fetch.message.max.bytes": 2_000,
                "queued.max.messages.kbytes": 2,
                "reconnect.backoff.max.ms": 100,
            }
        )
        try:
            consumer.assign([ConfluentPartition(topic, 0, OFFSET_BEGINNING)])
            while not self._end.is_set():
                message = consumer.poll(0.2)
                if message is None:
                    continue
                error = message.error()
                if error is not None:
                    assert error.code() != KafkaError._AUTO_OFFSET_RESET, f"it is lost: {error}"
                    continue
                offset = message.offset()
                assert offset is not None
                self.found.append((offset, message.key(), message.value()))
                self._end.wait(pause_seconds)
        finally:
            consumer.close()

    def wait_for(self, offset: int) -> None:
        until = time.monotonic() + SECONDS_MAX
        while not self.found or self.found[-1][0] < offset:
            assert self._thread.is_alive(), "the consumer ended"
            assert time.monotonic() < until, f"it stands at {self.found[-1:]}, before {offset}"
            time.sleep(0.05)

    def end(self) -> None:
        self._end.set()
        self._thread.join()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + COMPACTED_SECONDS_MAX
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.1)


def bound_of_compacted_files(server: KafkaServerProcess, topic: str, end: int) -> int | None:
    """How many records all files have at most, when every record below `end` was in a pass: the last one of each key,
    and one of each file, as none is empty. None if they have more, or some file goes while they are counted."""
    files = files_of(server, topic)
    if max((name.last_offset for name, _ in files), default=-1) < end - 1:
        return None
    try:
        count = sum(open_record_file(path.read_bytes()).header.record_count for _, path in files)
    except FileNotFoundError:
        return None
    ranges = {(name.first_offset, name.last_offset) for name, _ in files}
    bound = KEYS + LARGE + len(ranges)
    return bound if count <= bound else None


async def test_a_compacted_topic_is_read_while_it_is_compacted_and_over_kills(
    tmp_path: Path,
) -> None:
    with KafkaServerProcess(tmp_path / "data", OPTIONS) as server:
        topic = await asyncio.to_thread(new_topic, server.bootstrap, 1, COMPACTED)
        await asyncio.to_thread(read_over_kills, server, topic)
        first = await read_by_aiokafka(server.bootstrap, topic, 1)
        assert first[0].key is not None


def read_over_kills(server: KafkaServerProcess, topic: str) -> None:
    sending = Sending(topic, server.bootstrap)
    beside = Reader(server.bootstrap, topic, pause_seconds=0.002)
    slow = Reader(server.bootstrap, topic, pause_seconds=0.01)
    readers = [beside, slow]
    try:
        for _ in range(KILLS):
            sending.send_more(SENT_BEFORE_EACH)
            server.kill()
            server.start()
        sending.send_more(SENT_BEFORE_EACH)
        sending.send_large()
        sending.finish()
        count = len(sending.sent)
        assert sending.acknowledged == set(range(count))
        last, bounds = count - 1, list[int]()

        def is_compacted() -> bool:
            bound = bound_of_compacted_files(server, topic, count)
            bounds.extend([] if bound is None else [bound])
            return bound is not None

        wait_until(is_compacted, "it is not compacted")
        for reader in readers:
            reader.wait_for(last)
        late = Reader(server.bootstrap, topic)
        readers.append(late)
        late.wait_for(last)
    finally:
        for reader in readers:
            reader.end()
    for reader in readers:
        offsets = [offset for offset, _, _ in reader.found]
        assert offsets == sorted(set(offsets)), "offsets do not grow"
        assert all((key, value) == sending.sent[offset] for offset, key, value in reader.found)
        seen = {key: (offset, value) for offset, key, value in reader.found}
        # Tombstones as well: delete.retention.ms has not passed.
        assert seen == sending.last_of_each_key
    assert len(late.found) <= bounds[-1]
    assert any(value is None for _, _, value in late.found)


def test_a_tombstone_goes_when_its_time_has_passed_and_the_value_does_not_come_back(
    tmp_path: Path,
) -> None:
    config = COMPACTED | {"delete.retention.ms": "2000", "file.delete.delay.ms": "0"}
    options = [*OPTIONS, "--set=kafka.file_seconds=0.3"]
    with KafkaServerProcess(tmp_path / "data", options) as server:
        topic = new_topic(server.bootstrap, config=config)
        # A flush waits for no more records: each call is one batch, and so in one file.
        producer = Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 60_000})

        def produce(*pairs: tuple[bytes, bytes | None]) -> None:
            for key, value in pairs:
                producer.produce(topic, key=key, value=value, partition=0)
            assert producer.flush(SECONDS_MAX) == 0

        large = Random(5).randbytes(LARGE_BYTES)
        produce((b"kept", b"1"), (b"gone", b"1"), (b"kept", b"2"))
        began = time.monotonic()
        produce((b"gone", None), (b"kept", large))

        def read() -> list[tuple[bytes | None, bytes | None]]:
            reader = Reader(server.bootstrap, topic)
            try:
                reader.wait_for(4)
            finally:
                reader.end()
            return [(key, value) for _, key, value in reader.found]

        wait_until(lambda: (b"gone", b"1") not in read(), "what is superseded stays")
        assert dict(read()) == {b"gone": None, b"kept": large}
        # By itself a server trusts the clock ten minutes behind its start.
        settle = urllib.request.Request(f"{server.address}/v1/clocks/settle", method="POST")
        with urllib.request.urlopen(settle, timeout=SECONDS_MAX):
            pass
        wait_until(lambda: b"gone" not in dict(read()), "a tombstone stays")
        assert time.monotonic() - began >= 2.0
        assert dict(read()) == {b"kept": large}
