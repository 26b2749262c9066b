"""Small appends that arrive together are stored as one, and nobody can tell but by the time it takes."""

import asyncio

import pytest

from segmentstore.codec.wire_protocol.appends import AppendBlock, AppendBlockEnd, DataAppended
from segmentstore.wire.received_appends import AppendBatch, ReceivedAppend
from tests.wire.conftest import OTHER, SEGMENT, WRITER
from tests.wire.node import Node
from tests.wire.protocol_client import ProtocolClient, event


def unit(
    number: int, data: bytes = event(b"x"), *, request_id: int = 1, offset: int | None = None
) -> ReceivedAppend:
    return ReceivedAppend(WRITER, data, 1, number, request_id, offset)


def block(writer: bytes, number: int, data: bytes, *, request_id: int = 1) -> bytes:
    end = AppendBlockEnd(writer, len(data), b"", 1, number, request_id)
    return AppendBlock(writer, data).encode() + end.encode()


def test_neighbours_are_joined_to_one_append_with_all_their_events() -> None:
    group = AppendBatch(unit(3, event(b"a")))
    assert group.add(ReceivedAppend(WRITER, event(b"b") + event(b"c"), 2, 5, 1))
    joined = group.joined()
    assert joined.data == event(b"a") + event(b"b") + event(b"c")
    assert (joined.event_count, joined.unit_count, joined.is_framed) == (3, 2, True)
    assert (joined.first_event_number, joined.last_event_number) == (3, 5)


def test_a_lone_append_stays_as_it_is() -> None:
    lone = unit(3)
    assert AppendBatch(lone).joined() is lone


@pytest.mark.parametrize(
    "stranger",
    [
        unit(4, request_id=2),
        unit(3),
        unit(2),
        unit(4, offset=9),
        unit(4, bytes(64 * 1024)),
    ],
    ids=["another request", "the same number", "a number before", "an offset", "too long"],
)
def test_what_has_to_be_told_by_itself_is_not_joined(stranger: ReceivedAppend) -> None:
    assert not AppendBatch(unit(3)).add(stranger)


def test_nothing_is_joined_to_a_conditional_append() -> None:
    assert not AppendBatch(unit(3, offset=0)).add(unit(4))


def test_h76_zeros_of_a_byte_stream_are_not_made_to_look_like_events_by_joining() -> None:
    zeros = bytes(20)
    assert not AppendBatch(unit(3)).add(unit(4, zeros))
    group = AppendBatch(unit(3, zeros))
    assert group.add(unit(4, zeros))
    assert not group.joined().is_framed


async def test_many_small_appends_that_come_together_cost_the_container_one(
    node: Node, client: ProtocolClient
) -> None:
    await client.set_up(WRITER, SEGMENT)
    before = node.container._components.processor.statistics().appended_operations
    events = [event(b"%d" % number) for number in range(50)]
    client.send_bytes(b"".join(block(WRITER, n + 1, data) for n, data in enumerate(events)))
    told = -1
    while told < 50:
        told = (await client.expect(DataAppended)).event_number
    assert node.container._components.processor.statistics().appended_operations - before < 10
    assert node.server.statistics().appends == 50
    assert await node.content(SEGMENT) == b"".join(events)
    assert await node.event_count(SEGMENT) == 50
    assert await node.last_number(SEGMENT, WRITER) == 50


async def test_appends_before_a_bad_one_in_the_same_packet_are_stored(
    node: Node, client: ProtocolClient
) -> None:
    await client.set_up(WRITER, SEGMENT)
    stored = [event(b"a"), event(b"b")]
    client.send_bytes(
        block(WRITER, 1, stored[0]) + block(WRITER, 2, stored[1]) + block(OTHER, 1, event(b"c"))
    )
    await client.expect_close()
    while await node.event_count(SEGMENT) != 2:
        await asyncio.sleep(0)
    assert await node.content(SEGMENT) == b"".join(stored)
