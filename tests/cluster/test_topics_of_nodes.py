"""Topics over real containers that move between two nodes, with real wires and real servers in between."""

import asyncio
from collections.abc import Callable

from segmentstore.cluster.cluster_brokers import broker_id_of
from segmentstore.codec.container_hash import container_of
from segmentstore.codec.kafka_protocol.cluster import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from segmentstore.codec.record_batch import Record, encode_batch
from segmentstore.contracts.errors import LeaderReplacedError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.topics.errors import NotLeaderError, PartitionUnavailableError
from segmentstore.topics.groups.committed_offsets import OFFSETS_TABLE, TopicPartition
from segmentstore.topics.groups.groups import OffsetToCommit
from segmentstore.topics.topic_records import CATALOGUE_TABLE, partition_segment_name
from tests.cluster.remote_nodes import RemoteNodes
from tests.cluster.topic_nodes import TopicNode, topic_nodes
from tests.kafka.node import Client
from tests.topics.batches import records_in

PARTITIONS = 6


def container_id_of(name: str) -> ContainerId:
    return ContainerId(container_of(name, 4))


def leader(made: list[TopicNode], name: str) -> TopicNode:
    (found,) = [each for each in made if each.brokers.is_here(name)]
    return found


def segment(made: list[TopicNode], index: int) -> str:
    found = made[0].topics.describe("t")
    assert found is not None
    return partition_segment_name("t", found.topic_id, index)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def move(nodes: RemoteNodes, name: str) -> None:
    await nodes.move(container_id_of(name))
    await nodes.locations.refresh()


async def produce(made: list[TopicNode], index: int, sequence: int) -> None:
    """One record, at whichever node; again until it is acknowledged, as an idempotent producer."""
    batch = encode_batch(
        [Record(0, SystemWallClock().now_ms(), None, b"%d" % sequence, ())],
        producer_id=7 + index,
        producer_epoch=0,
        base_sequence=sequence,
    )
    async with asyncio.timeout(60):
        while True:
            try:
                partition = await made[sequence % 2].topics.partition("t", index)
                await partition.produce(batch)
            except (PartitionUnavailableError, NotLeaderError):
                await asyncio.sleep(0.02)
            else:
                return


async def test_records_survive_moves_of_every_container_and_come_out_at_every_node() -> None:
    async with topic_nodes() as (nodes, made):
        await made[1].topics.create("t", PARTITIONS, {})
        await made[0].topics.refresh()
        sequences = dict.fromkeys(range(PARTITIONS), 0)
        is_over = False

        async def keep_producing(index: int) -> None:
            while not is_over:
                await produce(made, index, sequences[index])
                sequences[index] += 1

        async def all_have(count: int) -> None:
            await until(lambda: min(sequences.values()) >= count)

        producing = [asyncio.create_task(keep_producing(index)) for index in range(PARTITIONS)]
        for number in range(4):
            await all_have(number + 1)
            await nodes.move(ContainerId(number))
        await all_have(5)
        is_over = True
        await asyncio.gather(*producing)
        for node in made:
            for index in range(PARTITIONS):
                async with asyncio.timeout(60):
                    partition = await node.topics.partition("t", index)
                found: list[Record] = []
                while len(found) < partition.high_watermark:
                    found += records_in(await partition.fetch(len(found), 1 << 20))
                assert [each.value for each in found] == [
                    b"%d" % n for n in range(sequences[index])
                ]


async def test_the_catalogue_and_the_coordinator_move_and_clients_are_told() -> None:
    async with topic_nodes() as (nodes, made):
        await made[0].topics.create("t", 1, {})
        coordinator = leader(made, OFFSETS_TABLE)
        await until(lambda: coordinator.supervisor.metrics()["kafka_coordinates"] == 1)
        await coordinator.topics.refresh()
        await coordinator.groups.commit(
            "g",
            member_id="",
            generation=-1,
            offsets={TopicPartition("t", 0): OffsetToCommit(offset=3)},
        )
        for table in (CATALOGUE_TABLE, OFFSETS_TABLE):
            before = leader(made, table)
            await move(nodes, table)
            assert leader(made, table) is not before
        after = leader(made, OFFSETS_TABLE)
        await until(lambda: after.supervisor.metrics()["kafka_coordinates"] == 1)
        found = await after.groups.committed("g")
        assert found[TopicPartition("t", 0)].offset == 3
        for node in made:
            client = await Client.connect(*node.server.address)
            answer = await client.ask(MetadataRequest(topics=None), MetadataResponse)
            brokers = {each.node_id: (each.host, each.port) for each in answer.brokers}
            assert len(brokers) == 2
            assert [each.name for each in answer.topics] == ["t"]
            assert brokers[answer.controller_id] == leader(made, CATALOGUE_TABLE).server.address
            led = answer.topics[0].partitions[0].leader_id
            assert brokers[led] == leader(made, segment(made, 0)).server.address
            told = await client.ask(
                FindCoordinatorRequest(key="g", key_type=0), FindCoordinatorResponse
            )
            assert (told.host, told.port) == after.server.address
            client.close()


async def test_producer_ids_never_come_twice_at_whichever_node() -> None:
    async with topic_nodes() as (_, made):
        given = [await each.producer_ids.next() for _ in range(1_200) for each in made]
        assert len(set(given)) == len(given)


async def test_topics_disturb_no_leader_and_wait_for_none() -> None:
    async with topic_nodes() as (nodes, made):
        await nodes.store.create(nodes.name_in(0))
        newer = nodes.new_store(leader_epoch=9)
        await newer.info(nodes.name_in(0))
        await newer.close()
        # The controller that was replaced is refused, topics are not.
        try:
            await nodes.store.info(nodes.name_in(0))
        except LeaderReplacedError:
            pass
        else:
            raise AssertionError("an older leader is answered")
        for each in made:
            await each.topics.create(f"t{each.node.node_id}", 4, {})
        for each in made:
            await each.topics.refresh()
            assert each.topics.names() == ["ta", "tb"]


def test_ids_of_brokers_are_of_their_addresses_and_31_bits() -> None:
    ids = [broker_id_of(f"10.0.0.{n}:9092") for n in range(200)]
    assert len(set(ids)) == 200
    assert all(0 <= each < 1 << 31 for each in ids)
    assert broker_id_of("10.0.0.1:9092") == 1_161_482_887
