"""Fetch and ListOffsets: what consumers read, and from where.

From version 13 of Fetch on topics go by their ids, so that what follows one does not go on in another of the same name.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final
from uuid import UUID

from segmentstore.codec.kafka_protocol.fields import NO_UUID, Int8, Int16, Int32, Int64, Records
from segmentstore.codec.kafka_protocol.structure import Structure, Versions

TOPIC_IDS_SINCE: Final = 13
"""The first version of Fetch in which topics go by their ids."""

LATEST: Final = -1
"""As a timestamp of ListOffsets: the end."""
EARLIEST: Final = -2
"""As a timestamp of ListOffsets: the first record."""
MAX_TIMESTAMP: Final = -3
"""As a timestamp of ListOffsets: the record with the highest time."""

NO_PREFERRED_REPLICA: Final = -1
"""0 would mean: ask the broker 0."""


@dataclass(slots=True, kw_only=True)
class FetchPartition(Structure):
    """Where to read in one partition."""

    partition: Int32
    current_leader_epoch: Annotated[Int32, Versions(9)] = -1
    fetch_offset: Int64
    last_fetched_epoch: Annotated[Int32, Versions(12)] = -1
    log_start_offset: Annotated[Int64, Versions(5)] = -1
    partition_max_bytes: Int32


@dataclass(slots=True, kw_only=True)
class FetchTopic(Structure):
    """Where to read in one topic."""

    topic: Annotated[str, Versions(0, TOPIC_IDS_SINCE - 1)] = ""
    topic_id: Annotated[UUID, Versions(TOPIC_IDS_SINCE)] = NO_UUID
    partitions: tuple[FetchPartition, ...]

    @property
    def key(self) -> str | UUID:
        """What the topic goes by here: its name, if the version has one."""
        return self.topic or self.topic_id


@dataclass(slots=True, kw_only=True)
class ForgottenTopic(Structure):
    """What a session of fetches reads no more."""

    topic: Annotated[str, Versions(0, TOPIC_IDS_SINCE - 1)] = ""
    topic_id: Annotated[UUID, Versions(TOPIC_IDS_SINCE)] = NO_UUID
    partitions: tuple[Int32, ...]

    @property
    def key(self) -> str | UUID:
        """What the topic goes by here: its name, if the version has one."""
        return self.topic or self.topic_id


@dataclass(slots=True, kw_only=True)
class FetchRequest(Structure):
    """Asks for batches, and waits for them if there are too few bytes."""

    flexible_since: ClassVar[int | None] = 12

    replica_id: Annotated[Int32, Versions(0, 14)] = -1
    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Annotated[Int32, Versions(3)] = 0x7FFFFFFF
    isolation_level: Annotated[Int8, Versions(4)] = 0
    session_id: Annotated[Int32, Versions(7)] = 0
    session_epoch: Annotated[Int32, Versions(7)] = -1
    topics: tuple[FetchTopic, ...]
    forgotten_topics: Annotated[tuple[ForgottenTopic, ...], Versions(7)] = ()
    rack_id: Annotated[str, Versions(11)] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction(Structure):
    """Records that readers of committed ones leave out."""

    producer_id: Int64
    first_offset: Int64


@dataclass(slots=True, kw_only=True)
class FetchedPartition(Structure):
    """Whole batches of one partition, one behind the other."""

    partition_index: Int32
    error_code: Int16
    high_watermark: Int64
    last_stable_offset: Annotated[Int64, Versions(4)] = -1
    log_start_offset: Annotated[Int64, Versions(5)] = -1
    aborted_transactions: Annotated[tuple[AbortedTransaction, ...] | None, Versions(4)] = None
    preferred_read_replica: Annotated[Int32, Versions(11)] = NO_PREFERRED_REPLICA
    records: Records


@dataclass(slots=True, kw_only=True)
class FetchedTopic(Structure):
    """Batches of one topic."""

    topic: Annotated[str, Versions(0, TOPIC_IDS_SINCE - 1)] = ""
    topic_id: Annotated[UUID, Versions(TOPIC_IDS_SINCE)] = NO_UUID
    partitions: tuple[FetchedPartition, ...]


@dataclass(slots=True, kw_only=True)
class FetchResponse(Structure):
    """The answer to Fetch. It names exactly the partitions that were asked for."""

    flexible_since: ClassVar[int | None] = 12

    throttle_time_ms: Annotated[Int32, Versions(1)] = 0
    error_code: Annotated[Int16, Versions(7)] = 0
    session_id: Annotated[Int32, Versions(7)] = 0
    """0: no session, every request is a full one."""
    topics: tuple[FetchedTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsPartition(Structure):
    """A time, or one of the negative numbers above."""

    partition_index: Int32
    current_leader_epoch: Annotated[Int32, Versions(4)] = -1
    timestamp: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsTopic(Structure):
    """What is asked about one topic."""

    name: str
    partitions: tuple[ListOffsetsPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsRequest(Structure):
    """Asks for the first record with a timestamp of at least the given one."""

    flexible_since: ClassVar[int | None] = 6

    replica_id: Int32 = -1
    isolation_level: Annotated[Int8, Versions(2)] = 0
    topics: tuple[ListOffsetsTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedOffset(Structure):
    """-1 and -1 if there is no such record. A real offset never has a negative timestamp unless none was asked for."""

    partition_index: Int32
    error_code: Int16
    timestamp: Int64
    offset: Int64
    leader_epoch: Annotated[Int32, Versions(4)] = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTopic(Structure):
    """What was found in one topic."""

    name: str
    partitions: tuple[ListedOffset, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsetsResponse(Structure):
    """The answer to ListOffsets."""

    flexible_since: ClassVar[int | None] = 6

    throttle_time_ms: Annotated[Int32, Versions(2)] = 0
    topics: tuple[ListedTopic, ...]
