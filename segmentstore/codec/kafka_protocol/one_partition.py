"""Requests about one partition of a topic, and what their answers say of it: what programs ask that are no consumer.

Invariants: an answer names exactly the partitions that were asked for, or ValueError says that it does not.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from segmentstore.codec.kafka_protocol.administration import (
    DeletedRecordsPartition,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from segmentstore.codec.kafka_protocol.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from segmentstore.codec.kafka_protocol.produce import (
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
)

_ALL_ACKNOWLEDGE: Final = -1
_TIMEOUT_MS: Final = 30_000
"""Told to the server, which answers when it is done."""


def produce_request(topic: str, index: int, batch: bytes) -> ProduceRequest:
    """Stores one batch, and is answered when it is durable."""
    partition = ProducePartition(index=index, records=batch)
    return ProduceRequest(
        acks=_ALL_ACKNOWLEDGE,
        timeout_ms=_TIMEOUT_MS,
        topics=(ProduceTopic(name=topic, partitions=(partition,)),),
    )


def produced(answer: ProduceResponse) -> ProducedPartition:
    """What became of the batch."""
    (one,) = (each for topic in answer.topics for each in topic.partitions)
    return one


def fetch_request(
    topic: str, index: int, *, offset: int, bytes_max: int, wait_ms: int
) -> FetchRequest:
    """Asks for whole batches from an offset on, and waits so long for the first one."""
    partition = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=bytes_max)
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=max(bytes_max, 1),
        topics=(FetchTopic(topic=topic, partitions=(partition,)),),
    )


def fetched(answer: FetchResponse) -> FetchedPartition:
    """What was read."""
    (one,) = (each for topic in answer.topics for each in topic.partitions)
    return one


def was_given_up(found: FetchedPartition) -> bool:
    """Whether the server's storage was too slow for the read. There is no error then, and there are no records; but no
    end of the partition is told either, and it may not be taken for one that ends here."""
    return not found.records and found.high_watermark < 0


def offsets_request(
    topic: str, indexes: Iterable[int], timestamps: Iterable[int]
) -> ListOffsetsRequest:
    """Asks of each of the partitions for each of the times; EARLIEST and LATEST are times, too."""
    times = tuple(timestamps)
    wanted = tuple(
        ListOffsetsPartition(partition_index=index, timestamp=time)
        for index in indexes
        for time in times
    )
    return ListOffsetsRequest(topics=(ListOffsetsTopic(name=topic, partitions=wanted),))


def listed(answer: ListOffsetsResponse) -> Sequence[ListedOffset]:
    """In the order in which it was asked for."""
    return [each for topic in answer.topics for each in topic.partitions]


def delete_records_request(topic: str, index: int, before: int) -> DeleteRecordsRequest:
    """Makes `before` the lowest offset that may be read."""
    partition = DeleteRecordsPartition(partition_index=index, offset=before)
    return DeleteRecordsRequest(
        topics=(DeleteRecordsTopic(name=topic, partitions=(partition,)),), timeout_ms=_TIMEOUT_MS
    )


def deleted_records(answer: DeleteRecordsResponse) -> DeletedRecordsPartition:
    """What became of it."""
    (one,) = (each for topic in answer.topics for each in topic.partitions)
    return one
