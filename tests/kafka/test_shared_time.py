"""Goal: partitions of a request that cannot be reached in time do not take the time of the others, many as they are.

Method: virtual time; four partitions of five never end their recovery.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random

import pytest

from segmentstore.codec.kafka_protocol.administration import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.kafka_protocol.fetch import (
    EARLIEST,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from segmentstore.kafka.fetch_requests import Fetching
from segmentstore.kafka.produce_requests import Producing
from segmentstore.kafka.quotas import ByteQuota
from segmentstore.kafka.refused_batches import RefusedBatches
from segmentstore.kafka.settings import KafkaSettings
from segmentstore.kafka.statistics import KafkaCounters
from segmentstore.kafka.topic_requests import TopicRequests
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.topics.brokers import OneBroker
from segmentstore.topics.partition import Partition
from segmentstore.topics.settings import TopicSettings
from segmentstore.topics.topics import Topics
from tests.http.memory_segments import MemorySegments
from tests.kafka.node import batch, produce
from tests.reference.memory_tables import MemoryTables
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation

PARTITIONS = range(5)
SETTINGS = KafkaSettings()


async def produced(topics: Topics) -> Sequence[int]:
    counters, quota = KafkaCounters(), ByteQuota(0, clients_max=1)
    producing = Producing(topics=topics, settings=SETTINGS, counters=counters, quota=quota)
    submission = await producing.submit(
        produce(*((index, batch(b"v")) for index in PARTITIONS)),
        "client",
        lambda error: pytest.fail(f"{error!r}"),
        RefusedBatches(partitions_max=1, seconds=1),
    )
    done = asyncio.Event()
    submission.when_done(done.set)
    await done.wait()
    return [each.error_code for each in submission.response().topics[0].partitions]


async def listed(topics: Topics) -> Sequence[int]:
    counters, quota = KafkaCounters(), ByteQuota(0, clients_max=1)
    fetching = Fetching(topics=topics, settings=SETTINGS, counters=counters, quota=quota)
    asked = [ListOffsetsPartition(partition_index=each, timestamp=EARLIEST) for each in PARTITIONS]
    request = ListOffsetsRequest(topics=(ListOffsetsTopic(name="t", partitions=tuple(asked)),))
    answer = await fetching.list_offsets(request, version=5)
    return [each.error_code for each in answer.topics[0].partitions]


async def deleted(topics: Topics) -> Sequence[int]:
    requests = TopicRequests(topics=topics, brokers=OneBroker(0, None), settings=SETTINGS)
    asked = [DeleteRecordsPartition(partition_index=each, offset=0) for each in PARTITIONS]
    request = DeleteRecordsRequest(
        topics=(DeleteRecordsTopic(name="t", partitions=tuple(asked)),), timeout_ms=30_000
    )
    answer = await requests.delete_records(request)
    return [each.error_code for each in answer.topics[0].partitions]


@pytest.mark.parametrize(
    ("ask", "code", "seconds"),
    [
        (produced, ErrorCode.KAFKA_STORAGE_ERROR, SETTINGS.partition_seconds),
        (listed, ErrorCode.KAFKA_STORAGE_ERROR, SETTINGS.read_seconds),
        (deleted, ErrorCode.REQUEST_TIMED_OUT, SETTINGS.partition_seconds),
    ],
)
def test_partitions_that_take_too_long_take_the_time_of_one_together(
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[Topics], Awaitable[Sequence[int]]],
    code: ErrorCode,
    seconds: float,
) -> None:
    recover = Partition.recover

    async def silent(partition: Partition) -> None:
        if not partition.label.endswith("/4"):
            await asyncio.Event().wait()
        await recover(partition)

    async def work(loop: SimLoop) -> None:
        topics = Topics(
            segments=MemorySegments(),
            tables=MemoryTables(),
            wall_clock=SystemWallClock(),
            random=Random(7),
            settings=TopicSettings(),
        )
        await topics.start()
        await topics.create("t", len(PARTITIONS), {})
        began = loop.time()
        assert await ask(topics) == [code] * 4 + [ErrorCode.NONE]
        assert seconds <= loop.time() - began < seconds + 1.5
        await topics.close()

    monkeypatch.setattr(Partition, "recover", silent)
    run_simulation(1, work)
