"""What the server needs of topics: their catalogue, and the partitions behind it.

`segmentstore/topics` is what stands behind these interfaces; tests have one in memory, whose failures they choose.
"""

from asyncio import Future
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol
from uuid import UUID

from segmentstore.codec.kafka_protocol.fields import Buffer


class Appended(Protocol):
    """What a producer is told."""

    @property
    def base_offset(self) -> int: ...

    @property
    def append_time_ms(self) -> int:
        """-1 if the times of the records are the producer's."""

    @property
    def log_start_offset(self) -> int: ...


class PartitionAccess(Protocol):
    """One partition. Errors: `segmentstore/topics/errors.py`."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    def produce(self, batch: Buffer, /) -> "Future[Appended]":
        """Appends in the order of the calls; done when it is durable."""

    async def fetch(self, offset: int, max_bytes: int, /) -> bytes:
        """Whole batches; the first contains the offset."""

    async def offset_at_time(self, time_ms: int, /) -> tuple[int, int] | None:
        """Offset and time of the first record that is not older."""

    async def delete_records(self, before: int, /) -> int:
        """The new log start."""

    def watch(self, callback: Callable[[], None], /) -> Callable[[], None]:
        """Called whenever there may be something new; returns what ends that."""


class TopicDescriptionAccess(Protocol):
    """A topic."""

    @property
    def name(self) -> str: ...

    @property
    def topic_id(self) -> UUID: ...

    @property
    def partitions(self) -> int: ...

    @property
    def config(self) -> Mapping[str, str]:
        """What was set of it; the rest has defaults."""


class TopicAccess(Protocol):
    """All topics. Errors: `segmentstore/topics/errors.py`."""

    def names(self) -> Sequence[str]: ...

    def describe(self, name: str, /) -> TopicDescriptionAccess | None: ...

    async def create(self, name: str, partitions: int, config: Mapping[str, str], /) -> object: ...

    async def delete(self, name: str, /) -> object: ...

    async def add_partitions(self, name: str, count: int, /) -> object:
        """`count`: how many there are afterwards."""

    async def alter(self, name: str, changes: Mapping[str, str | None], /) -> object:
        """None: back to the default."""

    async def partition(self, name: str, index: int, /) -> PartitionAccess:
        """Recovered if it is used for the first time."""
