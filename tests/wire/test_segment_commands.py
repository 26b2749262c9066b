"""The life of segments, their attributes, and what operators ask for."""

import asyncio
from collections.abc import Sequence
from dataclasses import fields, replace
from random import Random

import pytest

from segmentstore.codec.wire_protocol.administration import (
    FlushToStorage,
    ListStorageChunks,
    StorageChunk,
    StorageChunksListed,
    StorageFlushed,
)
from segmentstore.codec.wire_protocol.appends import (
    AppendSetup,
    CreateTransientSegment,
    SetupAppend,
)
from segmentstore.codec.wire_protocol.command import Command, KeepAlive
from segmentstore.codec.wire_protocol.frames import COMMANDS
from segmentstore.codec.wire_protocol.reads import (
    NO_ATTRIBUTE_VALUE,
    GetSegmentAttribute,
    GetStreamSegmentInfo,
    LocateOffset,
    OffsetLocated,
    ReadSegment,
    SegmentAttribute,
    SegmentAttributeUpdated,
    StreamSegmentInfo,
    UpdateSegmentAttribute,
)
from segmentstore.codec.wire_protocol.refusals import (
    AuthTokenCheckFailed,
    ErrorMessage,
    NoSuchSegment,
    OperationUnsupported,
    SegmentAlreadyExists,
    SegmentIsTruncated,
    WrongHost,
)
from segmentstore.codec.wire_protocol.segments import (
    CreateSegment,
    DeleteSegment,
    MergeSegments,
    MergeSegmentsBatch,
    SealSegment,
    SegmentCreated,
    SegmentDeleted,
    SegmentPolicyUpdated,
    SegmentSealed,
    SegmentTruncated,
    TruncateSegment,
    UpdateSegmentPolicy,
)
from segmentstore.contracts.identifiers import (
    CONTENT_TYPE,
    INITIALISING,
    SCALE_POLICY_RATE,
    SCALE_POLICY_TYPE,
)
from segmentstore.contracts.segments import AttributeUpdate, Segment
from segmentstore.wire import segment_commands
from segmentstore.wire.requests import TokenVerdict
from segmentstore.wire.segment_commands import ROLLOVER_BYTES, SegmentCommands, first_event_from
from segmentstore.wire.table_order import TABLE_COMMANDS
from tests.reference.memory_tables import MemoryTables
from tests.wire.conftest import SEGMENT, WRITER
from tests.wire.node import QUICK, Node, running_node, running_server
from tests.wire.protocol_client import ProtocolClient, event

MARK = bytes.fromhex("7df9a874246cc9d69397cdd19ead68c5")
MISSING = "scope/stream/9.#epoch.0"
TRANSACTION = f"{SEGMENT}#transaction.{'0' * 32}"
SECOND_TRANSACTION = f"{SEGMENT}#transaction.{'0' * 31}1"


async def test_a_segment_is_created_once_with_its_policy(
    node: Node, client: ProtocolClient
) -> None:
    create = CreateSegment(3, "a/b/1.#epoch.0", 100, 2, "", 1 << 28)
    assert await client.ask(create, SegmentCreated) == SegmentCreated(3, "a/b/1.#epoch.0")
    reply = await client.ask(create, SegmentAlreadyExists)
    assert (reply.request_id, reply.segment) == (3, "a/b/1.#epoch.0")
    attributes = await node.container.attributes("a/b/1.#epoch.0")
    assert attributes[SCALE_POLICY_TYPE] == 2
    assert attributes[SCALE_POLICY_RATE] == 100
    assert attributes[ROLLOVER_BYTES] == 1 << 28
    negative = CreateSegment(4, "a/b/2.#epoch.0", 100, 2, "", -1)
    await client.ask(negative, SegmentCreated)
    assert ROLLOVER_BYTES not in await node.container.attributes("a/b/2.#epoch.0")


async def test_bytes_of_a_json_stream_are_left_to_http_which_keeps_its_messages_whole(
    node: Node, client: ProtocolClient
) -> None:
    """One foreign event in it, and no reader over HTTP would get past it."""
    name = "made/over/http"
    json_type = AttributeUpdate(CONTENT_TYPE, b"Application/JSON; charset=utf-8")
    await node.container.create(name, [json_type])
    await node.append(name, b"[1]\n[2]\n")
    await node.container.create(TRANSACTION)
    await node.append(TRANSACTION, event(b"foreign"))
    await node.container.seal(TRANSACTION)
    commands: list[Command] = [
        SetupAppend(3, WRITER, name, ""),
        MergeSegments(3, name, TRANSACTION, ""),
        MergeSegmentsBatch(3, name, (TRANSACTION,), ""),
        TruncateSegment(3, name, 2, ""),
    ]
    for command in commands:
        reply = await client.ask(command, ErrorMessage)
        assert (reply.request_id, reply.segment) == (3, name)
        assert "JSON" in reply.message
    assert await node.content(name) == b"[1]\n[2]\n"
    text = AttributeUpdate(CONTENT_TYPE, b"text/plain")
    await node.container.create("plain", [text])
    await client.ask(SetupAppend(4, WRITER, "plain", ""), AppendSetup)


async def test_an_unknown_scale_type_is_refused(client: ProtocolClient) -> None:
    reply = await client.ask(CreateSegment(3, "a/b/1", 100, 3, ""), ErrorMessage)
    assert (reply.request_id, reply.error_code) == (3, 0)


async def test_a_policy_is_changed(node: Node, client: ProtocolClient) -> None:
    reply = await client.ask(UpdateSegmentPolicy(3, SEGMENT, 7, 1, ""), SegmentPolicyUpdated)
    assert reply == SegmentPolicyUpdated(3, SEGMENT)
    attributes = await node.container.attributes(SEGMENT)
    assert (attributes[SCALE_POLICY_TYPE], attributes[SCALE_POLICY_RATE]) == (1, 7)


async def test_info_tells_length_start_and_seal(node: Node, client: ProtocolClient) -> None:
    await node.append(SEGMENT, b"0123456789")
    await node.container.truncate(SEGMENT, 4)
    await node.container.seal(SEGMENT)
    info = await client.ask(GetStreamSegmentInfo(3, SEGMENT, ""), StreamSegmentInfo)
    assert (info.request_id, info.segment) == (3, SEGMENT)
    assert (info.exists, info.is_sealed, info.is_deleted) == (True, True, False)
    assert (info.write_offset, info.start_offset) == (10, 4)
    assert info.last_modified_ms > 1_600_000_000_000


@pytest.mark.parametrize(
    "command",
    [
        GetStreamSegmentInfo(3, MISSING, ""),
        GetSegmentAttribute(3, MISSING, MARK, ""),
        UpdateSegmentAttribute(3, MISSING, MARK, 1, NO_ATTRIBUTE_VALUE, ""),
        SealSegment(3, MISSING, ""),
        TruncateSegment(3, MISSING, 1, ""),
        DeleteSegment(3, MISSING, ""),
        UpdateSegmentPolicy(3, MISSING, 1, 1, ""),
        LocateOffset(3, MISSING, 1, ""),
        CreateTransientSegment(3, WRITER, MISSING, ""),
        MergeSegments(3, SEGMENT, MISSING, ""),
        MergeSegments(3, MISSING, SEGMENT, ""),
        MergeSegmentsBatch(3, MISSING, (TRANSACTION,), ""),
    ],
    ids=lambda command: type(command).__name__,
)
async def test_a_missing_segment_is_named(client: ProtocolClient, command: Command) -> None:
    reply = await client.ask(command, NoSuchSegment)
    offset = command.truncation_offset if isinstance(command, TruncateSegment) else -1
    assert (reply.request_id, reply.segment, reply.offset) == (3, MISSING, offset)


@pytest.mark.parametrize(
    "command",
    [
        GetStreamSegmentInfo(3, MISSING, ""),
        GetSegmentAttribute(3, MISSING, MARK, ""),
        UpdateSegmentAttribute(3, MISSING, MARK, 1, NO_ATTRIBUTE_VALUE, ""),
        SealSegment(3, MISSING, ""),
        TruncateSegment(3, MISSING, 0, ""),
        UpdateSegmentPolicy(3, MISSING, 1, 1, ""),
        LocateOffset(3, MISSING, 1, ""),
        CreateTransientSegment(3, WRITER, MISSING, ""),
        MergeSegments(3, SEGMENT, MISSING, ""),
        MergeSegments(3, MISSING, TRANSACTION, ""),
        MergeSegmentsBatch(3, MISSING, (TRANSACTION,), ""),
        ReadSegment(MISSING, 0, 100, "", 3),
    ],
    ids=lambda command: type(command).__name__,
)
async def test_what_is_done_to_a_segment_that_is_half_created_would_go_with_it(
    node: Node, client: ProtocolClient, command: Command
) -> None:
    await node.container.create(MISSING, [AttributeUpdate(INITIALISING, 1)])
    await node.append(MISSING, b"first")
    await node.container.create(TRANSACTION)
    await node.container.seal(TRANSACTION)
    if isinstance(command, MergeSegments) and command.source == MISSING:
        await node.container.seal(MISSING)
    reply = await client.ask(command, NoSuchSegment)
    assert (reply.request_id, reply.segment) == (3, MISSING)


async def test_sealing_twice_is_the_same_as_once(client: ProtocolClient) -> None:
    for _ in range(2):
        reply = await client.ask(SealSegment(3, SEGMENT, ""), SegmentSealed)
        assert reply == SegmentSealed(3, SEGMENT)


async def test_truncation_goes_from_the_start_to_the_end_and_no_further(
    node: Node, client: ProtocolClient
) -> None:
    await node.append(SEGMENT, b"0123456789")
    await node.container.seal(SEGMENT)
    for offset in (4, 4, 10):
        reply = await client.ask(TruncateSegment(3, SEGMENT, offset, ""), SegmentTruncated)
        assert reply == SegmentTruncated(3, SEGMENT)
    for offset in (9, 11, -1):
        refused = await client.ask(TruncateSegment(3, SEGMENT, offset, ""), SegmentIsTruncated)
        assert (refused.request_id, refused.start_offset, refused.offset) == (3, 10, offset)


async def test_a_deleted_segment_is_gone(node: Node, client: ProtocolClient) -> None:
    reply = await client.ask(DeleteSegment(3, SEGMENT, ""), SegmentDeleted)
    assert reply == SegmentDeleted(3, SEGMENT)
    await client.ask(GetStreamSegmentInfo(3, SEGMENT, ""), NoSuchSegment)


async def test_an_attribute_is_compared_and_set(client: ProtocolClient) -> None:
    async def value() -> int:
        reply = await client.ask(GetSegmentAttribute(3, SEGMENT, MARK, ""), SegmentAttribute)
        assert reply.request_id == 3
        return reply.value

    async def update(new: int, expected: int) -> bool:
        command = UpdateSegmentAttribute(4, SEGMENT, MARK, new, expected, "")
        reply = await client.ask(command, SegmentAttributeUpdated)
        assert reply.request_id == 4
        return reply.success

    assert await value() == NO_ATTRIBUTE_VALUE
    assert not await update(5, 1)
    assert await update(5, NO_ATTRIBUTE_VALUE)
    assert not await update(6, NO_ATTRIBUTE_VALUE)
    assert await update(6, 5)
    assert await value() == 6
    assert await update(NO_ATTRIBUTE_VALUE, 6)
    assert await value() == NO_ATTRIBUTE_VALUE


async def test_attributes_of_the_store_itself_are_read_and_not_written(
    node: Node, client: ProtocolClient
) -> None:
    await client.ask(UpdateSegmentPolicy(3, SEGMENT, 7, 1, ""), SegmentPolicyUpdated)
    update = UpdateSegmentAttribute(4, SEGMENT, SCALE_POLICY_RATE, 8, 7, "")
    assert (await client.ask(update, ErrorMessage)).error_code == 0
    read = GetSegmentAttribute(5, SEGMENT, SCALE_POLICY_RATE, "")
    assert (await client.ask(read, SegmentAttribute)).value == 7


def framed(*lengths: int) -> bytes:
    """Events of so many bytes, each behind its header."""
    return b"".join(bytes(4) + length.to_bytes(4, "big") + b"e" * length for length in lengths)


async def located(client: ProtocolClient, target: int) -> int:
    reply = await client.ask(LocateOffset(3, SEGMENT, target, ""), OffsetLocated)
    assert (reply.request_id, reply.segment) == (3, SEGMENT)
    return reply.offset


async def test_an_offset_is_located_at_the_event_that_begins_there_or_behind_it(
    node: Node, client: ProtocolClient
) -> None:
    await node.append(SEGMENT, framed(10, 0, 100_000, 5))
    begins = [0, 18, 26, 100_034, 100_047]
    for target in (-1, 0, 1, 17, 18, 19, 26, 27, 100_034, 100_035, 100_047, 1 << 40):
        wanted = next((begin for begin in begins if begin >= target), begins[-1])
        assert await located(client, target) == wanted, target
    await node.container.truncate(SEGMENT, 18)
    assert [await located(client, target) for target in (0, 18, 19)] == [18, 18, 26]


async def test_a_search_for_an_event_gives_way_between_pieces_and_has_its_bound(node: Node) -> None:
    pieces = 12
    content = framed(*[8] * (pieces * (64 << 10) // 16))
    await node.append(SEGMENT, content)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.ensure_future(count_turns())
    async with node.container.open_segment(SEGMENT) as segment:
        target = len(content) - 8
        found = await first_event_from(segment, 0, target, bytes_max=target)
        assert found == len(content)
        # All of it is in memory, and the loop was free after each piece.
        assert turns >= pieces - 1
        assert await first_event_from(segment, 0, target, bytes_max=target - 1) is None
    counting.cancel()


async def test_few_searches_for_events_read_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    running, most = 0, 0

    async def search(segment: Segment, position: int, target: int, *, bytes_max: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return target

    monkeypatch.setattr(segment_commands, "first_event_from", search)
    async with running_node(replace(QUICK, event_searches_max=2)) as node:
        await node.container.create(SEGMENT)
        await node.append(SEGMENT, framed(*[8] * 50))
        clients = [await node.client() for _ in range(3)]
        for client in clients:
            client.send(*(LocateOffset(number, SEGMENT, 20, "") for number in range(20)))
        for client in clients:
            for _ in range(20):
                assert (await client.expect(OffsetLocated)).offset == 20
    assert most == 2


async def test_an_offset_among_bytes_that_are_no_events_is_located_at_the_end(
    node: Node, client: ProtocolClient
) -> None:
    await node.append(SEGMENT, b"0123456789" * 3)
    assert [await located(client, target) for target in (0, 9, 30, 99)] == [0, 30, 30, 30]


async def test_an_event_is_counted_from_where_somebody_knows_that_one_begins(node: Node) -> None:
    asked: list[int] = []

    async def event_near(segment: str, offset: int) -> int | None:
        assert segment == SEGMENT
        asked.append(offset)
        return {15: 10, 40: 60}.get(offset)

    await node.append(SEGMENT, b"no event, " + framed(2, 2, 40) + b"nothing of the kind")
    async with running_server(node.container, MemoryTables(), event_near=event_near) as server:
        client = await ProtocolClient.connect(server.address)
        assert await located(client, 15) == 20
        assert await located(client, 40) == 60
        assert await located(client, 50) == (await node.container.info(SEGMENT)).length
        await client.close()
    assert asked == [15, 40, 50]


# --- merges --------------------------------------------------------------------------------------


async def test_a_flush_brings_tier_2_up_to_date(node: Node, client: ProtocolClient) -> None:
    await node.append(SEGMENT, b"0123456789")
    assert await client.ask(FlushToStorage(0, "", 3), StorageFlushed) == StorageFlushed(3)
    assert (await node.container.info(SEGMENT)).storage_length == 10


async def test_chunks_cannot_be_listed_without_a_door_to_them(client: ProtocolClient) -> None:
    reply = await client.ask(ListStorageChunks(SEGMENT, "", 3), OperationUnsupported)
    assert reply.request_id == 3


async def test_chunks_are_listed_and_containers_flushed_through_the_doors_that_were_given(
    node: Node,
) -> None:
    chunk = StorageChunk(10, 10, 0, "chunk", True)
    flushed: list[int] = []

    async def list_chunks(segment: str) -> Sequence[StorageChunk]:
        assert segment == SEGMENT
        return [chunk]

    async def flush_container(container_id: int) -> None:
        flushed.append(container_id)

    async with running_server(
        node.container, MemoryTables(), list_chunks=list_chunks, flush_container=flush_container
    ) as server:
        client = await ProtocolClient.connect(server.address)
        listed = await client.ask(ListStorageChunks(SEGMENT, "", 3), StorageChunksListed)
        assert listed == StorageChunksListed(3, (chunk,))
        await client.ask(FlushToStorage(6, "", 4), StorageFlushed)
        await client.close()
    assert flushed == [6]


@pytest.mark.parametrize(
    "command",
    [
        GetStreamSegmentInfo(3, SEGMENT, ""),
        CreateSegment(3, SEGMENT, 0, 0, ""),
        ReadSegment(SEGMENT, 0, 10, "", 3),
    ],
    ids=lambda command: type(command).__name__,
)
async def test_a_container_that_is_not_here_is_said_to_be_elsewhere(
    node: Node, client: ProtocolClient, command: Command
) -> None:
    await node.container.close()
    reply = await client.ask(command, WrongHost)
    assert (reply.request_id, reply.correct_host) == (3, "")
    assert reply.server_stack.isascii()


async def test_names_that_are_no_ascii_are_refused_in_ascii(client: ProtocolClient) -> None:
    reply = await client.ask(GetStreamSegmentInfo(3, "s/\u20ac/0", ""), NoSuchSegment)
    assert reply.segment == "s/\u20ac/0"
    assert reply.server_stack.isascii()


def verify(token: str, segment: str, *, write: bool) -> TokenVerdict:
    assert segment in (SEGMENT, TRANSACTION)
    match token:
        case "reader":
            return TokenVerdict.REFUSED if write else TokenVerdict.ACCEPTED
        case "writer":
            return TokenVerdict.ACCEPTED
        case "old":
            return TokenVerdict.EXPIRED
    return TokenVerdict.UNSPECIFIED


async def test_tokens_are_looked_at_where_somebody_verifies_them() -> None:
    async with running_node(verify_token=verify) as node:
        await node.container.create(SEGMENT)
        client = await node.client()
        await client.ask(GetStreamSegmentInfo(3, SEGMENT, "reader"), StreamSegmentInfo)
        await client.ask(SealSegment(3, SEGMENT, "writer"), SegmentSealed)
        for command, code in (
            (SealSegment(4, SEGMENT, "reader"), 0),
            (ReadSegment(SEGMENT, 0, 10, "old", 4), 1),
            (GetStreamSegmentInfo(4, SEGMENT, ""), -1),
            (MergeSegments(4, SEGMENT, TRANSACTION, "old"), 1),
            (CreateTransientSegment(4, WRITER, SEGMENT, "reader"), 0),
        ):
            refusal = await client.ask(command, AuthTokenCheckFailed)
            assert (refusal.request_id, refusal.error_code) == (4, code)
        await client.ask(KeepAlive(), KeepAlive)


async def test_every_request_is_answered_exactly_once_with_its_own_number(
    client: ProtocolClient,
) -> None:
    for request_id in range(400):
        client.send(GetStreamSegmentInfo(request_id, SEGMENT, ""))
    answers = [await client.expect(StreamSegmentInfo) for _ in range(400)]
    assert sorted(answer.request_id for answer in answers) == list(range(400))
    client.send(KeepAlive())
    assert await client.receive() == KeepAlive()


def test_every_request_that_shows_a_token_has_one_handler(node: Node) -> None:
    of_segments = SegmentCommands(
        segments=node.container,
        reads=node.container,
        random=Random(1),
        flush_container=None,
        list_chunks=None,
        event_near=None,
        settings=QUICK,
    ).handlers
    handled = [
        *of_segments,
        *(command.type for command in TABLE_COMMANDS),
        SetupAppend.type,
        ReadSegment.type,
        CreateTransientSegment.type,
    ]
    requests = [
        kind
        for kind, command in COMMANDS.items()
        if "delegation_token" in {field.name for field in fields(command)}
    ]
    assert sorted(handled) == sorted(requests)
