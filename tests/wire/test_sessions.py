import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentstore.codec.wire_protocol.appends import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    DataAppended,
    SetupAppend,
)
from segmentstore.codec.wire_protocol.command import (
    FRAME_HEADER,
    Command,
    Hello,
    KeepAlive,
    Padding,
)
from segmentstore.codec.wire_protocol.reads import (
    GetStreamSegmentInfo,
    ReadSegment,
    SegmentRead,
    StreamSegmentInfo,
)
from segmentstore.wire.connection import WireConnection
from tests.wire.conftest import SEGMENT, WRITER
from tests.wire.node import QUICK, Node, running_node
from tests.wire.protocol_client import PATIENCE_SECONDS, ProtocolClient, event


@pytest.mark.parametrize("theirs", [Hello(16, 5), Hello(17, 5), Hello(15, 5), Hello(5, 1)])
async def test_the_first_frame_of_the_server_is_its_hello(node: Node, theirs: Hello) -> None:
    client = await ProtocolClient.connect(node.server.address, hello=None)
    client.send(theirs, GetStreamSegmentInfo(1, SEGMENT, ""))
    assert await client.receive() == Hello(16, 5)
    assert (await client.expect(StreamSegmentInfo)).request_id == 1
    await client.close()


@pytest.mark.parametrize("theirs", [Hello(20, 17), Hello(4, 1), Hello(5, 16)])
async def test_a_client_without_a_common_version_is_answered_and_disconnected(
    node: Node, theirs: Hello
) -> None:
    client = await ProtocolClient.connect(node.server.address, hello=None)
    client.send(theirs)
    assert await client.expect_close() == [Hello(16, 5)]


async def test_a_keep_alive_comes_back(client: ProtocolClient) -> None:
    assert await client.ask(KeepAlive(), KeepAlive) == KeepAlive()


async def test_a_client_that_does_not_greet_is_disconnected(node: Node) -> None:
    client = await ProtocolClient.connect(node.server.address, hello=None)
    client.send(KeepAlive())
    assert await client.expect_close() == []
    assert node.server.statistics().connections_failed == 1


@pytest.mark.parametrize(
    "content",
    [
        FRAME_HEADER.pack(4, -1),
        FRAME_HEADER.pack(4, 0x00FFFFFF - 7),
        FRAME_HEADER.pack(4, 0x7FFFFFFF),
        FRAME_HEADER.pack(999, 0),
        FRAME_HEADER.pack(4, 3) + b"abc",
        FRAME_HEADER.pack(1, 10) + bytes(10),
        SegmentRead(SEGMENT, 0, True, False, b"", 1).encode(),
        AppendSetup(1, SEGMENT, WRITER, 0).encode(),
        Padding(bytes(8)).encode(),
        AppendBlock(WRITER, b"abc").encode() + KeepAlive().encode(),
    ],
    ids=lambda content: content[:12].hex(),
)
async def test_a_frame_that_makes_no_sense_ends_its_connection_and_no_other(
    node: Node, client: ProtocolClient, content: bytes
) -> None:
    hostile = await node.client()
    hostile.send_bytes(content)
    assert await hostile.expect_close() == []
    assert node.server.statistics().connections_failed == 1
    await client.ask(KeepAlive(), KeepAlive)


async def test_what_came_before_a_bad_frame_is_answered(client: ProtocolClient) -> None:
    client.send_bytes(KeepAlive().encode() + FRAME_HEADER.pack(999, 0) + KeepAlive().encode())
    assert await client.expect_close() == [KeepAlive()]


async def test_a_length_alone_costs_no_memory(node: Node, client: ProtocolClient) -> None:
    client.send_bytes(FRAME_HEADER.pack(4, 0x00FFFFFF - 8) + bytes(1000))
    await asyncio.sleep(0.02)
    other = await node.client()
    await other.ask(KeepAlive(), KeepAlive)
    (connection, *_) = node.server._connections
    assert connection._incoming.capacity <= 2 * QUICK.receive_buffer_bytes


async def test_a_block_and_its_end_are_together_no_longer_than_a_frame(
    client: ProtocolClient,
) -> None:
    client.send_bytes(AppendBlock(WRITER, bytes(9 << 20)).encode() + FRAME_HEADER.pack(4, 8 << 20))
    assert await client.expect_close() == []


async def test_one_connection_too_many_is_dropped_and_room_comes_back() -> None:
    async with running_node(replace(QUICK, connections_max=2)) as node:
        first, second = await node.client(), await node.client()
        third = await ProtocolClient.connect(node.server.address, hello=None)
        assert await third.expect_close() == []
        assert node.server.statistics().connections_refused == 1
        await first.close()
        await second.ask(KeepAlive(), KeepAlive)
        while node.server.statistics().connections > 1:
            await asyncio.sleep(0)
        await (await node.client()).ask(KeepAlive(), KeepAlive)


async def test_closing_the_server_ends_connections_in_the_middle_of_everything() -> None:
    async with running_node() as node:
        await node.container.create(SEGMENT)
        client = await node.client()
        await client.set_up(WRITER, SEGMENT)
        node.log.hold()
        client.append(WRITER, b"abc", 1)
        client.send(SetupAppend(5, bytes(16), SEGMENT, ""))
        while node.server.statistics().appends == 0:
            await asyncio.sleep(0)
        await node.server.close()
        assert await client.expect_close() == []
        node.log.let_go()


async def test_only_a_connection_with_a_part_of_a_frame_has_memory_of_its_own(
    node: Node, client: ProtocolClient
) -> None:
    (connection,) = node.server._connections
    await client.ask(KeepAlive(), KeepAlive)
    assert connection._incoming.capacity == 0
    keep_alive = KeepAlive().encode()
    client.send_bytes(keep_alive + keep_alive[:5])
    await client.expect(KeepAlive)
    assert connection._incoming.capacity > 0
    client.send_bytes(keep_alive[5:])
    await client.expect(KeepAlive)
    while connection._incoming.capacity:
        await asyncio.sleep(0.01)
    await client.ask(KeepAlive(), KeepAlive)


async def test_parts_of_frames_of_two_connections_do_not_meet(node: Node) -> None:
    clients = [await node.client(), await node.client()]
    segments = ["scope/stream/1.#epoch.0", "scope/stream/2.#epoch.0"]
    events = [event(b"a" * 100), event(b"b" * 100)]
    frames: list[bytes] = []
    for client, segment, data in zip(clients, segments, events, strict=True):
        await node.container.create(segment)
        await client.set_up(WRITER, segment)
        block = AppendBlock(WRITER, data).encode()
        frames.append(block + AppendBlockEnd(WRITER, len(data), b"", 1, 1, 1).encode())
    for begin in range(0, len(frames[0]), 7):
        for client, frame in zip(clients, frames, strict=True):
            client.send_bytes(frame[begin : begin + 7])
            await client.writer.drain()
            await asyncio.sleep(0)
    for client, segment, data in zip(clients, segments, events, strict=True):
        await client.expect(DataAppended)
        assert await node.content(segment) == data


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_behind_a_hello_harm_nobody(content: bytes) -> None:
    async def scenario() -> None:
        async with running_node() as node:
            witness = await node.client()
            hostile = await node.client()
            hostile.send_bytes(content)
            hostile.writer.write_eof()
            await hostile.expect_close()
            await witness.ask(KeepAlive(), KeepAlive)

    asyncio.run(scenario())


def frames_of(*commands: Command) -> bytes:
    return b"".join(command.encode() for command in commands)


async def test_frames_may_arrive_a_byte_at_a_time(client: ProtocolClient) -> None:
    content = frames_of(KeepAlive(), GetStreamSegmentInfo(3, SEGMENT, ""), KeepAlive())
    for position in range(len(content)):
        client.send_bytes(content[position : position + 1])
        await client.writer.drain()
        await asyncio.sleep(0)
    replies = [type(await client.receive()) for _ in range(3)]
    assert sorted(replies, key=str) == sorted([KeepAlive, KeepAlive, StreamSegmentInfo], key=str)


async def test_a_fault_in_the_tick_of_one_connection_ends_that_one_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running_node(replace(QUICK, pin_idle_seconds=0.0)) as node:
        await node.container.create(SEGMENT)
        first, second = await node.client(), await node.client()
        real = WireConnection.tick
        broken: list[WireConnection] = []

        def tick(connection: WireConnection, now: float) -> None:
            if not broken:
                broken.append(connection)
            if connection is broken[0]:
                raise ZeroDivisionError
            real(connection, now)

        monkeypatch.setattr(WireConnection, "tick", tick)
        await first.expect_close()
        await node.append(SEGMENT, b"abc")
        reply = await second.ask(ReadSegment(SEGMENT, 0, 3, "", 1), SegmentRead)
        assert bytes(reply.data) == b"abc"
        # Ticks go on: what is idle is let go of.
        async with asyncio.timeout(PATIENCE_SECONDS):
            while node.server.statistics().pinned_segments:
                await asyncio.sleep(0.01)
        assert node.server.statistics().connections == 1
