"""What all connections hold together has a bound; at it each is read by its share, and none waits for ever.

The servers' ticks do not come here: a test that needs one makes it, so no pace of a machine decides.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from segmentstore.codec.wire_protocol.appends import AppendBlock, AppendBlockEnd, DataAppended
from segmentstore.codec.wire_protocol.command import KeepAlive
from segmentstore.codec.wire_protocol.reads import ReadSegment, SegmentRead
from segmentstore.wire.connection import WireConnection
from segmentstore.wire.memory_bound import MemoryBound
from segmentstore.wire.settings import WireSettings
from tests.wire.conftest import SEGMENT
from tests.wire.node import QUICK, Node, memory_bound, running_node
from tests.wire.protocol_client import OUR_HELLO, ProtocolClient, event

KIB = 1 << 10
BOUND = 1 << 20
NO_TICKS = replace(
    QUICK,
    tick_seconds=3600.0,
    held_seconds_max=3600.0,
    frame_silence_seconds_max=3600.0 * 1000,
    held_bytes_max=BOUND,
)
CLIENTS = 12
READ_IN_ONE_GO = NO_TICKS.receive_buffer_busy_bytes


@asynccontextmanager
async def node_with_clients(
    count: int = CLIENTS, settings: WireSettings = NO_TICKS
) -> AsyncIterator[tuple[Node, list[ProtocolClient]]]:
    """Each with a writer of its own on a segment of its own."""
    async with running_node(settings) as node:
        clients = [await node.client() for _ in range(count)]
        for number, client in enumerate(clients):
            await node.container.create(segment_of(number))
            await client.set_up(writer_of(number), segment_of(number))
        yield node, clients
        node.log.let_go()
        node.server.check()


def segment_of(number: int) -> str:
    return f"scope/stream/{number + 1}.#epoch.0"


def writer_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


def connections_of(node: Node) -> Sequence[WireConnection]:
    return list(node.server._connections)


def memory_of(node: Node) -> MemoryBound:
    return node.server._memory


def tick(node: Node) -> None:
    """As the server does it."""
    memory_of(node).tick()
    for connection in connections_of(node):
        node.server._tick(connection, asyncio.get_running_loop().time())


async def held_within(node: Node, bytes_max: int, *, until_paused: int) -> None:
    """Until so many connections are not read; never is more held."""
    while sum(each._paused for each in connections_of(node)) < until_paused:
        assert node.server.statistics().held_bytes <= bytes_max, node.server.statistics()
        await asyncio.sleep(0)
    assert node.server.statistics().held_bytes <= bytes_max, node.server.statistics()


async def until_left(node: Node, connections: int) -> None:
    """One that is not read does not hear that its client is gone: a tick finds that it holds less, and reads it."""
    while node.server.statistics().connections > connections:
        tick(node)
        await asyncio.sleep(0.001)


async def until_nothing_is_held(node: Node) -> None:
    """What is left of receive buffers is given back by ticks."""
    while node.server.statistics().held_bytes:
        tick(node)
        await asyncio.sleep(0.001)


async def test_h35_appends_of_all_connections_together_are_bounded() -> None:
    async with node_with_clients() as (node, clients):
        idle = await node.client()
        node.log.hold()
        block = event(bytes(100_000))
        for number, client in enumerate(clients):
            for last in range(1, 41):
                client.append(writer_of(number), block, last)
        # Each of them alone may have 8 MiB, and sends 4.
        await held_within(node, 2 * BOUND + CLIENTS * READ_IN_ONE_GO, until_paused=CLIENTS)
        assert node.server.statistics().bound_reached == 1
        # One that holds nothing is heard.
        await idle.ask(KeepAlive(), KeepAlive)
        node.log.let_go()
        for client in clients:
            while (told := await client.expect(DataAppended)).event_number < 40:
                pass
            assert told.segment_length == 40 * len(block)
        await until_nothing_is_held(node)
        assert not any(each._paused for each in connections_of(node))
        assert node.server.statistics().connections_failed == 0


@pytest.mark.parametrize("shape", ["block and end", "end alone"])
async def test_h35_parts_of_frames_are_bounded_and_each_frame_is_completed(shape: str) -> None:
    large = event(bytes(900_000))
    length = len(large)
    async with node_with_clients() as (node, clients):
        frames = [
            AppendBlock(writer_of(number), large).encode()
            + AppendBlockEnd(writer_of(number), length, b"", 1, 1, 0).encode()
            if shape == "block and end"
            else AppendBlockEnd(writer_of(number), length, large, 1, 1, 0).encode()
            for number in range(CLIENTS)
        ]
        for client, frame in zip(clients, frames, strict=True):
            client.send_bytes(frame[:700_000])
        # One frame that has its turn may be longer than its part of the bound.
        bytes_max = 2 * BOUND + length + CLIENTS * READ_IN_ONE_GO // 2
        assert bytes_max < CLIENTS * 700_000
        await held_within(node, bytes_max, until_paused=CLIENTS - 1)
        assert node.server.statistics().appends == 0
        waiting = memory_of(node).waiting_count
        assert waiting == CLIENTS - 1
        acknowledged = [asyncio.ensure_future(client.expect(DataAppended)) for client in clients]
        for client, frame in zip(clients, frames, strict=True):
            client.send_bytes(frame[700_000:])
        while not all(each.done() for each in acknowledged):
            assert node.server.statistics().held_bytes <= bytes_max, node.server.statistics()
            await asyncio.sleep(0)
        assert [each.result().segment_length for each in acknowledged] == [length] * CLIENTS
        await until_nothing_is_held(node)
        assert node.server.statistics().connections_failed == 0


async def test_h35_a_frame_that_is_not_completed_in_its_turn_ends_its_connection_alone() -> None:
    large = event(bytes(900_000))
    async with node_with_clients(2) as (node, clients):
        frames = [
            AppendBlockEnd(writer_of(number), len(large), large, 1, 1, 0).encode()
            for number in range(2)
        ]
        for client, frame in zip(clients, frames, strict=True):
            client.send_bytes(frame[:700_000])
        memory = memory_of(node)
        while memory.waiting_count < 1:
            await asyncio.sleep(0)
        (having,) = memory._turns
        stuck = connections_of(node).index(having)
        # It moves, as slow as it can.
        clients[stuck].send_bytes(frames[stuck][700_000:700_001])
        for _ in range(memory.ticks_max):
            tick(node)
        assert node.server.statistics().connections_given_up == 0
        tick(node)
        assert await clients[stuck].expect_close() == []
        assert node.server.statistics().connections_given_up == 1
        other = 1 - stuck
        clients[other].send_bytes(frames[other][700_000:])
        assert (await clients[other].expect(DataAppended)).segment_length == len(large)
        again = await node.client()
        assert (await again.set_up(writer_of(stuck), segment_of(stuck))).last_event_number < 0
        await until_nothing_is_held(node)


async def test_h35_frames_that_are_not_completed_last_while_there_is_room_for_all() -> None:
    """The bound judges no one that nothing waits for."""
    large = event(bytes(900_000))
    async with node_with_clients(1) as (node, (client,)):
        frame = AppendBlockEnd(writer_of(0), len(large), large, 1, 1, 0).encode()
        client.send_bytes(frame[:700_000])
        while node.server.statistics().held_bytes < 700_000:
            await asyncio.sleep(0)
        for _ in range(3 * memory_of(node).ticks_max):
            tick(node)
        client.send_bytes(frame[700_000:])
        await client.expect(DataAppended)


async def deaf_client(node: Node) -> ProtocolClient:
    """Takes little more than nothing, until its transport reads again; and the system keeps little for it."""
    known = set(connections_of(node))
    connected = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * KIB)
    connected.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connected, node.server.address)
    client = ProtocolClient(*await asyncio.open_connection(sock=connected))
    client.send(OUR_HELLO)
    await client.receive()
    (connection,) = set(connections_of(node)) - known
    ours = connection._transport.get_extra_info("socket")
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * KIB)
    client.writer.transport.pause_reading()  # type: ignore[attr-defined] # a socket's transport has it
    return client


async def test_h35_answers_that_clients_do_not_take_are_bounded_and_end_their_connections() -> None:
    content = bytes(1 << 20)
    async with node_with_clients(1) as (node, (writer,)):
        await node.container.create(SEGMENT)
        await node.append(SEGMENT, content)
        deaf = [await deaf_client(node) for _ in range(4)]
        for client in deaf:
            for request_id in range(8):
                client.send(ReadSegment(SEGMENT, 0, len(content), "", request_id))
        memory = memory_of(node)
        while sum(each._paused for each in connections_of(node)) < 4:
            # One answer of full length may come to a client before it is full.
            assert node.server.statistics().held_bytes <= 2 * BOUND + 4 * len(content)
            await asyncio.sleep(0)
        # Others go on.
        writer.append(writer_of(0), event(b"abc"), 1)
        assert (await writer.expect(DataAppended)).event_number == 1
        assert memory.is_full
        for _ in range(memory.ticks_max + 2):
            tick(node)
        statistics = node.server.statistics()
        assert statistics.connections_given_up == 4
        writer.append(writer_of(0), event(b"def"), 2)
        assert (await writer.expect(DataAppended)).event_number == 2
        for client in deaf:
            client.abort()
        await until_left(node, 1)
        await until_nothing_is_held(node)
        assert not memory.is_full


async def test_h35_a_client_that_listens_late_is_told_all_that_it_asked_for() -> None:
    content = bytes(range(256)) * (4 * KIB)
    async with node_with_clients(1) as (node, _):
        await node.container.create(SEGMENT)
        await node.append(SEGMENT, content)
        client = await deaf_client(node)
        for request_id in range(8):
            client.send(ReadSegment(SEGMENT, 0, len(content), "", request_id))
        memory = memory_of(node)
        while not memory.is_full:
            await asyncio.sleep(0)
        client.writer.transport.resume_reading()  # type: ignore[attr-defined] # as above
        told = set[int]()
        while len(told) < 8:
            ticking = asyncio.get_running_loop().call_later(0.01, tick, node)
            reply = await client.expect(SegmentRead)
            ticking.cancel()
            assert reply.data == content[: len(reply.data)]
            assert reply.data
            told.add(reply.request_id)
        client.abort()
        await until_left(node, 1)
        await until_nothing_is_held(node)


async def test_h35_connections_that_go_give_back_what_they_held() -> None:
    large = event(bytes(900_000))
    async with node_with_clients(3) as (node, clients):
        node.log.hold()
        clients[0].append(writer_of(0), event(bytes(50_000)), 1)
        # Behind the append in its segment, and without an answer as long as that.
        request = clients[0].next_request()
        clients[0].send(ReadSegment(segment_of(0), 0, 100, "", request))
        frame = AppendBlockEnd(writer_of(1), len(large), large, 1, 1, 0).encode()
        clients[1].send_bytes(frame[:800_000])
        clients[2].send_bytes(frame[:8])
        while node.server.statistics().held_bytes < 850_000:
            await asyncio.sleep(0)
        for client in clients:
            client.abort()
        while node.server.statistics().connections:
            await asyncio.sleep(0)
        # The append goes on, and is held.
        assert 50_000 < node.server.statistics().held_bytes < 60_000
        node.log.let_go()
        while node.server.statistics().held_bytes:
            await asyncio.sleep(0)


class Waiting:
    """A connection with a part of a frame."""

    def __init__(self, memory: MemoryBound, awaited: int) -> None:
        self.awaited_frame_bytes = awaited
        self._memory = memory
        self.is_read = False
        self.reasons: list[str] = []
        memory.join(self)

    def look_at_memory(self) -> None:
        self.is_read = not self._memory.is_full or self._memory.has_turn(self)

    def give_up(self, reason: str) -> None:
        self.reasons.append(reason)
        self._memory.leave(self)


async def settled() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_turns_come_in_the_order_in_which_connections_were_stopped() -> None:
    memory = memory_bound(bytes_max=100)
    first, second, third = (Waiting(memory, 30) for _ in range(3))
    memory.change(101)
    for each in (second, first, third):
        each.look_at_memory()
    await settled()
    assert (second.is_read, first.is_read, third.is_read) == (True, False, False)
    memory.needs_no_turn(second)
    await settled()
    assert (first.is_read, third.is_read) == (True, False)
    memory.leave(first)
    await settled()
    assert third.is_read
    memory.check()


async def test_frames_share_a_turn_while_they_are_short() -> None:
    memory = memory_bound(bytes_max=100)
    waiting = [Waiting(memory, 20) for _ in range(4)]
    memory.change(101)
    await settled()
    assert [each.is_read for each in waiting] == [True, True, False, False]
    memory.change(-51)
    assert not memory.is_full
    await settled()
    assert [each.is_read for each in waiting] == [True] * 4
    assert memory.waiting_count == 0
    memory.check()


async def test_a_frame_that_turns_out_to_be_long_waits_for_a_turn_again() -> None:
    memory = memory_bound(bytes_max=100)
    short, growing, behind = Waiting(memory, 20), Waiting(memory, 8), Waiting(memory, 45)
    memory.change(101)
    await settled()
    assert (short.is_read, growing.is_read, behind.is_read) == (True, True, False)
    growing.awaited_frame_bytes = 49
    growing.look_at_memory()
    assert [growing.is_read] == [False]
    memory.needs_no_turn(short)
    await settled()
    assert (behind.is_read, growing.is_read) == (True, False)
    memory.needs_no_turn(behind)
    await settled()
    assert [growing.is_read] == [True]
    # Alone it may be as long as it is.
    growing.awaited_frame_bytes = 1000
    growing.look_at_memory()
    assert [growing.is_read] == [True]
    memory.check()


async def test_ten_thousand_that_wait_have_their_turns() -> None:
    memory = memory_bound(bytes_max=100)
    waiting = [Waiting(memory, 50) for _ in range(10_000)]
    memory.change(101)
    await settled()
    for each in waiting:
        assert each.is_read
        each.is_read = False
        memory.needs_no_turn(each)
        await settled()
    memory.check()


async def test_a_turn_ends_after_its_ticks_and_the_next_begins() -> None:
    memory = memory_bound(bytes_max=100)
    first, second = Waiting(memory, 50), Waiting(memory, 50)
    memory.change(101)
    await settled()
    memory.tick()
    assert first.reasons == []
    memory.tick()
    assert len(first.reasons) == 1
    await settled()
    assert second.is_read
    memory.tick()
    assert second.reasons == []
    memory.check()
