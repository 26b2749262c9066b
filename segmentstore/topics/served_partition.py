"""A partition as those see it who ask for records and do not mind which process leads it.

| implementation | is |
|---|---|
| `partition.py` | led by this process |
| `segmentstore/cluster/remote_partitions.py` | led by another one, which is asked in Kafka's protocol |
"""

from asyncio import Future
from typing import Protocol

from segmentstore.topics.brokers import Broker
from segmentstore.topics.partition_log import Appended


class ServedPartition(Protocol):
    """Open. Keep it for one request. Its methods raise the errors of topics (errors.py)."""

    @property
    def is_open(self) -> bool:
        """Whether it takes batches and is read now."""

    @property
    def log_start_offset(self) -> int:
        """The lowest offset that may be read, as it is known here."""

    @property
    def high_watermark(self) -> int:
        """The offset behind the last durable record, as it is known here."""

    async def confirm_ends(self) -> None:
        """Returns when both, read before the next await, are the word of the partition's owner: no other process may
        have moved them before the request began."""

    def produce(self, batch: bytes | bytearray | memoryview) -> "Future[Appended]":
        """Appends one batch, durably; calls take place in their order. `Partition.produce` says what it fails with."""

    async def fetch(self, offset: int, max_bytes: int) -> bytes:
        """Whole durable batches from the one on that contains the offset: at least one, unless there is none."""

    async def offset_at_time(self, time_ms: int) -> tuple[int, int] | None:
        """Offset and time of the first record that is not older; None if there is none."""

    async def delete_records(self, before: int) -> int:
        """Makes `before` the lowest offset that may be read, -1: the high watermark; the log start behind it."""

    async def wait_behind(self, offset: int) -> None:
        """Behind a fetch that gave nothing: until there may be a record at `offset` or behind it, or its next fetch
        says why there is none. It has no time-out."""


class RemotePartitions(Protocol):
    """Partitions of other processes. open() while run() runs; close() at the end."""

    async def open(self, topic: str, index: int, leader: Broker) -> ServedPartition:
        """As the leader sees it now. Raises NotLeaderError (it leads it no more), and other errors of topics."""

    async def look_again(self) -> None:
        """Returns when what is known of leaders is as of this call, if it can be found out: it proved wrong."""

    async def run(self) -> None:
        """Until cancelled: what waits for a leader that is silent is given up."""

    async def close(self) -> None:
        """What is under way fails; whether it was done is unknown."""
