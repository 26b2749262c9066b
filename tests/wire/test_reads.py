"""Readers: what is there, what waits, and how waiting ends."""

import asyncio
from dataclasses import replace

import pytest

from containers.container_settings import ContainerSettings, ReadIndexSettings
from segmentstore.codec.wire_protocol.command import Command, KeepAlive
from segmentstore.codec.wire_protocol.reads import (
    GetStreamSegmentInfo,
    ReadSegment,
    SegmentRead,
    StreamSegmentInfo,
)
from segmentstore.codec.wire_protocol.refusals import (
    ErrorMessage,
    NoSuchSegment,
    SegmentIsTruncated,
    WrongHost,
)
from segmentstore.codec.wire_protocol.segments import SegmentTruncated, TruncateSegment
from tests.containers.node import MemoryTiers
from tests.wire.conftest import SEGMENT
from tests.wire.node import QUICK, Node, running_node
from tests.wire.protocol_client import PATIENCE_SECONDS, ProtocolClient


def read(offset: int, *, length: int = 1 << 20, request_id: int = 5) -> ReadSegment:
    return ReadSegment(SEGMENT, offset, length, "", request_id)


async def wait_for_readers(node: Node, count: int) -> None:
    while node.server.statistics().waiting_reads != count:
        await asyncio.sleep(0)


async def test_bytes_are_read_from_the_requested_offset(node: Node, client: ProtocolClient) -> None:
    await node.append(SEGMENT, b"0123456789")
    reply = await client.ask(read(3, length=1 << 20), SegmentRead)
    assert reply == SegmentRead(SEGMENT, 3, True, False, b"3456789", 5)


async def test_a_read_that_does_not_reach_the_end_says_so(
    node: Node, client: ProtocolClient
) -> None:
    await node.append(SEGMENT, b"0123456789" * 10)
    reply = await client.ask(read(0, length=10), SegmentRead)
    assert reply == SegmentRead(SEGMENT, 0, False, False, b"0123456789", 5)


@pytest.mark.parametrize("length", [0, -1, 1, 8])
async def test_a_read_gives_at_least_eight_bytes_if_they_are_there(
    node: Node, client: ProtocolClient, length: int
) -> None:
    await node.append(SEGMENT, b"0123456789" * 10)
    assert len((await client.ask(read(0, length=length), SegmentRead)).data) == 8


async def test_a_read_gives_no_more_than_the_server_likes(
    node: Node, client: ProtocolClient
) -> None:
    await node.append(SEGMENT, bytes(3 << 20))
    reply = await client.ask(read(1, length=8 << 20), SegmentRead)
    assert 0 < len(reply.data) <= QUICK.read_bytes_max
    assert not reply.at_tail


async def test_a_segment_is_read_whole_piece_by_piece(node: Node, client: ProtocolClient) -> None:
    data = bytes(range(256)) * 12_000
    await node.append(SEGMENT, data)
    found = b""
    while len(found) < len(data):
        reply = await client.ask(read(len(found)), SegmentRead)
        assert reply.offset == len(found)
        found += reply.data
    assert found == data


async def test_a_read_at_the_end_waits_for_the_next_append(
    node: Node, client: ProtocolClient
) -> None:
    await node.append(SEGMENT, b"abc")
    client.send(read(3))
    await wait_for_readers(node, 1)
    await node.append(SEGMENT, b"def")
    assert await client.receive() == SegmentRead(SEGMENT, 3, True, False, b"def", 5)
    await wait_for_readers(node, 0)


async def test_a_read_beyond_the_end_waits_until_its_offset_exists(
    node: Node, client: ProtocolClient
) -> None:
    client.send(read(5))
    await wait_for_readers(node, 1)
    await node.append(SEGMENT, b"abc")
    client.send(KeepAlive())
    assert await client.receive() == KeepAlive()
    await node.append(SEGMENT, b"defgh")
    assert await client.receive() == SegmentRead(SEGMENT, 5, True, False, b"fgh", 5)


async def test_waiting_reads_hold_up_nothing_else_on_their_connection(
    node: Node, client: ProtocolClient
) -> None:
    for request_id in range(20):
        client.send(read(0, request_id=request_id))
    client.send(GetStreamSegmentInfo(99, SEGMENT, ""))
    assert (await client.expect(StreamSegmentInfo)).request_id == 99
    await node.append(SEGMENT, b"x")
    answers = [await client.expect(SegmentRead) for _ in range(20)]
    assert sorted(answer.request_id for answer in answers) == list(range(20))


async def test_a_read_that_waits_too_long_is_answered_without_data() -> None:
    async with running_node(replace(QUICK, long_poll_seconds=0.05)) as node:
        await node.container.create(SEGMENT)
        await node.append(SEGMENT, b"abc")
        client = await node.client()
        reply = await client.ask(read(3), SegmentRead)
        assert reply == SegmentRead(SEGMENT, 3, True, False, b"", 5)
        assert node.server.statistics().waiting_reads == 0


async def test_a_seal_ends_those_who_wait_and_those_who_come_later(
    node: Node, client: ProtocolClient
) -> None:
    await node.append(SEGMENT, b"abc")
    client.send(read(3))
    await wait_for_readers(node, 1)
    await node.container.seal(SEGMENT)
    ended = SegmentRead(SEGMENT, 3, False, True, b"", 5)
    assert await client.receive() == ended
    assert await client.ask(read(3), SegmentRead) == ended


async def test_a_read_past_the_end_of_a_sealed_segment_is_refused(
    node: Node, client: ProtocolClient
) -> None:
    await node.append(SEGMENT, b"abc")
    client.send(read(7))
    await wait_for_readers(node, 1)
    await node.container.seal(SEGMENT)
    reply = await client.expect(ErrorMessage)
    assert (reply.request_id, reply.error_code) == (5, 0)


async def test_a_connection_is_read_again_when_the_reads_that_filled_it_are_refused() -> None:
    async with running_node(replace(QUICK, reads_per_connection_max=2)) as node:
        await node.container.create(SEGMENT)
        client = await node.client()
        client.send(read(7, request_id=1), read(8, request_id=2))
        await wait_for_readers(node, 2)
        client.send(KeepAlive())
        await node.container.seal(SEGMENT)
        refused = [await client.expect(ErrorMessage) for _ in range(2)]
        assert sorted(each.request_id for each in refused) == [1, 2]
        assert await client.receive() == KeepAlive()


async def test_a_negative_offset_is_refused(client: ProtocolClient) -> None:
    reply = await client.ask(read(-1), ErrorMessage)
    assert (reply.request_id, reply.error_code) == (5, 0)


async def test_bytes_that_were_truncated_are_answered_with_the_start(
    node: Node, client: ProtocolClient
) -> None:
    await node.append(SEGMENT, b"0123456789")
    await client.ask(TruncateSegment(1, SEGMENT, 4, ""), SegmentTruncated)
    reply = await client.ask(read(2), SegmentIsTruncated)
    assert (reply.request_id, reply.start_offset, reply.offset) == (5, 4, 2)
    assert (await client.ask(read(4), SegmentRead)).data == b"456789"


async def test_a_missing_segment_is_answered_with_the_requested_offset(
    client: ProtocolClient,
) -> None:
    reply = await client.ask(ReadSegment("a/b/1", 17, 10, "", 5), NoSuchSegment)
    assert (reply.request_id, reply.segment, reply.offset) == (5, "a/b/1", 17)


async def test_deleting_a_segment_ends_those_who_wait(node: Node, client: ProtocolClient) -> None:
    await node.append(SEGMENT, b"abc")
    client.send(read(3))
    await wait_for_readers(node, 1)
    await node.container.delete(SEGMENT)
    reply = await client.expect(NoSuchSegment)
    assert (reply.request_id, reply.offset) == (5, 3)


async def test_a_segment_of_the_same_name_is_read_and_not_the_one_before(
    node: Node, client: ProtocolClient
) -> None:
    await node.append(SEGMENT, b"old")
    await client.ask(read(0), SegmentRead)
    await node.container.delete(SEGMENT)
    await node.container.create(SEGMENT)
    await node.append(SEGMENT, b"new!")
    assert (await client.ask(read(0), SegmentRead)).data == b"new!"


async def test_a_container_that_stops_sends_its_readers_away(
    node: Node, client: ProtocolClient
) -> None:
    await node.append(SEGMENT, b"abc")
    client.send(read(3))
    await wait_for_readers(node, 1)
    await node.container.close()
    assert (await client.expect(WrongHost)).request_id == 5
    assert (await client.ask(read(0, request_id=6), WrongHost)).request_id == 6


async def test_h58_a_reader_that_goes_away_waits_no_more(
    node: Node, client: ProtocolClient
) -> None:
    for request_id in range(5):
        client.send(read(0, request_id=request_id))
    await wait_for_readers(node, 5)
    waiters = node.container._recovered.read_index._waiter_limit.count
    assert waiters == 5
    client.abort()
    await wait_for_readers(node, 0)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while node.container._recovered.read_index._waiter_limit.count:
            await asyncio.sleep(0.001)


async def test_h58_a_reader_without_room_among_the_waiters_is_answered_all_the_same() -> None:
    settings = ContainerSettings(read_index=ReadIndexSettings(waiters_max=1))
    async with running_node(
        replace(QUICK, waiter_retry_seconds=0.01), container_settings=settings
    ) as node:
        await node.container.create(SEGMENT)
        client = await node.client()
        client.send(read(0, request_id=1), read(0, request_id=2))
        await wait_for_readers(node, 2)
        await node.append(SEGMENT, b"abc")
        answers = [await client.expect(SegmentRead) for _ in range(2)]
        assert sorted(answer.request_id for answer in answers) == [1, 2]
        assert {answer.data for answer in answers} == {b"abc"}


async def test_cold_bytes_are_read_from_tier_2_a_few_at_a_time() -> None:
    tiers = MemoryTiers()
    data = bytes(range(256)) * 8192
    async with running_node(tiers=tiers) as node:
        await node.container.create(SEGMENT)
        await node.append(SEGMENT, data)
        await node.container.flush()
    async with running_node(replace(QUICK, cold_reads_per_connection_max=2), tiers=tiers) as node:
        client = await node.client()
        offsets = list(range(0, len(data), 100_000))
        for offset in offsets:
            client.send(read(offset, length=50_000, request_id=offset))
        for _ in offsets:
            reply: Command = await client.receive()
            assert isinstance(reply, SegmentRead), reply
            offset = reply.request_id
            assert reply.offset == offset
            assert reply.data
            assert data[offset:].startswith(reply.data)


async def test_a_slow_reader_holds_up_its_own_reads_only(node: Node) -> None:
    data = bytes(3 << 20)
    await node.append(SEGMENT, data)
    slow, quick = await node.client(), await node.client()
    slow.writer.transport.pause_reading()  # type: ignore[attr-defined] # a socket's transport has it
    count = 60
    for request_id in range(count):
        slow.send(read(0, request_id=request_id))
    while node.server.statistics().reads < count:
        await asyncio.sleep(0.001)
    served = node.server.statistics().read_bytes
    assert served < count << 20, "the server does not serve what nobody takes"
    assert (await quick.ask(read(0), SegmentRead)).data == bytes(1 << 20)
    await quick.ask(KeepAlive(), KeepAlive)
    slow.writer.transport.resume_reading()  # type: ignore[attr-defined] # as above
    answers = [await slow.expect(SegmentRead) for _ in range(count)]
    assert [answer.request_id for answer in answers] == list(range(count))


async def test_readers_woken_together_are_not_all_served_to_a_client_that_takes_nothing() -> None:
    async with running_node(replace(QUICK, send_buffer_bytes_max=1 << 20)) as node:
        await node.container.create(SEGMENT)
        client = await node.client()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined] # a socket's transport has it
        count = 60
        for request_id in range(count):
            client.send(read(0, request_id=request_id))
        await wait_for_readers(node, count)
        await node.append(SEGMENT, bytes(1 << 20))
        await wait_for_readers(node, 0)
        assert node.server.statistics().read_bytes < count << 20
        client.writer.transport.resume_reading()  # type: ignore[attr-defined] # as above
        answers = [await client.expect(SegmentRead) for _ in range(count)]
        assert sorted(answer.request_id for answer in answers) == list(range(count))
