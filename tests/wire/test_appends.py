"""Writers: set-ups, acknowledgements, refusals. Events are numbered by their writers."""

import asyncio
from dataclasses import replace

from segmentstore.codec.wire_protocol.appends import (
    NO_EVENT_NUMBER,
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    ConditionalBlockEnd,
    DataAppended,
    InvalidEventNumber,
    SetupAppend,
)
from segmentstore.codec.wire_protocol.command import KeepAlive
from segmentstore.codec.wire_protocol.refusals import (
    ErrorMessage,
    NoSuchSegment,
    OperationUnsupported,
    SegmentIsSealed,
)
from segmentstore.contracts.identifiers import EVENT_COUNT, INITIALISING
from segmentstore.contracts.segments import AttributeUpdate
from tests.containers.node import MemoryTiers
from tests.wire.conftest import OTHER, SEGMENT, WRITER
from tests.wire.node import QUICK, Node, running_node
from tests.wire.protocol_client import ProtocolClient, event


async def test_a_writer_that_the_segment_does_not_know_is_told_the_least_number(
    client: ProtocolClient,
) -> None:
    client.send(SetupAppend(77, WRITER, SEGMENT, ""))
    assert await client.receive() == AppendSetup(77, SEGMENT, WRITER, NO_EVENT_NUMBER)


async def test_a_set_up_on_a_missing_segment_is_refused(client: ProtocolClient) -> None:
    reply = await client.ask(SetupAppend(77, WRITER, "a/b/1", ""), NoSuchSegment)
    assert (reply.request_id, reply.segment) == (77, "a/b/1")


async def test_a_segment_that_is_half_created_takes_no_append_that_would_go_with_it(
    node: Node, client: ProtocolClient
) -> None:
    await node.container.create("half", [AttributeUpdate(INITIALISING, 1)])
    reply = await client.ask(SetupAppend(77, WRITER, "half", ""), NoSuchSegment)
    assert (reply.request_id, reply.segment) == (77, "half")
    async with node.container.open_segment("half") as segment:
        await segment.append(b"first", attribute_updates=[AttributeUpdate(INITIALISING, None)])
    await client.set_up(WRITER, "half")
    client.append(WRITER, event(b"x"), 1)
    await client.expect(DataAppended)
    assert await node.content("half") == b"first" + event(b"x")


async def test_a_writer_whose_id_is_an_attribute_of_the_store_itself_is_refused(
    node: Node, client: ProtocolClient
) -> None:
    reply = await client.ask(SetupAppend(77, EVENT_COUNT, SEGMENT, ""), ErrorMessage)
    assert (reply.request_id, reply.error_code) == (77, 0)
    assert await node.event_count(SEGMENT) is None


async def test_an_append_is_stored_with_its_number_and_acknowledged(
    node: Node, client: ProtocolClient
) -> None:
    await client.set_up(WRITER, SEGMENT)
    data = event(b"hello")
    client.append(WRITER, data, 5, request_id=99)
    ack = await client.expect(DataAppended)
    assert ack == DataAppended(WRITER, 5, NO_EVENT_NUMBER, 99, len(data))
    assert await node.content(SEGMENT) == data
    assert await node.last_number(SEGMENT, WRITER) == 5
    assert await node.event_count(SEGMENT) == 1


async def test_acknowledgements_follow_one_another_and_never_repeat(
    node: Node, client: ProtocolClient
) -> None:
    await client.set_up(WRITER, SEGMENT)
    for number in range(10, 60):
        client.append(WRITER, event(b"%d" % number), number)
    told = NO_EVENT_NUMBER
    while told < 59:
        ack = await client.expect(DataAppended)
        assert ack.previous_event_number == told
        assert ack.event_number > told
        told = ack.event_number
    assert await client.ask(KeepAlive(), KeepAlive) == KeepAlive()
    assert await node.event_count(SEGMENT) == 50


async def test_one_acknowledgement_stands_for_all_that_one_flush_stored(
    node: Node, client: ProtocolClient
) -> None:
    await client.set_up(WRITER, SEGMENT)
    node.log.hold()
    for number in range(20):
        client.append(WRITER, event(b"x"), number, request_id=1000)
    while node.server.statistics().appends < 20:
        await asyncio.sleep(0)
    node.log.let_go()
    acks: list[DataAppended] = []
    while not acks or acks[-1].event_number < 19:
        acks.append(await client.expect(DataAppended))
    assert len(acks) < 5
    assert acks[-1].request_id == 1000
    assert acks[-1].segment_length == 20 * 9


async def test_requests_with_ids_of_their_own_are_each_acknowledged(
    node: Node, client: ProtocolClient
) -> None:
    await client.set_up(WRITER, SEGMENT)
    node.log.hold()
    client.append(WRITER, event(b"a"), 1, request_id=7)
    client.append(WRITER, event(b"b"), 2, request_id=8)
    # Pieces of a large event: in flight side by side, each with an id that its sender waits for.
    client.send(ConditionalBlockEnd(WRITER, 3, 18, b"piece one", 9))
    client.send(ConditionalBlockEnd(WRITER, 4, 27, b"piece two", 9))
    while node.server.statistics().appends < 4:
        await asyncio.sleep(0)
    node.log.let_go()
    acks = [await client.expect(DataAppended) for _ in range(4)]
    assert [(ack.event_number, ack.request_id) for ack in acks] == [(1, 7), (2, 8), (3, 9), (4, 9)]
    assert [ack.previous_event_number for ack in acks] == [NO_EVENT_NUMBER, 1, 2, 3]


async def test_the_first_acknowledgement_after_a_set_up_continues_from_its_number(
    node: Node, client: ProtocolClient
) -> None:
    await client.set_up(WRITER, SEGMENT)
    client.append(WRITER, event(b"a"), 3)
    await client.expect(DataAppended)
    again = await node.client()
    assert (await again.set_up(WRITER, SEGMENT)).last_event_number == 3
    again.append(WRITER, event(b"b"), 9)
    ack = await again.expect(DataAppended)
    assert (ack.event_number, ack.previous_event_number) == (9, 3)


async def test_events_of_several_writers_on_one_connection_are_told_apart(
    node: Node, client: ProtocolClient
) -> None:
    await node.container.create("scope/stream/1.#epoch.0")
    await client.set_up(WRITER, SEGMENT)
    await client.set_up(OTHER, "scope/stream/1.#epoch.0")
    client.append(WRITER, event(b"one"), 1)
    client.append(OTHER, event(b"two"), 1)
    acks = {(await client.expect(DataAppended)).writer_id for _ in range(2)}
    assert acks == {WRITER, OTHER}
    assert await node.content(SEGMENT) == event(b"one")
    assert await node.content("scope/stream/1.#epoch.0") == event(b"two")


async def test_an_append_without_a_set_up_ends_the_connection(client: ProtocolClient) -> None:
    client.append(WRITER, b"abc", 1)
    assert await client.expect_close() == []


async def test_a_set_up_on_a_table_is_refused(node: Node, client: ProtocolClient) -> None:
    await node.container.create_table("scope/group_kvtable/0.#epoch.0")
    set_up = SetupAppend(4, WRITER, "scope/group_kvtable/0.#epoch.0", "")
    refusal = await client.ask(set_up, OperationUnsupported)
    assert refusal.request_id == 4
    # The connection and its other writers go on.
    await client.set_up(WRITER, SEGMENT)
    client.append(WRITER, event(b"a"), 1)
    await client.expect(DataAppended)


async def test_an_append_between_a_repeated_set_up_and_its_answer_ends_the_connection(
    node: Node, client: ProtocolClient
) -> None:
    await client.set_up(WRITER, SEGMENT)
    client.send(SetupAppend(1, WRITER, SEGMENT, ""), AppendBlockEnd(WRITER, 1, b"a", 1, 1, 0))
    assert await client.expect_close() == []
    assert await node.content(SEGMENT) == b""


async def test_event_numbers_that_go_back_end_the_connection(
    node: Node, client: ProtocolClient
) -> None:
    await client.set_up(WRITER, SEGMENT)
    client.append(WRITER, event(b"a"), 5)
    await client.expect(DataAppended)
    client.append(WRITER, event(b"b"), 4)
    assert await client.expect_close() == []
    assert await node.content(SEGMENT) == event(b"a")


async def test_an_append_of_nothing_is_acknowledged(node: Node, client: ProtocolClient) -> None:
    await client.set_up(WRITER, SEGMENT)
    client.send(AppendBlock(WRITER, b""), AppendBlockEnd(WRITER, 0, b"", 1, 8, 4))
    assert await client.expect(DataAppended) == DataAppended(WRITER, 8, NO_EVENT_NUMBER, 4, 0)
    client.send(AppendBlock(WRITER, b""), AppendBlockEnd(WRITER, 0, b"", 1, 8, 4), KeepAlive())
    assert await client.receive() == KeepAlive()


async def test_an_append_of_nothing_to_a_sealed_segment_is_answered(
    node: Node, client: ProtocolClient
) -> None:
    await node.container.seal(SEGMENT)
    await client.set_up(WRITER, SEGMENT)
    client.send(AppendBlock(WRITER, b""), AppendBlockEnd(WRITER, 0, b"", 1, 8, 4))
    assert isinstance(await client.receive(), DataAppended | SegmentIsSealed)


async def test_bytes_that_are_no_events_are_counted_by_what_the_client_says(
    node: Node, client: ProtocolClient
) -> None:
    await client.set_up(WRITER, SEGMENT)
    client.append(WRITER, b"just bytes of a byte stream", 1, events=3)
    await client.expect(DataAppended)
    client.append(WRITER, event(b"a") + event(b"b"), 3, events=2)
    await client.expect(DataAppended)
    assert await node.event_count(SEGMENT) == 5


async def test_a_repeated_set_up_answers_for_what_is_under_way_and_nothing_is_told_twice(
    node: Node, client: ProtocolClient
) -> None:
    await client.set_up(WRITER, SEGMENT)
    node.log.hold()
    for number in (1, 2, 3):
        client.append(WRITER, event(b"a"), number)
    client.send(SetupAppend(1, WRITER, SEGMENT, ""), SetupAppend(2, WRITER, SEGMENT, ""))
    client.send(KeepAlive())
    assert await client.receive() == KeepAlive()
    node.log.let_go()
    for request_id in (1, 2):
        assert await client.receive() == AppendSetup(request_id, SEGMENT, WRITER, 3)
    client.append(WRITER, event(b"a"), 4)
    ack = await client.expect(DataAppended)
    assert (ack.event_number, ack.previous_event_number) == (4, 3)
    assert await node.content(SEGMENT) == 4 * event(b"a")


# --- refusals ------------------------------------------------------------------------------------


async def test_h75_what_was_stored_before_a_seal_is_acknowledged_before_the_seal_is_told(
    node: Node, client: ProtocolClient
) -> None:
    await client.set_up(WRITER, SEGMENT)
    node.log.hold()
    client.append(WRITER, event(b"stored"), 1, request_id=3)
    while node.server.statistics().appends < 1:
        await asyncio.sleep(0)
    sealing = asyncio.ensure_future(node.container.seal(SEGMENT))
    for _ in range(50):  # it is submitted within a few turns of the loop
        await asyncio.sleep(0)
    for number in range(2, 6):
        client.append(WRITER, event(b"too late"), number, request_id=3)
    while node.server.statistics().appends < 5:
        await asyncio.sleep(0)
    node.log.let_go()
    await sealing
    assert (await client.expect(DataAppended)).event_number == 1
    assert await client.receive() == SegmentIsSealed(3, SEGMENT, "", 2)
    # Once: neither the others that were under way nor a later one are answered.
    client.append(WRITER, event(b"later"), 9)
    client.send(KeepAlive())
    assert await client.receive() == KeepAlive()
    assert await node.content(SEGMENT) == event(b"stored")


async def test_what_an_older_connection_stored_in_front_of_a_seal_is_not_refused_as_sealed(
    node: Node, client: ProtocolClient
) -> None:
    """Clients take that for "not stored", and send it to the successors. The next set-up tells them."""
    await client.set_up(WRITER, SEGMENT)
    newer = await node.client()
    assert (await newer.set_up(WRITER, SEGMENT)).last_event_number == NO_EVENT_NUMBER
    client.append(WRITER, event(b"once"), 1)
    await client.expect(DataAppended)
    await node.container.seal(SEGMENT)
    newer.append(WRITER, event(b"once"), 1, request_id=6)
    assert await newer.expect_close() == [InvalidEventNumber(WRITER, 6, "", 1)]
    newest = await node.client()
    assert (await newest.set_up(WRITER, SEGMENT)).last_event_number == 1
    newest.append(WRITER, event(b"more"), 2, request_id=8)
    assert await newest.receive() == SegmentIsSealed(8, SEGMENT, "", 2)


async def test_a_sealed_segment_refuses_no_append_whose_writer_it_has_no_number_of_in_memory() -> (
    None
):
    async with running_node(replace(QUICK, pin_idle_seconds=0.0)) as node:
        await node.container.create(SEGMENT)
        client = await node.client()
        await client.set_up(WRITER, SEGMENT)
        client.append(WRITER, event(b"a"), 1)
        await client.expect(DataAppended)
        while node.server.statistics().pinned_segments:
            await asyncio.sleep(0.01)
        await node.container.seal(SEGMENT)
        await node.container.flush()
        assert node.container._components.mapper.evict(10)
        client.append(WRITER, event(b"b"), 2)
        assert await client.expect_close() == []
        again = await node.client()
        assert (await again.set_up(WRITER, SEGMENT)).last_event_number == 1
        again.append(WRITER, event(b"b"), 2, request_id=8)
        assert await again.receive() == SegmentIsSealed(8, SEGMENT, "", 2)


async def test_a_set_up_on_a_sealed_segment_tells_the_last_number_and_appends_are_refused(
    node: Node, client: ProtocolClient
) -> None:
    await client.set_up(WRITER, SEGMENT)
    client.append(WRITER, event(b"stored"), 4)
    await client.expect(DataAppended)
    await node.container.seal(SEGMENT)
    client.append(WRITER, event(b"refused"), 5, request_id=8)
    assert await client.receive() == SegmentIsSealed(8, SEGMENT, "", 5)
    assert (await client.set_up(WRITER, SEGMENT)).last_event_number == 4
    client.append(WRITER, event(b"refused"), 5, request_id=9)
    assert await client.receive() == SegmentIsSealed(9, SEGMENT, "", 5)


async def test_an_append_to_a_deleted_segment_is_told_that_there_is_none(
    node: Node, client: ProtocolClient
) -> None:
    await client.set_up(WRITER, SEGMENT)
    await node.container.delete(SEGMENT)
    client.append(WRITER, event(b"a"), 1, request_id=8)
    reply = await client.expect(NoSuchSegment)
    assert (reply.request_id, reply.segment, reply.offset) == (8, SEGMENT, -1)


async def test_a_segment_of_the_same_name_knows_no_writer_of_the_one_before(
    node: Node, client: ProtocolClient
) -> None:
    await client.set_up(WRITER, SEGMENT)
    client.append(WRITER, event(b"a"), 7)
    await client.expect(DataAppended)
    await node.container.delete(SEGMENT)
    await node.container.create(SEGMENT)
    assert (await client.set_up(WRITER, SEGMENT)).last_event_number == NO_EVENT_NUMBER
    client.append(WRITER, event(b"new"), 1)
    await client.expect(DataAppended)
    assert await node.content(SEGMENT) == event(b"new")


async def test_two_connections_that_own_one_writer_the_older_is_told_and_closed(
    node: Node, client: ProtocolClient
) -> None:
    await client.set_up(WRITER, SEGMENT)
    newer = await node.client()
    await newer.set_up(WRITER, SEGMENT)
    newer.append(WRITER, event(b"new"), 1)
    await newer.expect(DataAppended)
    client.append(WRITER, event(b"old"), 1, request_id=6)
    assert await client.expect_close() == [InvalidEventNumber(WRITER, 6, "", 1)]
    assert await node.content(SEGMENT) == event(b"new")
    newer.append(WRITER, event(b"more"), 2)
    assert (await newer.expect(DataAppended)).event_number == 2


async def test_an_append_that_is_too_large_closes_behind_what_was_stored(
    node: Node, client: ProtocolClient
) -> None:
    await client.set_up(WRITER, SEGMENT)
    node.log.hold()
    client.append(WRITER, event(b"small"), 1)
    client.append(WRITER, bytes(12 << 20), 2)
    while node.server.statistics().appends < 2:
        await asyncio.sleep(0)
    assert node.server.statistics().connections_failed == 0
    node.log.let_go()
    said = await client.expect_close()
    assert [type(reply) for reply in said] == [DataAppended]
    assert await node.content(SEGMENT) == event(b"small")


async def test_one_writer_too_many_ends_the_connection() -> None:
    async with running_node(replace(QUICK, writers_per_connection_max=3)) as node:
        await node.container.create(SEGMENT)
        client = await node.client()
        for number in range(3):
            await client.set_up(bytes(15) + bytes([number]), SEGMENT)
        client.send(SetupAppend(1, WRITER, SEGMENT, ""))
        assert await client.expect_close() == []


# --- connections that go ----------------------------------------------------------------------------


async def test_h25_a_writer_that_reconnects_is_told_what_its_lost_connection_still_stores(
    node: Node, client: ProtocolClient
) -> None:
    await client.set_up(WRITER, SEGMENT)
    node.log.hold()
    for number in range(1, 6):
        client.append(WRITER, event(b"%d" % number), number)
    while node.server.statistics().appends < 5:
        await asyncio.sleep(0)
    client.abort()
    again = await node.client()
    again.send(SetupAppend(1, WRITER, SEGMENT, ""), KeepAlive())
    assert await again.receive() == KeepAlive(), "the set-up waits for what is under way"
    node.log.let_go()
    assert (await again.expect(AppendSetup)).last_event_number == 5
    again.append(WRITER, event(b"6"), 6)
    ack = await again.expect(DataAppended)
    assert (ack.event_number, ack.previous_event_number) == (6, 5)
    assert await node.content(SEGMENT) == b"".join(event(b"%d" % n) for n in range(1, 7))


async def test_h27_a_silent_writer_lets_go_of_its_segment_and_goes_on_later() -> None:
    async with running_node(replace(QUICK, pin_idle_seconds=0.0)) as node:
        await node.container.create(SEGMENT)
        client = await node.client()
        await client.set_up(WRITER, SEGMENT)
        client.append(WRITER, event(b"a"), 1)
        await client.expect(DataAppended)
        while node.server.statistics().pinned_segments:
            await asyncio.sleep(0.01)
        for number in range(2, 6):
            client.append(WRITER, event(b"b"), number)
        told = 1
        while told < 5:
            ack = await client.expect(DataAppended)
            assert ack.previous_event_number == told
            told = ack.event_number
        assert await node.content(SEGMENT) == event(b"a") + 4 * event(b"b")


async def test_h27_a_silent_writer_whose_segment_is_gone_is_told_so() -> None:
    async with running_node(replace(QUICK, pin_idle_seconds=0.0)) as node:
        await node.container.create(SEGMENT)
        client = await node.client()
        await client.set_up(WRITER, SEGMENT)
        while node.server.statistics().pinned_segments:
            await asyncio.sleep(0.01)
        await node.container.delete(SEGMENT)
        client.append(WRITER, event(b"b"), 1, request_id=4)
        assert (await client.expect(NoSuchSegment)).request_id == 4
        assert node.server.statistics().unacknowledged_bytes == 0


async def test_h25_the_last_number_survives_the_container() -> None:
    tiers = MemoryTiers()
    async with running_node(tiers=tiers) as node:
        await node.container.create(SEGMENT)
        client = await node.client()
        await client.set_up(WRITER, SEGMENT)
        client.append(WRITER, event(b"a"), 41)
        await client.expect(DataAppended)
    async with running_node(tiers=tiers) as node:
        client = await node.client()
        assert (await client.set_up(WRITER, SEGMENT)).last_event_number == 41
