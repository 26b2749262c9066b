"""Produce, and InitProducerId, which producers call first if they count their batches.

One partition has one batch of version 2 in one request. With acks 0 there is no answer at all, not even an empty one.
From version 13 of Produce on topics go by their ids.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar
from uuid import UUID

from segmentstore.codec.kafka_protocol.fields import NO_UUID, Int16, Int32, Int64, Records
from segmentstore.codec.kafka_protocol.structure import Structure, Versions


@dataclass(slots=True, kw_only=True)
class ProducePartition(Structure):
    """The batch for one partition."""

    index: Int32
    records: Records


@dataclass(slots=True, kw_only=True)
class ProduceTopic(Structure):
    """Batches for a topic."""

    name: Annotated[str, Versions(0, 12)] = ""
    topic_id: Annotated[UUID, Versions(13)] = NO_UUID
    partitions: tuple[ProducePartition, ...]

    @property
    def key(self) -> str | UUID:
        """What the topic goes by here: its name, if the version has one."""
        return self.name or self.topic_id


@dataclass(slots=True, kw_only=True)
class ProduceRequest(Structure):
    """Batches to be stored."""

    flexible_since: ClassVar[int | None] = 9

    transactional_id: Annotated[str | None, Versions(3)] = None
    acks: Int16
    """0: no answer; 1 and -1: when it is durable."""
    timeout_ms: Int32
    topics: tuple[ProduceTopic, ...]


@dataclass(slots=True, kw_only=True)
class RefusedRecord(Structure):
    """A record for which its whole batch was refused."""

    batch_index: Int32
    """Its place in the batch."""
    batch_index_error_message: str | None = None


@dataclass(slots=True, kw_only=True)
class ProducedPartition(Structure):
    """What became of the batch for one partition."""

    index: Int32
    error_code: Int16
    base_offset: Int64
    log_append_time_ms: Annotated[Int64, Versions(2)] = -1
    """-1 where records keep the times of their producer."""
    log_start_offset: Annotated[Int64, Versions(5)] = -1
    record_errors: Annotated[tuple[RefusedRecord, ...], Versions(8)] = ()
    error_message: Annotated[str | None, Versions(8)] = None


@dataclass(slots=True, kw_only=True)
class ProducedTopic(Structure):
    """What became of the batches for a topic."""

    name: Annotated[str, Versions(0, 12)] = ""
    topic_id: Annotated[UUID, Versions(13)] = NO_UUID
    partitions: tuple[ProducedPartition, ...]


@dataclass(slots=True, kw_only=True)
class ProduceResponse(Structure):
    """The answer to Produce."""

    flexible_since: ClassVar[int | None] = 9

    topics: tuple[ProducedTopic, ...]
    throttle_time_ms: Annotated[Int32, Versions(1)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdRequest(Structure):
    """Asks for an id of its own. One that has an id may name it; it gets another one, as from Kafka."""

    flexible_since: ClassVar[int | None] = 2

    transactional_id: str | None
    transaction_timeout_ms: Int32
    producer_id: Annotated[Int64, Versions(3)] = -1
    producer_epoch: Annotated[Int16, Versions(3)] = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdResponse(Structure):
    """An id that no other producer has or had."""

    flexible_since: ClassVar[int | None] = 2

    throttle_time_ms: Int32 = 0
    error_code: Int16
    producer_id: Int64
    producer_epoch: Int16
