"""Topics, groups and a server of Kafka's protocol over one container in memory, in this process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from uuid import UUID

from containers.container_settings import ContainerSettings
from containers.segment_container import StreamSegmentContainer
from segmentstore.host.record_files import Tier2RecordFiles
from segmentstore.kafka.server import KafkaServer
from segmentstore.kafka.settings import KafkaSettings
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.topics.groups.groups import Groups
from segmentstore.topics.groups.settings import GroupSettings
from segmentstore.topics.producer_ids import ProducerIds
from segmentstore.topics.settings import TopicSettings
from segmentstore.topics.topics import Topics
from tests.containers.node import MemoryTiers, running


@dataclass(frozen=True)
class KafkaService:
    """What runs."""

    container: StreamSegmentContainer
    topics: Topics
    groups: Groups
    server: KafkaServer

    @property
    def address(self) -> str:
        host, port = self.server.address
        return f"{host}:{port}"


@asynccontextmanager
async def kafka_service(
    tiers: MemoryTiers,
    *,
    topic_settings: TopicSettings | None = None,
    container_settings: ContainerSettings | None = None,
) -> AsyncIterator[KafkaService]:
    """Started, on a port of the system's choice."""
    async with running(tiers, settings=container_settings) as container:
        clock = SystemWallClock()
        topics = Topics(
            segments=container,
            tables=container,
            wall_clock=clock,
            random=Random(11),
            settings=topic_settings or TopicSettings(),
            record_files=Tier2RecordFiles(
                object_store=tiers.object_store, writers=None, readers=None, cache_bytes=1 << 20
            ),
        )

        def topic_id_of(name: str) -> UUID | None:
            found = topics.describe(name)
            return None if found is None else found.topic_id

        groups = Groups(
            tables=container,
            wall_clock=clock,
            random=Random(12),
            topic_id_of=topic_id_of,
            settings=GroupSettings(initial_rebalance_delay_seconds=0.0),
        )
        producer_ids = ProducerIds(tables=container, wall_clock=clock)
        await topics.start()
        await groups.start()
        await producer_ids.start()
        server = KafkaServer(
            topics=topics,
            groups=groups,
            producer_ids=producer_ids,
            cluster_id="tests",
            settings=KafkaSettings(),
        )
        await server.start("127.0.0.1", 0)
        server.set_ready(True)
        working = [asyncio.ensure_future(each.run()) for each in (topics, groups)]
        try:
            yield KafkaService(container, topics, groups, server)
        finally:
            await server.close()
            for each in working:
                each.cancel()
            await asyncio.gather(*working, return_exceptions=True)
            await groups.close()
            await topics.close()
