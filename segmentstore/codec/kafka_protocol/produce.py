"""Produce, and InitProducerId, which producers call first if they count their batches.

One partition has one batch of version 2 in one request. With acks 0 there is no answer at all, not even an empty one.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from segmentstore.codec.kafka_protocol.fields import Int16, Int32, Int64, Records
from segmentstore.codec.kafka_protocol.structure import Structure, Versions


@dataclass(slots=True, kw_only=True)
class ProducePartition(Structure):
    """The batch for one partition."""

    index: Int32
    records: Records


@dataclass(slots=True, kw_only=True)
class ProduceTopic(Structure):
    """Batches for a topic."""

    name: str
    partitions: tuple[ProducePartition, ...]


@dataclass(slots=True, kw_only=True)
class ProduceRequest(Structure):
    """Batches to be stored."""

    transactional_id: Annotated[str | None, Versions(3)] = None
    acks: Int16
    """0: no answer; 1 and -1: when it is durable."""
    timeout_ms: Int32
    topics: tuple[ProduceTopic, ...]


@dataclass(slots=True, kw_only=True)
class ProducedPartition(Structure):
    """What became of the batch for one partition."""

    index: Int32
    error_code: Int16
    base_offset: Int64
    log_append_time_ms: Annotated[Int64, Versions(2)] = -1
    """-1 where records keep the times of their producer."""
    log_start_offset: Annotated[Int64, Versions(5)] = -1


@dataclass(slots=True, kw_only=True)
class ProducedTopic(Structure):
    """What became of the batches for a topic."""

    name: str
    partitions: tuple[ProducedPartition, ...]


@dataclass(slots=True, kw_only=True)
class ProduceResponse(Structure):
    """The answer to Produce."""

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
