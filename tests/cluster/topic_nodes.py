"""The nodes of remote_nodes.py with topics, groups and Kafka's protocol each, as a service puts them together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from random import Random
from uuid import UUID

from segmentstore.cluster.cluster_brokers import ClusterBrokers
from segmentstore.cluster.remote_partitions import RemotePartitions
from segmentstore.cluster.remote_store import RemoteStore
from segmentstore.codec.wire_protocol.store_calls import NO_LEADER
from segmentstore.contracts.cluster import NodeInCluster
from segmentstore.host.segment_store import SegmentStore
from segmentstore.host.topic_supervisor import TopicSupervisor
from segmentstore.kafka.server import KafkaServer
from segmentstore.kafka.settings import KafkaSettings
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.topics.groups.committed_offsets import OFFSETS_TABLE
from segmentstore.topics.groups.groups import Groups
from segmentstore.topics.groups.settings import GroupSettings
from segmentstore.topics.producer_ids import ProducerIds
from segmentstore.topics.settings import TopicSettings
from segmentstore.topics.topics import Topics
from tests.cluster.remote_nodes import RemoteNode, RemoteNodes, remote_nodes


@dataclass
class TopicNode:
    """One node."""

    node: RemoteNode
    store: RemoteStore
    brokers: ClusterBrokers
    topics: Topics
    groups: Groups
    producer_ids: ProducerIds
    server: KafkaServer
    supervisor: TopicSupervisor


def _made(nodes: RemoteNodes, node: RemoteNode, number: int) -> TopicNode:
    cluster = NodeInCluster(
        locations=nodes.locations,
        node_id=lambda: node.node_id,
        is_lease_valid=lambda: True,
        serves=node.registry.serves,
    )
    brokers = ClusterBrokers(cluster)
    store = nodes.new_store(leader_epoch=NO_LEADER)
    own = SegmentStore(registry=node.registry)
    clock = SystemWallClock()
    topics = Topics(
        segments=own,
        all_segments=store,
        tables=store,
        wall_clock=clock,
        random=Random(number),
        settings=TopicSettings(catalogue_look_seconds=0.05),
        brokers=brokers,
        remote_partitions=RemotePartitions(locations=nodes.locations),
    )

    def topic_id_of(name: str) -> UUID | None:
        found = topics.describe(name)
        return None if found is None else found.topic_id

    groups = Groups(
        tables=own,
        wall_clock=clock,
        random=Random(number),
        topic_id_of=topic_id_of,
        settings=GroupSettings(initial_rebalance_delay_seconds=0),
        is_coordinator=lambda: brokers.is_here(OFFSETS_TABLE),
    )
    producer_ids = ProducerIds(tables=store, wall_clock=clock)
    server = KafkaServer(
        topics=topics,
        groups=groups,
        producer_ids=producer_ids,
        cluster_id="test",
        settings=KafkaSettings(),
        brokers=brokers,
    )
    supervisor = TopicSupervisor(
        topics=topics,
        groups=groups,
        producer_ids=producer_ids,
        server=server,
        containers=node.registry,
        brokers=brokers,
    )
    return TopicNode(node, store, brokers, topics, groups, producer_ids, server, supervisor)


@asynccontextmanager
async def topic_nodes() -> AsyncIterator[tuple[RemoteNodes, list[TopicNode]]]:
    """Started, and known to one another."""
    async with remote_nodes() as nodes:
        made = [_made(nodes, node, number) for number, node in enumerate(nodes.nodes)]
        await nodes.locations.refresh()
        running: list[asyncio.Task[None]] = []
        try:
            for each in made:
                await each.server.start("127.0.0.1", 0)
                host, port = each.server.address
                nodes.locations.registered[each.node.node_id] = replace(
                    each.node.as_registered, kafka=f"{host}:{port}"
                )
                running.append(asyncio.create_task(each.store.run()))
            for each in made:
                running.append(asyncio.create_task(each.supervisor.run()))
                await each.supervisor.wait_until_started()
            yield nodes, made
        finally:
            for each in made:
                await each.server.close()
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            for each in made:
                await each.supervisor.close()
                await each.store.close()
