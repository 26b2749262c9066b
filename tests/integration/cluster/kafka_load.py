"""A Kafka client at work on a cluster while it suffers: records of an idempotent producer, read, counted and committed.

Three threads over librdkafka (confluent-kafka), for as long as the block lives:

    writer      numbers go round over the partitions, some dozen a second; each is acknowledged, for good
    reader      every partition from its beginning; each number once, at the offset that was acknowledged, in order
    asker       the end of a partition is never below what was acknowledged before the question; an offset that was
                committed is there, or a later one: neither is the word of a broker that lost its partition meanwhile

The first thing that is wrong ends it, and is said by `until_it_goes_on` and `finish`.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

PARTITIONS = 6
_PER_SECOND = 25
_UNDER_WAY_MAX = 2_000
_DELIVERY_MS_MAX = 600_000
_CALL_SECONDS = 10.0
_GO_ON_SECONDS_MAX = 240.0
"""Behind a fault, while the next ones come."""
_LOOK_SECONDS = 0.1
_ASK_SECONDS = 1.0


class KafkaLoad:
    """Made by `kafka_load`."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._sent = 0
        self._offsets: dict[int, int | None] = {}
        """Of acknowledged numbers. None where the answer was lost, and a later record of the partition was
        acknowledged: then librdkafka knows that this one is stored, and not where."""
        self._acknowledged_end = [0] * PARTITIONS
        """Behind the last offset that was acknowledged, of each partition."""
        self._read = [0] * PARTITIONS
        """How many numbers were read of each partition."""
        self._asked = 0
        self._committed = 0
        self._wrong: list[str] = []
        self._stop_writing, self._stop = threading.Event(), threading.Event()
        self._threads = {
            work: threading.Thread(target=self._guarded, args=[work], name=f"kafka {name}")
            for name, work in (
                ("writer", self._write),
                ("reader", self._follow),
                ("asker", self._ask),
            )
        }

    def __str__(self) -> str:
        counts = f"acknowledged={len(self._offsets)} read={self.read}"
        return f"kafka records: {counts} ends_asked={self._asked} commits={self._committed}"

    @property
    def read(self) -> int:
        """Of all partitions."""
        return sum(self._read)

    def start(self) -> None:
        for thread in self._threads.values():
            thread.start()

    async def until_it_goes_on(self) -> None:
        """Until something was acknowledged, and everything was read that had been acknowledged before."""
        before, asked, committed = len(self._offsets), self._asked, self._committed
        await self._until(
            lambda: (
                len(self._offsets) > before
                and self.read >= before
                and self._asked > asked
                and self._committed > committed
            )
        )

    async def finish(self) -> None:
        """Have it stop writing and read what is left. Fails unless each record was there once, in order."""
        self._stop_writing.set()
        await self._until(lambda: self.read == len(self._offsets) == self._sent > 0)

    async def close(self) -> None:
        """Its threads have ended when this returns."""
        self._stop_writing.set()
        self._stop.set()
        for thread in self._threads.values():
            await asyncio.to_thread(thread.join)

    async def _until(self, is_done: Callable[[], bool]) -> None:
        end = time.monotonic() + _GO_ON_SECONDS_MAX
        while not is_done():
            assert not self._wrong, f"{self}: {self._wrong}"
            assert time.monotonic() < end, f"it stands still: {self} sent={self._sent}"
            await asyncio.sleep(_LOOK_SECONDS)
        assert not self._wrong, f"{self}: {self._wrong}"

    # --- the threads ------------------------------------------------------------------------------

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - it is told, and the load is over
            self._wrong.append(f"{work.__name__}: {error!r}")

    def _write(self) -> None:
        producer = Producer(
            {
                **self._client(),
                "enable.idempotence": True,
                "linger.ms": 5,
                "delivery.timeout.ms": _DELIVERY_MS_MAX,
            }
        )
        while not self._stop_writing.is_set() and not self._wrong:
            if self._sent - len(self._offsets) < _UNDER_WAY_MAX:
                told = partial(self._note_delivered, self._sent)
                producer.produce(
                    self._topic,
                    b"%d" % self._sent,
                    partition=self._sent % PARTITIONS,
                    on_delivery=told,
                )
                self._sent += 1
            producer.poll(1 / _PER_SECOND)
        producer.flush(_GO_ON_SECONDS_MAX)

    def _note_delivered(self, number: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._wrong.append(f"record {number} was refused: {error}")
            return
        place, offset = number % PARTITIONS, message.offset()
        if offset is not None:
            self._acknowledged_end[place] = max(self._acknowledged_end[place], offset + 1)
        self._offsets[number] = offset

    def _follow(self) -> None:
        """The numbers of a partition are known: it has every PARTITIONS-th one, and nothing else."""
        consumer = Consumer({**self._client(), "group.id": f"{self._topic}-reader"})
        consumer.assign([TopicPartition(self._topic, place, 0) for place in range(PARTITIONS)])
        try:
            while not self._stop.is_set():
                message = consumer.poll(_LOOK_SECONDS)
                if message is None or message.error() is not None:
                    continue  # it asks again by itself
                self._note_read(message)
        finally:
            consumer.close()

    def _note_read(self, message: Message) -> None:
        place, offset, value = message.partition(), message.offset(), message.value()
        assert place is not None
        assert value is not None
        count = self._read[place]
        expected = place + count * PARTITIONS
        found = f"partition={place} offset={offset} value={value!r} expected={expected}"
        assert (offset, int(value)) == (count, expected), f"lost, repeated or reordered: {found}"
        # It may be read before its acknowledgement has come.
        acknowledged = self._offsets.get(expected)
        assert acknowledged in (None, offset), f"acknowledged elsewhere: {acknowledged=} {found}"
        self._read[place] = count + 1

    def _ask(self) -> None:
        consumer = Consumer(
            {**self._client(), "group.id": f"{self._topic}-asker", "enable.auto.commit": False}
        )
        committed = [0] * PARTITIONS
        try:
            while not self._stop.is_set():
                for place in range(PARTITIONS):
                    self._ask_of(consumer, place, committed)
                self._stop.wait(_ASK_SECONDS)
        finally:
            consumer.close()

    def _ask_of(self, consumer: Consumer, place: int, committed: list[int]) -> None:
        there = TopicPartition(self._topic, place)
        acknowledged = self._acknowledged_end[place]
        try:
            _, end = consumer.get_watermark_offsets(there, timeout=_CALL_SECONDS)
        except KafkaException:
            return  # nothing was told
        assert end >= acknowledged, f"a stale end: {place=} {end=} {acknowledged=}"
        self._asked += 1
        try:
            (found,) = consumer.committed([there], timeout=_CALL_SECONDS)
            if found.error is None:
                # Without one it is a negative number.
                assert max(found.offset, 0) >= committed[place], (
                    f"a stale commit: {place=} found={found.offset} committed={committed[place]}"
                )
            to_commit = [TopicPartition(self._topic, place, self._read[place])]
            answered = consumer.commit(offsets=to_commit, asynchronous=False)
        except KafkaException:
            return  # whether it was committed is not known; a later one is no less
        if answered and answered[0].error is None:
            committed[place] = answered[0].offset
            self._committed += 1

    def _client(self) -> dict[str, str | int | bool]:
        return {
            "bootstrap.servers": self._bootstrap,
            "reconnect.backoff.max.ms": 1_000,
            "socket.timeout.ms": 10_000,
            "log_level": 0,  # each broken connection would be told, several times
            "topic.metadata.refresh.interval.ms": 5_000,
        }


@asynccontextmanager
async def kafka_load(bootstrap: str, *, topic: str) -> AsyncIterator[KafkaLoad]:
    """At work when this yields, on a topic of its own. The block calls `finish`."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    made = admin.create_topics([NewTopic(topic, PARTITIONS)], operation_timeout=_CALL_SECONDS)
    await asyncio.to_thread(made[topic].result, _GO_ON_SECONDS_MAX)
    load = KafkaLoad(bootstrap, topic)
    load.start()
    try:
        await load.until_it_goes_on()
        yield load
    finally:
        await load.close()
