"""Goal: while a coordinator cannot answer, requests are told so by codes that all clients go on behind.

Each API has codes of its own that say "ask again", those that it has always had; another one ends a consumer.
"""

import pytest

from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.kafka_protocol.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopic,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tests.kafka.node import Client, running
from tests.reference.memory_tables import MemoryTables

OF_ONE = OffsetFetchRequest(
    group_id="g", topics=(OffsetFetchTopic(name="t", partition_indexes=(0,)),)
)


@pytest.mark.parametrize("which", ["catalogue", "offsets"])
async def test_offsets_that_cannot_be_read_are_asked_for_again_by_every_client(which: str) -> None:
    """With 15 Java's consumers before 3.9 end, and librdkafka's do not fetch the partition any more."""
    async with running() as node:
        client = await node.client()
        away = MemoryTables()
        away.stop()
        if which == "catalogue":
            node.topics._catalogue._tables = away
        else:
            node.groups._offsets._tables = away
        for version in (1, 2, 3):
            answer = await client.ask(OF_ONE, OffsetFetchResponse, version)
            (partition,) = answer.topics[0].partitions
            assert partition.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            if version > 1:
                assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        asked = OffsetFetchGroup(group_id="g", topics=OF_ONE.topics)
        for version in (8, 9):
            several = await client.ask(
                OffsetFetchRequest(groups=(asked,)), OffsetFetchResponse, version
            )
            (group,) = several.groups
            assert group.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def beat_of(client: Client) -> int:
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    return (await client.ask(request, HeartbeatResponse)).error_code


async def test_a_member_hears_of_a_coordinator_that_begins_anew_when_that_has_begun() -> None:
    """aiokafka's consumers end with 14 in SyncGroup and in Heartbeat, Java's in SyncGroup."""
    async with running() as node:
        client = await node.client()
        node.groups.lose()
        for version in (3, 5):
            request = SyncGroupRequest(
                group_id="g",
                generation_id=1,
                member_id="m",
                protocol_type="consumer",
                protocol_name="range",
                assignments=(),
            )
            synced = await client.ask(request, SyncGroupResponse, version)
            assert synced.error_code == ErrorCode.REBALANCE_IN_PROGRESS
        assert await beat_of(client) == ErrorCode.NONE
        await node.groups.close()
        await node.groups.start()
        assert await beat_of(client) == ErrorCode.REBALANCE_IN_PROGRESS
