"""Look-ups that come together: each is answered, whatever stands beside it."""

import asyncio
from dataclasses import replace

from segmentstore.codec.wire_protocol.command import Command, KeepAlive
from segmentstore.codec.wire_protocol.refusals import NoSuchSegment
from segmentstore.codec.wire_protocol.segments import SegmentCreated
from segmentstore.codec.wire_protocol.tables import (
    CreateTableSegment,
    ReadTable,
    TableEntriesUpdated,
    TableRead,
    UpdateTableEntries,
)
from segmentstore.contracts.tables import NO_VERSION, NOT_EXISTS, TableEntry, TableKey
from tests.wire.node import QUICK, Node, running_node
from tests.wire.protocol_client import ProtocolClient

TABLE, OTHER = "scope/one", "scope/two"


def look_up(number: int, *keys: bytes, table: str = TABLE) -> ReadTable:
    return ReadTable(number, table, "", tuple(map(TableKey, keys)))


async def fill(client: ProtocolClient, table: str, entries: dict[bytes, bytes]) -> None:
    await client.ask(CreateTableSegment(1, table, ""), SegmentCreated)
    update = tuple(TableEntry(key, value, NO_VERSION) for key, value in entries.items())
    await client.ask(UpdateTableEntries(2, table, "", update), TableEntriesUpdated)


async def replies_to(client: ProtocolClient, *commands: Command) -> dict[int, Command]:
    """What is said to commands that are sent in one piece, by request id."""
    client.send(*commands)
    replies: dict[int, Command] = {}
    for _ in commands:
        reply = await client.receive()
        assert isinstance(reply, TableRead | NoSuchSegment), reply
        assert reply.request_id not in replies, reply
        replies[reply.request_id] = reply
    return replies


def values(reply: Command) -> list[bytes]:
    assert isinstance(reply, TableRead), reply
    return [entry.value for entry in reply.entries]


async def test_look_ups_that_come_together_are_each_answered(client: ProtocolClient) -> None:
    await fill(client, TABLE, {b"%d" % number: b"v%d" % number for number in range(300)})
    keys = [b"%d" % number for number in range(300)]
    replies = await replies_to(client, *(look_up(n, key) for n, key in enumerate(keys)))
    for number, key in enumerate(keys):
        reply = replies[number]
        assert isinstance(reply, TableRead)
        assert reply.segment == TABLE
        assert [(entry.key, entry.value) for entry in reply.entries] == [(key, b"v%d" % number)]


async def test_what_stands_between_them_is_answered_too(node: Node, client: ProtocolClient) -> None:
    await fill(client, TABLE, {b"a": b"1", b"b": b"2"})
    await fill(client, OTHER, {b"a": b"other"})
    before = node.server.statistics().requests
    replies = await replies_to(
        client,
        look_up(10, b"a"),
        look_up(11, b"missing"),
        look_up(12, b"a", table=OTHER),
        look_up(13, b"a", b"b"),
        look_up(14, b"a", table="scope/nowhere"),
        look_up(15, b"b"),
        look_up(16, b"a", table=OTHER),
    )
    assert values(replies[10]) == [b"1"]
    absent = replies[11]
    assert isinstance(absent, TableRead)
    assert list(absent.entries) == [TableEntry(b"missing", b"", NOT_EXISTS)]
    assert values(replies[12]) == values(replies[16]) == [b"other"]
    assert values(replies[13]) == [b"1", b"2"]
    assert isinstance(replies[14], NoSuchSegment)
    assert values(replies[15]) == [b"2"]
    assert node.server.statistics().requests == before + 7


async def test_they_follow_a_table_that_was_created_again(
    node: Node, client: ProtocolClient
) -> None:
    await fill(client, TABLE, {b"a": b"old"})
    assert values((await replies_to(client, look_up(1, b"a")))[1]) == [b"old"]
    # Not through the connection that keeps the table open.
    await node.tables.delete_table(TABLE, must_be_empty=False)
    await node.tables.create_table(TABLE)
    async with node.tables.open_table(TABLE) as table:
        await table.update([TableEntry(b"a", b"new", NO_VERSION)])
    replies = await replies_to(client, *(look_up(number, b"a") for number in range(5)))
    assert [values(replies[number]) for number in range(5)] == [[b"new"]] * 5


async def test_a_frame_that_came_in_two_pieces_ends_one_run_and_begins_the_next(
    client: ProtocolClient,
) -> None:
    await fill(client, TABLE, {b"a": b"1"})
    frames = b"".join(look_up(number, b"a").encode() for number in range(6))
    client.send_bytes(frames[:100])
    assert values(await client.receive()) == [b"1"]
    client.send_bytes(frames[100:])
    assert [values(await client.receive()) for _ in range(5)] == [[b"1"]] * 5


async def test_h35_answers_that_nobody_takes_are_bounded_in_the_middle_of_what_was_received() -> (
    None
):
    quick = replace(QUICK, send_buffer_bytes_max=1 << 16, send_backlog_bytes_max=1 << 18)
    async with running_node(quick) as node:
        client = await node.client()
        await fill(client, TABLE, {b"a": bytes(100_000)})
        client.writer.transport.pause_reading()  # type: ignore[attr-defined] # a socket's transport has it
        client.send(*(look_up(number, b"a") for number in range(1000)))
        (connection,) = node.server._connections
        while not connection._behind:
            await asyncio.sleep(0)
        assert connection._transport.get_write_buffer_size() < 1 << 20
        client.writer.transport.resume_reading()  # type: ignore[attr-defined] # as above
        numbers = [(await client.expect(TableRead)).request_id for _ in range(1000)]
        assert numbers == list(range(1000))
        await client.ask(KeepAlive(), KeepAlive)


async def test_a_flood_of_look_ups_gives_others_their_turn() -> None:
    async with running_node(replace(QUICK, frames_per_turn_max=64)) as node:
        flood, other = await node.client(), await node.client()
        await fill(flood, TABLE, {b"a": b"1"})
        flood.send(*(look_up(number, b"a") for number in range(3000)))
        while not any(connection._behind for connection in node.server._connections):
            await asyncio.sleep(0)
        await other.ask(KeepAlive(), KeepAlive)
        assert any(connection._behind for connection in node.server._connections)
        for _ in range(3000):
            await flood.expect(TableRead)
