"""Too much under way: the socket of that connection is left alone, and nothing else is."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from segmentstore.codec.wire_protocol.appends import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    DataAppended,
    SetupAppend,
)
from segmentstore.codec.wire_protocol.command import KeepAlive
from segmentstore.codec.wire_protocol.reads import (
    GetStreamSegmentInfo,
    ReadSegment,
    SegmentRead,
    StreamSegmentInfo,
)
from segmentstore.codec.wire_protocol.segments import SealSegment, SegmentSealed
from segmentstore.codec.wire_protocol.tables import (
    GetTableSegmentInfo,
    IteratorArguments,
    ReadTable,
    ReadTableEntries,
    TableEntriesUpdated,
    TableSegmentInfo,
    UpdateTableEntries,
)
from segmentstore.contracts.tables import NO_VERSION, TableEntry, TableKey
from segmentstore.runtime.task_set import TaskSet
from segmentstore.wire.server import WireServer
from segmentstore.wire.settings import OVERHEAD_BYTES
from tests.containers.node import MemoryTiers, running
from tests.wire.conftest import SEGMENT, WRITER
from tests.wire.node import QUICK, HoldingLog, Node, running_node, running_server
from tests.wire.protocol_client import ProtocolClient, event

BLOCK = event(bytes(100_000))
TABLE = "scope/group_kvtable/0.#epoch.0"


def is_paused(node: Node) -> list[bool]:
    return [connection._paused for connection in node.server._connections]


def tasks_of(node: Node) -> TaskSet:
    (connection,) = node.server._connections
    return connection._tasks


async def stall(node: Node, client: ProtocolClient) -> None:
    """The client has as much under way as it may; the log holds it back."""
    await client.set_up(WRITER, SEGMENT)
    node.log.hold()
    for number in range(1, 40):
        client.append(WRITER, BLOCK, number)
    while not is_paused(node)[0]:
        await asyncio.sleep(0.001)


async def test_h35_a_connection_with_too_much_unacknowledged_is_not_read() -> None:
    async with running_node(replace(QUICK, unacked_bytes_max=1 << 20)) as node:
        await node.container.create(SEGMENT)
        client = await node.client()
        await stall(node, client)
        statistics = node.server.statistics()
        # One receive buffer may go over the limit; what follows stays in the socket.
        assert 1 << 20 < statistics.unacknowledged_bytes < 2 << 20
        assert statistics.appends < 39
        node.log.let_go()
        told = -1
        while told < 39:
            told = (await client.expect(DataAppended)).event_number
        assert await node.content(SEGMENT) == 39 * BLOCK
        assert node.server.statistics().unacknowledged_bytes == 0
        assert is_paused(node) == [False]


async def test_h35_other_connections_go_on_while_one_is_stalled() -> None:
    async with running_node(replace(QUICK, unacked_bytes_max=1 << 20)) as node:
        await node.container.create(SEGMENT)
        await node.container.create("scope/stream/1.#epoch.0")
        async with node.container.open_segment("scope/stream/1.#epoch.0") as handle:
            await handle.append(b"abc")
        stalled = await node.client()
        other = await node.client()
        await stall(node, stalled)
        await other.ask(KeepAlive(), KeepAlive)
        await other.ask(GetStreamSegmentInfo(1, SEGMENT, ""), StreamSegmentInfo)
        read = ReadSegment("scope/stream/1.#epoch.0", 0, 100, "", 1)
        assert (await other.ask(read, SegmentRead)).data == b"abc"
        other.send(SealSegment(2, "scope/stream/1.#epoch.0", ""))
        node.log.let_go()
        assert (await other.expect(SegmentSealed)).request_id == 2
        await stalled.expect(DataAppended)


async def test_what_a_stalled_connection_waits_for_still_reaches_it() -> None:
    async with running_node(replace(QUICK, unacked_bytes_max=1 << 20)) as node:
        await node.container.create(SEGMENT)
        await node.container.create("scope/stream/1.#epoch.0")
        client = await node.client()
        client.send(ReadSegment("scope/stream/1.#epoch.0", 0, 100, "", 1))
        await stall(node, client)
        assert node.server.statistics().waiting_reads == 1
        node.log.let_go()
        async with node.container.open_segment("scope/stream/1.#epoch.0") as handle:
            await handle.append(b"abc")
        while not isinstance(reply := await client.receive(), SegmentRead):
            assert isinstance(reply, DataAppended)
        assert reply.data == b"abc"


async def test_a_connection_that_goes_while_it_is_stalled_loses_nothing_it_was_promised() -> None:
    async with running_node(replace(QUICK, unacked_bytes_max=1 << 20)) as node:
        await node.container.create(SEGMENT)
        client = await node.client()
        await stall(node, client)
        accepted = node.server.statistics().appends
        client.abort()
        node.log.let_go()
        again = await node.client()
        # What was received may have been accepted while the connection went.
        assert (await again.set_up(WRITER, SEGMENT)).last_event_number >= accepted


async def test_an_append_larger_than_the_limit_goes_through_alone() -> None:
    async with running_node(replace(QUICK, unacked_bytes_max=1 << 16)) as node:
        await node.container.create(SEGMENT)
        client = await node.client()
        await client.set_up(WRITER, SEGMENT)
        large = event(bytes(7 << 20))
        client.send(AppendBlock(WRITER, large), AppendBlockEnd(WRITER, len(large), b"", 1, 1, 0))
        assert (await client.expect(DataAppended)).segment_length == len(large)


async def test_requests_that_wait_are_bounded_by_not_reading_on() -> None:
    bounds = replace(QUICK, requests_per_connection_max=4, frames_per_turn_max=2)
    async with running_node(bounds) as node:
        await node.container.create(SEGMENT)
        client = await node.client()
        await client.set_up(WRITER, SEGMENT)
        node.log.hold()
        client.append(WRITER, BLOCK, 1)
        for number in range(100):
            client.send(SetupAppend(number, number.to_bytes(16, "big"), SEGMENT, ""))
        while not is_paused(node)[0] or len(tasks_of(node)) < 4:
            await asyncio.sleep(0.001)
        assert len(tasks_of(node)) == 4
        node.log.let_go()
        replies = [await client.receive() for _ in range(101)]
        assert sum(isinstance(reply, DataAppended) for reply in replies) == 1
        answers = [reply.request_id for reply in replies if isinstance(reply, AppendSetup)]
        assert sorted(answers) == list(range(100))


async def test_reads_that_wait_are_bounded_by_not_reading_on() -> None:
    bounds = replace(QUICK, reads_per_connection_max=4, frames_per_turn_max=2)
    async with running_node(bounds) as node:
        await node.container.create(SEGMENT)
        client = await node.client()
        for request_id in range(50):
            client.send(ReadSegment(SEGMENT, 0, 100, "", request_id))
        while not is_paused(node)[0] or node.server.statistics().waiting_reads < 4:
            await asyncio.sleep(0.001)
        assert node.server.statistics().waiting_reads == 4
        async with node.container.open_segment(SEGMENT) as handle:
            await handle.append(b"abc")
        answers = [await client.expect(SegmentRead) for _ in range(50)]
        assert sorted(answer.request_id for answer in answers) == list(range(50))


@pytest.mark.slow
async def test_a_client_that_asks_and_never_listens_is_not_read_for_ever() -> None:
    quick = replace(QUICK, send_buffer_bytes_max=1 << 16, send_backlog_bytes_max=1 << 18)
    quick = replace(quick, frames_per_turn_max=1 << 20)
    async with running_node(quick) as node:
        await node.container.create(SEGMENT)
        client = await node.client()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined] # a socket's transport has it
        deaf = asyncio.ensure_future(talk(client))
        (connection,) = node.server._connections
        while not connection._outgoing.is_backlogged:
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0.001)
        assert connection._transport.get_write_buffer_size() < 1 << 20
        deaf.cancel()
        await asyncio.gather(deaf, return_exceptions=True)
        client.writer.transport.resume_reading()  # type: ignore[attr-defined] # as above
        assert await client.receive() == KeepAlive()
        client.abort()


async def talk(client: ProtocolClient) -> None:
    while True:
        client.send_bytes(KeepAlive().encode() * 10_000)
        await client.writer.drain()


async def test_a_flood_of_tiny_frames_gives_others_their_turn() -> None:
    async with running_node(replace(QUICK, frames_per_turn_max=10)) as node:
        flood, other = await node.client(), await node.client()
        flood.send_bytes(KeepAlive().encode() * 5000)
        while not node.server._connections or not any(
            connection._behind for connection in node.server._connections
        ):
            await asyncio.sleep(0)
        await other.ask(KeepAlive(), KeepAlive)
        assert any(connection._behind for connection in node.server._connections)
        for _ in range(5000):
            await flood.expect(KeepAlive)
        assert is_paused(node) == [False, False]


async def test_h35_appends_without_bytes_count_as_well() -> None:
    """Each is kept until it is stored, whatever its length."""
    async with running_node(replace(QUICK, unacked_bytes_max=64 * OVERHEAD_BYTES)) as node:
        await node.container.create(SEGMENT)
        client = await node.client()
        await client.set_up(WRITER, SEGMENT)
        node.log.hold()
        for number in range(1, 2001):
            # Each with an id of its own: they are not joined.
            client.send(AppendBlockEnd(WRITER, 0, b"", 1, number, number))
        await client.writer.drain()
        await until_paused(node.server, lambda: node.server.statistics().appends <= 66)
        node.log.let_go()
        told = -1
        while told < 2000:
            told = (await client.expect(DataAppended)).event_number
        assert node.server.statistics().unacknowledged_bytes == 0
        assert is_paused(node) == [False]


async def test_h35_changes_of_tables_almost_without_bytes_count_as_well() -> None:
    tiers = MemoryTiers()
    log = HoldingLog(tiers)
    bounds = replace(QUICK, unacked_bytes_max=64 * OVERHEAD_BYTES)
    async with (
        running(tiers, log=log) as container,
        running_server(container, container, bounds) as server,
    ):
        await container.create_table(TABLE)
        client = await ProtocolClient.connect(server.address)
        await client.ask(GetTableSegmentInfo(1, TABLE, ""), TableSegmentInfo)
        asked = server.statistics().requests
        log.hold()
        for number in range(2000):
            entry = TableEntry(number.to_bytes(2, "big"), b"", NO_VERSION)
            client.send(UpdateTableEntries(number, TABLE, "", (entry,)))
        await client.writer.drain()
        try:
            # What is received in one turn is submitted together.
            await until_paused(server, lambda: server.statistics().requests - asked <= 257)
        finally:
            log.let_go()
        for number in range(2000):
            assert (await client.expect(TableEntriesUpdated)).request_id == number
        assert server.statistics().unacknowledged_bytes == 0
        await client.close()


async def test_a_client_that_does_not_listen_has_few_pages_of_a_table_made_for_it() -> None:
    tiers = MemoryTiers()
    bounds = replace(
        QUICK,
        send_buffer_bytes_max=64 << 10,
        table_answers_bytes_max=4 << 20,
        requests_per_connection_max=1_000,
    )
    async with (
        running(tiers) as container,
        running_server(container, container, bounds) as server,
    ):
        await container.create_table(TABLE)
        async with container.open_table(TABLE) as table:
            for number in range(4):
                await table.update([TableEntry(b"%d" % number, bytes(1_000_000), NO_VERSION)])
        client = await ProtocolClient.connect(server.address)
        transport = client.writer.transport
        await client.ask(GetTableSegmentInfo(1, TABLE, ""), TableSegmentInfo)
        transport.pause_reading()  # type: ignore[attr-defined] # a socket's transport has it
        for number in range(20):
            client.send(ReadTableEntries(number, TABLE, "", 1000, IteratorArguments()))
            client.send(ReadTable(100 + number, TABLE, "", (TableKey(b"0"), TableKey(b"1"))))
        await client.writer.drain()
        (connection,) = server._connections
        turns = connection._requests._turns
        while not turns.waiting_count or turns.begun_bytes:
            await asyncio.sleep(0)
        assert connection._transport.get_write_buffer_size() < 7 << 20
        transport.resume_reading()  # type: ignore[attr-defined] # as above
        answers = [await client.receive() for _ in range(40)]
        assert {answer.request_id for answer in answers} == {  # type: ignore[attr-defined] # all have
            *range(20),
            *range(100, 120),
        }
        assert not turns.begun_bytes
        assert not turns.waiting_count
        await client.close()


async def until_paused(server: WireServer, is_bounded: Callable[[], bool]) -> None:
    """The only connection is not read any more, and took no more before."""
    (connection,) = server._connections
    while not connection._paused:
        await asyncio.sleep(0)
        assert is_bounded(), f"held and not counted {server.statistics()}"
