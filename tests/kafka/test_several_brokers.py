"""Kafka's protocol where partitions, the catalogue and the offsets are in several processes; and partitions that are
asked from the process that does not lead them."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from segmentstore.client.kafka_connection import KafkaConnection, open_kafka_connection
from segmentstore.cluster.remote_partitions import RemotePartitions, RemotePartitionSettings
from segmentstore.codec.kafka_protocol.administration import (
    BROKER_RESOURCE,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from segmentstore.codec.kafka_protocol.cluster import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.kafka_protocol.fetch import (
    LATEST,
    FetchResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from segmentstore.codec.kafka_protocol.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from segmentstore.codec.kafka_protocol.produce import ProduceResponse
from segmentstore.contracts.errors import ContainerStoppedError
from segmentstore.contracts.tables import Table
from segmentstore.kafka.server import KafkaServer
from segmentstore.kafka.settings import KafkaSettings
from segmentstore.topics.brokers import Broker
from segmentstore.topics.errors import (
    InvalidRecordError,
    OffsetOutOfRangeError,
    PartitionUnavailableError,
    RecordBatchTooLargeError,
)
from segmentstore.topics.groups.committed_offsets import OFFSETS_TABLE
from segmentstore.topics.groups.groups import Groups
from segmentstore.topics.producer_ids import ProducerIds
from segmentstore.topics.topic_records import CATALOGUE_TABLE, partition_segment_name
from segmentstore.topics.topics import Topics
from tests.kafka.node import Client, fetch, fetched, produce, produced
from tests.reference.memory_tables import MemoryTables
from tests.topics.batches import batch_of, batch_that_does_not_decompress, records_in
from tests.topics.several_processes import Process, Processes
from tests.topics.slow_reads import make_reads_slow

QUICK = RemotePartitionSettings(look_seconds=0.02, silence_seconds=0.3, wait_ms=200)


@dataclass
class BrokerNode:
    """A process with its server."""

    process: Process
    topics: Topics
    groups: Groups
    server: KafkaServer
    remote: RemotePartitions
    client: Client


class Cluster:
    """Two of them, with topic "t" whose partitions 0 and 1 are led by the first and the second one."""

    def __init__(self, store: Processes, nodes: list[BrokerNode]) -> None:
        self.store = store
        self.nodes = nodes

    def segment(self, index: int) -> str:
        found = self.nodes[0].topics.describe("t")
        assert found is not None
        return partition_segment_name("t", found.topic_id, index)

    def move(self, segment: str, number: int | None, *, known: bool = True) -> None:
        self.store.move(segment, number)
        for node in self.nodes:
            node.topics.close_left()
            if known:
                node.process.look()

    async def create(self) -> None:
        """Until its two partitions are in two containers."""
        for _ in range(100):
            await self.nodes[0].topics.create("t", 2, {})
            self.move(self.segment(0), 0)
            self.move(self.segment(1), 1)
            if self.store.owner_of(self.segment(0)) == 0:
                return
            await self.nodes[0].topics.delete("t")
        raise AssertionError("all in one container")


@asynccontextmanager
async def cluster() -> AsyncGenerator[Cluster, None]:
    store = Processes(2)
    nodes: list[BrokerNode] = []
    for process in store.processes:
        remote = RemotePartitions(locations=process, settings=QUICK)
        topics = store.topics(process, remote_partitions=remote)
        groups = store.groups(process, topics, OFFSETS_TABLE)
        server = KafkaServer(
            topics=topics,
            groups=groups,
            producer_ids=ProducerIds(tables=store.tables, wall_clock=store.clock),
            cluster_id="test",
            settings=KafkaSettings(),
            brokers=process,
        )
        await topics.start()
        await server.start("127.0.0.1", 0)
        process.broker = Broker(process.broker.broker_id, server.address)
        server.set_ready(True)
        client = await Client.connect(*server.address)
        nodes.append(BrokerNode(process, topics, groups, server, remote, client))
    store.move(CATALOGUE_TABLE, 0)
    store.move(OFFSETS_TABLE, 1)
    await nodes[1].groups.start()
    running = [asyncio.ensure_future(node.remote.run()) for node in nodes]
    made = Cluster(store, nodes)
    await made.create()
    await nodes[1].topics.refresh()
    try:
        yield made
        for node in nodes:
            node.server.check()
    finally:
        for node in nodes:
            node.client.close()
            await node.server.close()
            await node.groups.close()
            await node.topics.close()
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class Broken(MemoryTables):
    """Nothing of it answers."""

    def open_table(self, name: str) -> AbstractAsyncContextManager[Table]:
        raise ContainerStoppedError(f"it is away name={name!r}")


def metadata_request(*names: str) -> MetadataRequest:
    return MetadataRequest(
        topics=tuple(MetadataRequestTopic(name=each) for each in names),
        allow_auto_topic_creation=False,
    )


# --- Kafka's protocol -------------------------------------------------------------------------


async def test_metadata_names_the_leader_of_each_partition_at_every_broker() -> None:
    async with cluster() as made:
        for node in made.nodes:
            found = await node.client.ask(metadata_request("t"), MetadataResponse)
            assert [(each.node_id, each.host, each.port) for each in found.brokers] == [
                (100 + n, *other.server.address) for n, other in enumerate(made.nodes)
            ]
            (topic,) = found.topics
            assert [each.leader_id for each in topic.partitions] == [100, 101]
            assert [each.error_code for each in topic.partitions] == [0, 0]
            owner = made.store.owner_of(CATALOGUE_TABLE)
            assert owner is not None
            assert found.controller_id == 100 + owner


async def test_a_topic_that_is_named_many_times_is_told_of_once() -> None:
    async with cluster() as made:
        names = ("t", "u", "t", "t", "u")
        found = await made.nodes[0].client.ask(metadata_request(*names), MetadataResponse)
        assert [each.name for each in found.topics] == ["t", "u"]


async def test_a_partition_without_a_leader_is_told_as_that() -> None:
    async with cluster() as made:
        made.move(made.segment(1), None)
        found = await made.nodes[0].client.ask(metadata_request("t"), MetadataResponse)
        partition = found.topics[0].partitions[1]
        assert (partition.error_code, partition.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)


async def test_every_broker_creates_topics_and_all_know_them_at_once() -> None:
    async with cluster() as made:
        one, other = made.nodes
        topic = CreatableTopic(name="new", num_partitions=1, replication_factor=1)
        created = await other.client.ask(
            CreateTopicsRequest(topics=(topic,), timeout_ms=1000), CreateTopicsResponse
        )
        assert created.topics[0].error_code == ErrorCode.NONE
        found = await one.client.ask(metadata_request("new"), MetadataResponse)
        assert found.topics[0].error_code == ErrorCode.NONE
        every = await one.client.ask(MetadataRequest(topics=None), MetadataResponse)
        assert [each.name for each in every.topics] == ["new", "t"]


async def test_a_broker_that_does_not_lead_a_partition_says_so_and_does_nothing() -> None:
    async with cluster() as made:
        one, other = made.nodes
        answer = await one.client.ask(
            produce((0, batch_of(b"x")), (1, batch_of(b"y"))), ProduceResponse
        )
        assert produced(answer, 0).error_code == ErrorCode.NONE
        assert produced(answer, 1).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        looked = await other.client.ask(fetch((0, 0), (1, 0)), FetchResponse)
        assert fetched(looked, 0).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (fetched(looked, 1).error_code, fetched(looked, 1).high_watermark) == (0, 0)
        listed = await one.client.ask(
            ListOffsetsRequest(
                topics=(
                    ListOffsetsTopic(
                        name="t",
                        partitions=(ListOffsetsPartition(partition_index=1, timestamp=LATEST),),
                    ),
                )
            ),
            ListOffsetsResponse,
        )
        assert listed.topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        deleted = await one.client.ask(
            DeleteRecordsRequest(
                topics=(
                    DeleteRecordsTopic(
                        name="t",
                        partitions=(DeleteRecordsPartition(partition_index=1, offset=-1),),
                    ),
                ),
                timeout_ms=1000,
            ),
            DeleteRecordsResponse,
        )
        assert deleted.topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_fetch_that_waits_is_answered_when_its_partition_leaves() -> None:
    async with cluster() as made:
        client = made.nodes[0].client
        number = client.send(fetch((0, 0), wait_ms=30_000))
        while not made.nodes[0].server.statistics().fetches:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        made.move(made.segment(0), 1)
        async with asyncio.timeout(60):
            answer = await client.answer(number, FetchResponse)
        assert fetched(answer).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_groups_are_where_the_offsets_are() -> None:
    async with cluster() as made:
        one, other = made.nodes
        place = (101, *other.server.address)
        for node in made.nodes:
            found = await node.client.ask(
                FindCoordinatorRequest(key="g", key_type=0), FindCoordinatorResponse
            )
            assert (found.node_id, found.host, found.port) == place
        heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
        refused = await one.client.ask(heartbeat, HeartbeatResponse)
        assert refused.error_code == ErrorCode.NOT_COORDINATOR
        refused = await other.client.ask(heartbeat, HeartbeatResponse)
        assert refused.error_code == ErrorCode.REBALANCE_IN_PROGRESS
        assert await committed_code(one, commit_of("t", 5)) == ErrorCode.NOT_COORDINATOR
        assert await committed_code(other, commit_of("t", 5)) == ErrorCode.NONE
        nothing = await one.client.ask(
            OffsetFetchRequest(group_id="g", topics=None), OffsetFetchResponse, 7
        )
        assert nothing.error_code == ErrorCode.NOT_COORDINATOR
        groups = [
            await node.client.ask(ListGroupsRequest(), ListGroupsResponse) for node in made.nodes
        ]
        assert [(each.error_code, len(each.groups)) for each in groups] == [(0, 0), (0, 1)]


def commit_of(name: str, offset: int, *, partition: int = 0) -> OffsetCommitRequest:
    """By a consumer without a membership."""
    place = OffsetCommitPartition(
        partition_index=partition, committed_offset=offset, committed_metadata=None
    )
    return OffsetCommitRequest(
        group_id="g",
        generation_id=-1,
        member_id="",
        topics=(OffsetCommitTopic(name=name, partitions=(place,)),),
    )


async def committed_of(node: BrokerNode) -> dict[tuple[str, int], int]:
    answer = await node.client.ask(
        OffsetFetchRequest(group_id="g", topics=None), OffsetFetchResponse, 7
    )
    assert answer.error_code == ErrorCode.NONE
    return {
        (topic.name, each.partition_index): each.committed_offset
        for topic in answer.topics
        for each in topic.partitions
    }


async def committed_code(node: BrokerNode, request: OffsetCommitRequest) -> int:
    answer = await node.client.ask(request, OffsetCommitResponse)
    return answer.topics[0].partitions[0].error_code


async def test_an_offset_counts_for_the_topic_that_has_the_name_when_it_is_committed() -> None:
    """Another process deletes the topic and makes it again; the coordinator has not looked since."""
    async with cluster() as made:
        one, coordinator = made.nodes
        assert await committed_code(coordinator, commit_of("t", 500)) == ErrorCode.NONE
        assert await committed_of(coordinator) == {("t", 0): 500}
        await one.topics.delete("t")
        await one.topics.create("t", 3, {})
        assert await committed_of(coordinator) == {}, "what was read of the old topic"
        await one.topics.delete("t")
        await one.topics.create("t", 3, {})
        assert await committed_code(coordinator, commit_of("t", 3)) == ErrorCode.NONE
        await coordinator.topics.refresh()
        assert await committed_of(coordinator) == {("t", 0): 3}, "it was acknowledged"


async def test_an_offset_of_a_partition_that_was_just_added_is_taken() -> None:
    async with cluster() as made:
        one, coordinator = made.nodes
        await one.topics.add_partitions("t", 4)
        request = commit_of("t", 7, partition=3)
        assert await committed_code(coordinator, request) == ErrorCode.NONE
        assert await committed_of(coordinator) == {("t", 3): 7}


async def test_while_the_catalogue_is_away_no_offset_is_told_or_taken() -> None:
    async with cluster() as made:
        coordinator = made.nodes[1]
        coordinator.topics._catalogue._tables = Broken()
        code = await committed_code(coordinator, commit_of("t", 3))
        assert code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        answer = await coordinator.client.ask(
            OffsetFetchRequest(group_id="g", topics=None), OffsetFetchResponse, 7
        )
        assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def test_while_the_offsets_are_nowhere_there_is_no_coordinator() -> None:
    async with cluster() as made:
        made.move(OFFSETS_TABLE, None)
        found = await made.nodes[0].client.ask(
            FindCoordinatorRequest(key="g", key_type=0), FindCoordinatorResponse
        )
        assert (found.error_code, found.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)


async def test_a_broker_tells_of_its_own_settings_alone() -> None:
    async with cluster() as made:
        for number, code in ((100, ErrorCode.NONE), (101, ErrorCode.INVALID_REQUEST)):
            answer = await made.nodes[0].client.ask(
                DescribeConfigsRequest(
                    resources=(
                        DescribeConfigsResource(
                            resource_type=BROKER_RESOURCE,
                            resource_name=str(number),
                            configuration_keys=None,
                        ),
                    )
                ),
                DescribeConfigsResponse,
            )
            assert answer.results[0].error_code == code


# --- partitions of others ---------------------------------------------------------------------


async def test_a_partition_of_another_process_is_written_and_read_like_an_own_one() -> None:
    async with cluster() as made:
        topics = made.nodes[0].topics
        partition = await topics.partition("t", 1)
        appends = [partition.produce(batch_of(b"%d" % n, b"+", time=1000 * n)) for n in range(20)]
        assert [(await each).base_offset for each in appends] == [2 * n for n in range(20)]
        partition = await topics.partition("t", 1)
        assert (partition.log_start_offset, partition.high_watermark) == (0, 40)
        records = records_in(await partition.fetch(10, 100_000))
        assert [each.offset for each in records] == list(range(10, 40))
        assert await partition.offset_at_time(3_000) == (6, 3_000)
        assert await partition.offset_at_time(1_000_000) is None
        assert await partition.delete_records(7) == 7
        with pytest.raises(OffsetOutOfRangeError) as refused:
            await partition.fetch(3, 1000)
        assert refused.value.log_start == 7
        own = await made.nodes[1].topics.own_partition("t", 1)
        assert (own.log_start_offset, own.high_watermark) == (7, 40)


async def test_a_time_before_1970_is_looked_for_at_another_process_and_is_no_word_of_its_protocol() -> (
    None
):
    async with cluster() as made:
        for node in made.nodes:
            partition = await node.topics.partition("t", 1)
            if not partition.high_watermark:
                await partition.produce(batch_of(b"a", b"b", time=5))
            for time_ms in (-1, -2, -3, -7, -(1 << 62)):
                assert await partition.offset_at_time(time_ms) == (0, 5), time_ms


async def test_records_of_times_before_1970_are_found_at_another_process_as_at_their_own() -> None:
    times = [-9_000, -7, -3, -1, -5_000, 5, -2, 9]
    async with cluster() as made:
        partition = await made.nodes[0].topics.partition("t", 1)
        for each in times:
            await partition.produce(batch_of(b"a", time=each))
        found = []
        for node in made.nodes:
            partition = await node.topics.partition("t", 1)
            asked = [-(1 << 62), -9_000, -8_999, -7, -6, -3, -2, -1, 0, 6, 10]
            found.append([await partition.offset_at_time(each) for each in asked])
        assert found[0] == [
            (0, -9_000),
            (0, -9_000),
            (1, -7),
            (1, -7),
            (2, -3),
            (2, -3),
            (3, -1),
            (3, -1),
            (5, 5),
            (7, 9),
            None,
        ]
        assert found[1:] == found[:1] * (len(found) - 1)


async def test_a_batch_that_cannot_be_read_does_not_hide_times_behind_it() -> None:
    damaged = batch_that_does_not_decompress(time=7)
    async with cluster() as made:
        partition = await made.nodes[0].topics.partition("t", 1)
        for each in (batch_of(b"a", time=-9), damaged, batch_of(b"b", time=-7)):
            await partition.produce(each)
        await partition.produce(batch_of(b"c", time=9))
        for node in made.nodes:
            partition = await node.topics.partition("t", 1)
            asked = [-9, -8, -7, -6, 5, 8]
            found = [await partition.offset_at_time(each) for each in asked]
            assert found == [(0, -9), (2, -7), (2, -7), (3, 9), (3, 9), (3, 9)]


async def test_errors_of_another_process_arrive_as_themselves() -> None:
    async with cluster() as made:
        await made.nodes[0].topics.alter("t", {"max.message.bytes": "100"})
        await made.nodes[1].topics.refresh()
        partition = await made.nodes[0].topics.partition("t", 1)
        with pytest.raises(RecordBatchTooLargeError):
            await partition.produce(batch_of(b"x" * 1000))
        damaged = bytearray(batch_of(b"x"))
        damaged[-1] ^= 1
        with pytest.raises(InvalidRecordError):
            await partition.produce(damaged)


async def test_a_wait_at_the_end_of_anothers_partition_ends_with_the_next_record() -> None:
    async with cluster() as made:
        partition = await made.nodes[0].topics.partition("t", 1)
        assert await partition.fetch(0, 1000) == b""
        waiting = asyncio.ensure_future(partition.wait_behind(0))
        await asyncio.sleep(0.3)  # longer than one question lasts
        assert not waiting.done()
        await (await made.nodes[1].topics.own_partition("t", 1)).produce(batch_of(b"x"))
        await asyncio.wait_for(waiting, 60)
        assert [each.value for each in records_in(await partition.fetch(0, 1000))] == [b"x"]
        waiting = asyncio.ensure_future(partition.wait_behind(1))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert records_in(await partition.fetch(0, 1000))


async def test_a_read_that_is_too_slow_in_another_process_is_no_end_of_its_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its server answers without records; a reader of all that there is would stop there."""
    async with cluster() as made:
        partition = await made.nodes[0].topics.partition("t", 1)
        await partition.produce(batch_of(b"x"))
        left = make_reads_slow(monkeypatch, 1)
        with pytest.raises(PartitionUnavailableError):
            await partition.fetch(0, 1000)
        assert not left()
        assert [each.value for each in records_in(await partition.fetch(0, 1000))] == [b"x"]


async def test_a_reader_waits_where_another_process_has_no_last_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compaction by an older version left a gap there; else it asks again and again."""
    async with cluster() as made:
        partition = await made.nodes[0].topics.partition("t", 1)
        own = await made.nodes[1].topics.own_partition("t", 1)
        await own.produce(batch_of(b"gone"))
        fetch_all = own.fetch

        async def fetch_behind_the_gap(offset: int, max_bytes: int) -> bytes:
            return await fetch_all(max(offset, 1), max_bytes)

        monkeypatch.setattr(own, "fetch", fetch_behind_the_gap)
        assert await partition.fetch(0, 1000) == b""
        assert partition.high_watermark == 1
        waiting = asyncio.ensure_future(partition.wait_behind(0))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await own.produce(batch_of(b"x"))
        await asyncio.wait_for(waiting, 60)
        assert [each.value for each in records_in(await partition.fetch(0, 1000))] == [b"x"]


async def test_a_leader_that_moved_is_found_again() -> None:
    async with cluster() as made:
        one = made.nodes[0]
        made.move(made.segment(1), 1)
        await (await one.topics.partition("t", 1)).produce(batch_of(b"0"))
        # To this process and back, while it believes otherwise of others; then away from the one that it knows.
        made.move(made.segment(0), 1, known=False)
        assert (await one.topics.partition("t", 0)).high_watermark == 0
        assert one.process.refreshes > 0


async def test_a_partition_that_is_nowhere_is_unavailable_and_nothing_is_stored() -> None:
    async with cluster() as made:
        made.move(made.segment(1), None)
        with pytest.raises(PartitionUnavailableError) as refused:
            await made.nodes[0].topics.partition("t", 1)
        assert refused.value.stored is False


async def test_a_leader_to_which_connecting_took_a_while_is_given_up_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def connect_slowly(host: str, port: int, **bounds: Any) -> KafkaConnection:
        await asyncio.sleep(10 * QUICK.look_seconds)
        return await open_kafka_connection(host, port, **bounds)

    opening = "segmentstore.cluster.remote_partitions.open_kafka_connection"
    monkeypatch.setattr(opening, connect_slowly)
    async with cluster() as made:
        partition = await made.nodes[0].topics.partition("t", 1)
        made.store.segments.hold()
        with pytest.raises(PartitionUnavailableError):
            await asyncio.wait_for(partition.produce(batch_of(b"x")), 60)
        made.store.segments.let_go()


async def test_what_a_leader_does_not_answer_is_unknown_and_given_up() -> None:
    async with cluster() as made:
        partition = await made.nodes[0].topics.partition("t", 1)
        await (await made.nodes[1].topics.own_partition("t", 1)).produce(batch_of(b"0"))
        made.store.segments.hold()
        with pytest.raises(PartitionUnavailableError) as refused:
            await asyncio.wait_for(partition.produce(batch_of(b"x")), 60)
        assert refused.value.stored is None
        made.store.segments.let_go()
        assert not partition.is_open
        with pytest.raises(PartitionUnavailableError) as again:
            await partition.produce(batch_of(b"y"))
        assert again.value.stored is False
        assert (await made.nodes[0].topics.partition("t", 1)).high_watermark == 2


async def test_a_leader_is_not_given_up_because_the_asking_process_stood_still() -> None:
    """Its answer may be here by then, and nothing of it is read."""
    async with cluster() as made:
        partition = await made.nodes[0].topics.partition("t", 1)
        produced = partition.produce(batch_of(b"x"))
        time.sleep(2 * QUICK.silence_seconds)
        assert (await produced).base_offset == 0
