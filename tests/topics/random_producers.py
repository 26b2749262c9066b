"""What random schedules of partitions share: producers that send again what failed, tasks beside them, what was read.

Checked, of one partition: every record that was acknowledged is there once, at the offset that was told, in the order
of its producer; what was read once reads the same for ever.
"""

import asyncio
from asyncio import Future, Task
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping
from random import Random
from typing import TypeAlias

from segmentstore.codec.record_batch import Compression, Record
from segmentstore.topics.errors import PartitionUnavailableError
from segmentstore.topics.partition_log import Appended
from tests.topics.batches import NOW, batch_of

IN_FLIGHT_MAX = 5

Values: TypeAlias = dict[int, bytes | None]
"""By offset."""


class Background:
    """Tasks that go on while other things happen."""

    def __init__(self) -> None:
        self._tasks: set[Task[None]] = set()

    def begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        """Until all of them have ended. A failure is raised."""
        tasks = list(self._tasks)
        await asyncio.gather(*tasks)

    def cancel(self) -> int:
        """As the end of a process does; how many there were."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        return len(tasks)


class Producer:
    """Idempotent, as Kafka's clients are: in order, and again from the first one that failed."""

    def __init__(self, number: int, random: Random) -> None:
        self.number = number
        self.random = random
        self.next_sequence = 0
        self.waiting: list[tuple[bytes, list[bytes]]] = []
        """Not acknowledged: batches and their values."""
        self.offsets: dict[bytes, int] = {}
        """Of acknowledged values."""
        self.sent: list[bytes] = []

    def make(self) -> None:
        count = self.random.randint(1, 3)
        values = [
            b"%d:%d:" % (self.number, self.next_sequence + i) + b"x" * self.random.randrange(200)
            for i in range(count)
        ]
        batch = batch_of(
            *values,
            time=NOW + self.random.randrange(1000),
            producer=(self.number, 0, self.next_sequence),
            compression=self.random.choice([Compression.NONE, Compression.ZSTD]),
        )
        self.next_sequence += count
        self.waiting.append((batch, values))
        self.sent += values

    def take(
        self,
        firsts: "list[Future[Appended]]",
        agains: "list[Future[Appended]]",
        seen: Counter[str],
    ) -> None:
        """What was not acknowledged, the first time or again, stays to be sent."""
        outcomes = [
            again if first.exception() else first
            for first, again in zip(firsts, agains, strict=True)
        ]
        kept: list[tuple[bytes, list[bytes]]] = []
        for (batch, values), outcome in zip(self.waiting, outcomes, strict=True):
            error = outcome.exception()
            if error is None:
                appended = outcome.result()
                seen["duplicate"] += appended.duplicate
                seen["appended"] += not appended.duplicate
                for i, value in enumerate(values):
                    self.offsets[value] = appended.base_offset + i
            else:
                assert isinstance(error, PartitionUnavailableError), repr(error)
                seen[f"stored={error.stored}"] += 1
                kept.append((batch, values))
        self.waiting = kept


def note_read(known: Values, records: Iterable[Record]) -> None:
    """What is read again is what it was."""
    for record in records:
        before = known.setdefault(record.offset, record.value)
        assert before == record.value, f"offset={record.offset}"


def check_told(
    producers: Iterable[Producer], values: Mapping[int, bytes | None], *, log_start: int, end: int
) -> None:
    """`values` are what the partition has from the log start on; `end` is the offset behind them."""
    told = sorted((offset, value) for p in producers for value, offset in p.offsets.items())
    assert [offset for offset, _ in told] == list(range(end))
    for offset, value in told:
        assert offset < log_start or values[offset] == value, f"offset={offset}"
    for producer in producers:
        offsets = [producer.offsets[value] for value in producer.sent]
        assert offsets == sorted(offsets), "a producer's records changed places"
