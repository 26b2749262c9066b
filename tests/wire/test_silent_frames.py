"""A part of a frame and then silence ends the connection; slow clients, idle ones and those that we do not read stay.

The servers' ticks do not come here: a test makes those that it needs, so no pace of a machine decides.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from segmentstore.codec.wire_protocol.appends import AppendBlock, AppendBlockEnd, DataAppended
from segmentstore.codec.wire_protocol.command import KeepAlive
from segmentstore.wire.connection import WireConnection
from tests.wire.conftest import SEGMENT, WRITER
from tests.wire.node import QUICK, Node, running_node
from tests.wire.protocol_client import OUR_HELLO, ProtocolClient, event

SILENT_TICKS = 3
BY_HAND = replace(
    QUICK,
    tick_seconds=3600.0,
    frame_silence_seconds_max=SILENT_TICKS * 3600.0,
    unacked_bytes_max=1 << 20,
)
EVENT = event(bytes(200_000))
END_ALONE = AppendBlockEnd(WRITER, len(EVENT), EVENT, 1, 1, 7).encode()
BLOCK = AppendBlock(WRITER, EVENT).encode()
END_OF_BLOCK = AppendBlockEnd(WRITER, len(EVENT), b"", 1, 1, 7).encode()


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with running_node(BY_HAND) as running:
        await running.container.create(SEGMENT)
        yield running
        running.server.check()


def connection_of(node: Node) -> WireConnection:
    (connection,) = node.server._connections
    return connection


def tick(node: Node) -> None:
    """As the server does it."""
    node.server._tick(connection_of(node), asyncio.get_running_loop().time())


async def until_received(node: Node, byte_count: int) -> None:
    """Of a frame of which a part is here."""
    incoming = connection_of(node)._incoming
    while incoming.end - incoming.start < byte_count:
        await asyncio.sleep(0)


async def writer_on(node: Node) -> ProtocolClient:
    client = await node.client()
    await client.set_up(WRITER, SEGMENT)
    return client


@pytest.mark.parametrize(
    "part",
    [END_ALONE[:3], END_ALONE[:8], END_ALONE[:150_000], BLOCK, BLOCK + END_OF_BLOCK[:-1]],
    ids=["part of a header", "header", "part of a frame", "block without end", "part of its end"],
)
async def test_a_part_of_a_frame_and_silence_end_the_connection(
    node: Node, part: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    client = await writer_on(node)
    tick(node)
    client.send_bytes(part)
    await until_received(node, len(part))
    # In the first of these something was received.
    for _ in range(SILENT_TICKS):
        tick(node)
    assert node.server.statistics().connections_silent == 0
    tick(node)
    assert await client.expect_close() == []
    statistics = node.server.statistics()
    assert (statistics.connections_silent, statistics.connections_failed) == (1, 1)
    assert statistics.held_bytes == 0
    assert "nothing followed a part of a frame" in caplog.text
    assert node.server.statistics().appends == 0


async def test_a_part_of_the_first_frame_counts_as_well(node: Node) -> None:
    reader, writer = await asyncio.open_connection(*node.server.address)
    writer.write(OUR_HELLO.encode()[:-1])
    while not node.server._connections:
        await asyncio.sleep(0)
    await until_received(node, len(OUR_HELLO.encode()) - 1)
    for _ in range(SILENT_TICKS + 1):
        tick(node)
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


async def test_a_frame_that_comes_slowly_is_waited_for(node: Node) -> None:
    client = await writer_on(node)
    client.send_bytes(END_ALONE[:1000])
    for length in range(1000, 1010):
        await until_received(node, length)
        for _ in range(SILENT_TICKS):
            tick(node)
        client.send_bytes(END_ALONE[length : length + 1])
    client.send_bytes(END_ALONE[1010:])
    assert (await client.expect(DataAppended)).segment_length == len(EVENT)
    assert node.server.statistics().connections_failed == 0


async def test_a_connection_between_two_frames_may_be_silent(node: Node) -> None:
    client = await writer_on(node)
    for number in range(1, 4):
        client.append(WRITER, EVENT, number)
        await client.expect(DataAppended)
        for _ in range(5 * SILENT_TICKS):
            tick(node)
    await client.ask(KeepAlive(), KeepAlive)
    assert node.server.statistics().connections_failed == 0


async def test_a_connection_that_is_not_read_is_not_silent(node: Node) -> None:
    """It has sent the rest, which waits in its socket."""
    client = await writer_on(node)
    node.log.hold()
    for number in range(1, 21):
        client.append(WRITER, EVENT, number)
    while not connection_of(node)._paused:
        await asyncio.sleep(0)
    for _ in range(5 * SILENT_TICKS):
        tick(node)
    node.log.let_go()
    while (await client.expect(DataAppended)).event_number < 20:
        pass
    assert node.server.statistics().connections_failed == 0
