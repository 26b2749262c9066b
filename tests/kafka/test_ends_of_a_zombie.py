"""A process that stood still until its containers were given away tells no end of a partition any more.

Consumers believe an end: they stop there (`kcat -e`, everything that reads "all there is"), begin there, or jump there.
"""

import pytest

from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.kafka_protocol.fetch import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from segmentstore.kafka.answer_room import AnswerRoom
from segmentstore.kafka.fetch_requests import Fetching
from segmentstore.kafka.fetch_sessions import FetchSessions
from segmentstore.kafka.quotas import ByteQuota
from segmentstore.kafka.settings import KafkaSettings
from segmentstore.kafka.statistics import KafkaCounters
from segmentstore.runtime.shared_room import SharedRoom
from segmentstore.topics.errors import PartitionUnavailableError
from segmentstore.topics.topics import Topics
from tests.containers.node import MemoryTiers, running
from tests.containers.test_ownership import SwitchedLease
from tests.topics.batches import NOW, batch_of
from tests.topics.test_topics_over_a_container import topics_over

LIST_OFFSETS_VERSION = 7


def fetching(topics: Topics) -> Fetching:
    return Fetching(
        topics=topics,
        settings=KafkaSettings(),
        counters=KafkaCounters(),
        quota=ByteQuota(0, clients_max=1),
    )


async def listed(topics: Topics, time: int) -> ListedOffset:
    wanted = ListOffsetsPartition(partition_index=0, timestamp=time)
    request = ListOffsetsRequest(topics=(ListOffsetsTopic(name="t", partitions=(wanted,)),))
    answer = await fetching(topics).list_offsets(request, version=LIST_OFFSETS_VERSION)
    return answer.topics[0].partitions[0]


async def fetched(topics: Topics, *offsets: int) -> list[FetchedPartition]:
    """One partition after the other, from there; nothing is waited for, and one batch is enough."""
    partitions = tuple(
        FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=1)
        for number, offset in enumerate(offsets)
    )
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1,
        topics=(FetchTopic(topic="t", partitions=partitions),),
    )
    session = FetchSessions(partitions_max=0).of_connection()
    room = AnswerRoom(SharedRoom(1000))
    answer = await fetching(topics).fetch(request, session, "client", room, version=11)
    return list(answer.topics[0].partitions)


async def filled(topics: Topics) -> None:
    await topics.create("t", 2, {})
    for number in range(2):
        partition = await topics.own_partition("t", number)
        await partition.produce(batch_of(b"a"))


@pytest.mark.parametrize("time", [EARLIEST, LATEST, MAX_TIMESTAMP, NOW + 10**9])
async def test_h83_no_offset_is_listed_by_one_whose_lease_is_over(time: int) -> None:
    lease = SwitchedLease()
    async with running(MemoryTiers(), lease=lease) as container, topics_over(container) as topics:
        await filled(topics)
        assert (await listed(topics, time)).error_code == ErrorCode.NONE
        lease.valid = False
        found = await listed(topics, time)
        assert (found.error_code != ErrorCode.NONE, found.offset) == (True, -1)


async def test_h83_no_fetch_at_the_end_is_answered_by_one_whose_lease_is_over() -> None:
    lease = SwitchedLease()
    async with running(MemoryTiers(), lease=lease) as container, topics_over(container) as topics:
        await filled(topics)
        (found,) = await fetched(topics, 1)
        assert (found.error_code, found.high_watermark) == (ErrorCode.NONE, 1)
        lease.valid = False
        (found,) = await fetched(topics, 1)
        assert (found.error_code != ErrorCode.NONE, found.high_watermark) == (True, -1)


async def test_h83_nor_beside_records_that_fill_the_answer() -> None:
    lease = SwitchedLease()
    async with running(MemoryTiers(), lease=lease) as container, topics_over(container) as topics:
        await filled(topics)
        first, second = await fetched(topics, 0, 1)
        assert (first.high_watermark, second.high_watermark) == (1, 1)
        lease.valid = False
        _, second = await fetched(topics, 0, 1)
        assert (second.error_code != ErrorCode.NONE, second.high_watermark) == (True, -1)


async def test_h83_the_ends_that_other_protocols_tell_are_confirmed_as_well() -> None:
    lease = SwitchedLease()
    async with running(MemoryTiers(), lease=lease) as container, topics_over(container) as topics:
        await filled(topics)
        partition = await topics.partition("t", 0)
        await partition.confirm_ends()
        lease.valid = False
        with pytest.raises(PartitionUnavailableError):
            await partition.confirm_ends()
