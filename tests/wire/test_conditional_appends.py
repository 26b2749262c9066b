"""Appends at an expected offset: stored there, or nowhere."""

import asyncio

from segmentstore.codec.wire_protocol.appends import (
    NO_EVENT_NUMBER,
    ConditionalAppend,
    ConditionalBlockEnd,
    ConditionalCheckFailed,
    DataAppended,
    InvalidEventNumber,
)
from segmentstore.codec.wire_protocol.command import KeepAlive
from tests.wire.conftest import OTHER, SEGMENT, WRITER
from tests.wire.node import Node
from tests.wire.protocol_client import ProtocolClient, event


async def test_a_conditional_event_is_stored_with_its_header_at_exactly_the_expected_offset(
    node: Node, client: ProtocolClient
) -> None:
    await client.set_up(WRITER, SEGMENT)
    client.send(ConditionalAppend(WRITER, 1, 0, b"first", 5))
    assert await client.expect(DataAppended) == DataAppended(WRITER, 1, NO_EVENT_NUMBER, 5, 8 + 5)
    client.send(ConditionalAppend(WRITER, 2, 13, b"second", 5))
    assert (await client.expect(DataAppended)).segment_length == 13 + 8 + 6
    assert await node.content(SEGMENT) == event(b"first") + event(b"second")
    assert await node.event_count(SEGMENT) == 2


async def test_conditional_bytes_are_stored_without_a_header(
    node: Node, client: ProtocolClient
) -> None:
    await client.set_up(WRITER, SEGMENT)
    client.send(ConditionalBlockEnd(WRITER, 1, 0, b"raw", 5))
    assert (await client.expect(DataAppended)).segment_length == 3
    assert await node.content(SEGMENT) == b"raw"


async def test_a_conditional_append_at_another_offset_stores_nothing_and_the_writer_goes_on(
    node: Node, client: ProtocolClient
) -> None:
    await client.set_up(WRITER, SEGMENT)
    client.append(WRITER, event(b"a"), 1)
    client.send(ConditionalAppend(WRITER, 2, 100, b"lost", 6))
    assert (await client.expect(DataAppended)).event_number == 1
    assert await client.receive() == ConditionalCheckFailed(WRITER, 2, 6)
    client.send(ConditionalAppend(WRITER, 3, 9, b"kept", 7))
    ack = await client.expect(DataAppended)
    assert (ack.event_number, ack.previous_event_number) == (3, 1)
    assert await node.content(SEGMENT) == event(b"a") + event(b"kept")
    assert await node.last_number(SEGMENT, WRITER) == 3


async def test_a_condition_that_an_older_connection_met_is_not_told_as_failed(
    node: Node, client: ProtocolClient
) -> None:
    """A client that is told so reads its own change as that of another one, and makes it again."""
    await client.set_up(WRITER, SEGMENT)
    newer = await node.client()
    await newer.set_up(WRITER, SEGMENT)
    once = ConditionalAppend(WRITER, 1, 0, b"once", 6)
    client.send(once)
    await client.expect(DataAppended)
    newer.send(once)
    assert await newer.expect_close() == [InvalidEventNumber(WRITER, 6, "", 1)]
    newest = await node.client()
    assert (await newest.set_up(WRITER, SEGMENT)).last_event_number == 1


async def test_h24_a_failed_condition_is_told_only_when_what_it_met_is_durable(
    node: Node, client: ProtocolClient
) -> None:
    await client.set_up(WRITER, SEGMENT)
    other = await node.client()
    await other.set_up(OTHER, SEGMENT)
    node.log.hold()
    client.append(WRITER, event(b"pending"), 1)
    while node.server.statistics().appends < 1:
        await asyncio.sleep(0)
    other.send(ConditionalAppend(OTHER, 1, 0, b"late", 6), KeepAlive())
    # The echo came behind the append, so its refusal is being held back.
    assert await other.receive() == KeepAlive()
    node.log.let_go()
    assert await other.receive() == ConditionalCheckFailed(OTHER, 1, 6)
