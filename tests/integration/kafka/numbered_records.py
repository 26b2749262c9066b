"""Numbered records to a topic of several partitions by a producer that numbers its batches, and what became of them.

Each record's value is its number; numbers go round over the partitions, so each partition has its own in growing order.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

SECONDS_MAX = 300.0
"""No promise, only an end: a killed node of a cluster is followed behind the end of its session."""
UNDER_WAY_MAX = 500
_PAUSE_SECONDS = 0.002
_MOVED = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)


class NumberedRecords:
    """Sends from `__enter__` on, in a thread, until stop(). A record that is refused ends it with an error."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="numbered records")
        self.sent = 0
        self.offsets: dict[int, int | None] = {}
        """Of what is acknowledged, by number. None where the answer was lost, and a later record of the partition was
        acknowledged: then librdkafka knows that this one is stored, and not where."""
        self.errors: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join()

    def stop(self) -> None:
        """Behind this every record that was sent is acknowledged, or there are errors."""
        self._stopping.set()
        self._thread.join()

    def wait_for_more(self, count: int) -> None:
        """In each partition, from now on."""
        before = self._acknowledged()
        _until(
            lambda: (
                bool(self.errors)
                or all(
                    now >= then + count
                    for now, then in zip(self._acknowledged(), before, strict=True)
                )
            )
        )
        assert not self.errors, self.errors

    def compare(self) -> None:
        """Each acknowledged record is where it was said to be, and every one is there once, in order."""
        assert not self.errors, self.errors
        assert len(self.offsets) == self.sent, f"{len(self.offsets)} of {self.sent} acknowledged"
        for partition in range(self._partitions):
            expected = list(range(partition, self.sent, self._partitions))
            found = read_partition(self._bootstrap, self._topic, partition)
            assert [int(value) for _, value in found] == expected
            for offset, value in found:
                assert self.offsets[int(value)] in (None, offset)

    def _acknowledged(self) -> list[int]:
        counts = [0] * self._partitions
        for number in list(self.offsets):
            counts[number % self._partitions] += 1
        return counts

    def _run(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "reconnect.backoff.max.ms": 500,
                "retry.backoff.ms": 50,
            }
        )

        def told(number: int) -> Callable[[KafkaError | None, Message], None]:
            def tell(error: KafkaError | None, message: Message) -> None:
                if error is not None:
                    self.errors.append(f"record {number}: {error}")
                else:
                    self.offsets[number] = message.offset()

            return tell

        while not self._stopping.is_set() and not self.errors:
            if self.sent - len(self.offsets) < UNDER_WAY_MAX:
                producer.produce(
                    self._topic,
                    b"%d" % self.sent,
                    partition=self.sent % self._partitions,
                    on_delivery=told(self.sent),
                )
                self.sent += 1
            producer.poll(_PAUSE_SECONDS)
        left = producer.flush(SECONDS_MAX)
        if left:
            self.errors.append(f"{left} records have no answer")


def read_partition(bootstrap: str, topic: str, partition: int) -> list[tuple[int, bytes]]:
    """Offset and value of all that is there."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none"})
    try:
        place = TopicPartition(topic, partition)
        start, end = offsets_of(consumer, place)
        consumer.assign([TopicPartition(topic, partition, start)])
        found: list[tuple[int, bytes]] = []
        until = time.monotonic() + SECONDS_MAX
        while (not found or found[-1][0] < end - 1) and end > start:
            assert time.monotonic() < until, f"too few records {len(found)=} {start=} {end=}"
            message = consumer.poll(1.0)
            if message is None or message.error() is not None:
                continue
            offset, value = message.offset(), message.value()
            assert offset is not None
            assert value is not None
            found.append((offset, value))
        return found
    finally:
        consumer.close()


def offsets_of(consumer: Consumer, place: TopicPartition) -> tuple[int, int]:
    """Start and end. This call alone of the client's does not ask again where the leader has changed."""
    until = time.monotonic() + SECONDS_MAX
    while True:
        try:
            return consumer.get_watermark_offsets(place, timeout=SECONDS_MAX)
        except KafkaException as error:
            if error.args[0].code() not in _MOVED or time.monotonic() >= until:
                raise
            time.sleep(0.1)


def _until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < until, "it takes too long"
        time.sleep(0.05)
