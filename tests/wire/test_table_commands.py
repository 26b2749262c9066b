"""Tables over the wire. What a table does is shown elsewhere; here is how it is asked and answered."""

import asyncio
from dataclasses import replace

import pytest

from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.refusals import (
    ErrorMessage,
    NoSuchSegment,
    OperationUnsupported,
    SegmentAlreadyExists,
    SegmentIsTruncated,
    TableKeyBadVersion,
    TableKeyDoesNotExist,
    TableSegmentNotEmpty,
    WrongHost,
)
from segmentstore.codec.wire_protocol.segments import SegmentCreated, SegmentDeleted
from segmentstore.codec.wire_protocol.tables import (
    CreateTableSegment,
    DeleteTableSegment,
    GetTableSegmentInfo,
    IteratorArguments,
    ReadTable,
    ReadTableEntries,
    ReadTableEntriesDelta,
    ReadTableKeys,
    RemoveTableKeys,
    TableEntriesDeltaRead,
    TableEntriesRead,
    TableEntriesUpdated,
    TableKeysRead,
    TableKeysRemoved,
    TableRead,
    TableSegmentInfo,
    UpdateTableEntries,
)
from segmentstore.contracts.tables import NO_VERSION, NOT_EXISTS, TableEntry, TableKey
from tests.wire.node import QUICK, Node, running_node
from tests.wire.protocol_client import ProtocolClient

TABLE = "scope/group_kvtable/0.#epoch.0"
FIXED = "scope/fixed_kvtable/0.#epoch.0"


@pytest.fixture
async def table(node: Node, client: ProtocolClient) -> ProtocolClient:
    """A client of a node with TABLE, of the hash layout, and FIXED, of two-byte keys."""
    await client.ask(CreateTableSegment(1, TABLE, ""), SegmentCreated)
    await client.ask(CreateTableSegment(1, FIXED, "", False, 2, 0), SegmentCreated)
    return client


async def update(
    client: ProtocolClient, *entries: TableEntry, segment: str = TABLE, offset: int = -1
) -> list[int]:
    command = UpdateTableEntries(5, segment, "", entries, offset)
    reply = await client.ask(command, TableEntriesUpdated)
    assert reply.request_id == 5
    return list(reply.versions)


async def get(client: ProtocolClient, *keys: bytes, segment: str = TABLE) -> list[TableEntry]:
    command = ReadTable(6, segment, "", tuple(map(TableKey, keys)))
    reply = await client.ask(command, TableRead)
    assert (reply.request_id, reply.segment) == (6, segment)
    return list(reply.entries)


async def test_a_table_is_created_once_and_described(table: ProtocolClient) -> None:
    reply = await table.ask(CreateTableSegment(2, TABLE, ""), SegmentAlreadyExists)
    assert (reply.request_id, reply.segment) == (2, TABLE)
    info = await table.ask(GetTableSegmentInfo(3, FIXED, ""), TableSegmentInfo)
    assert info == TableSegmentInfo(3, FIXED, 0, 0, 0, 2)


async def test_a_table_with_a_negative_key_length_has_the_hash_layout(
    table: ProtocolClient,
) -> None:
    segment = "scope/negative_kvtable/0.#epoch.0"
    await table.ask(CreateTableSegment(2, segment, "", False, -1, -1), SegmentCreated)
    info = await table.ask(GetTableSegmentInfo(3, segment, ""), TableSegmentInfo)
    assert info.key_length == 0
    assert len(await update(table, TableEntry(b"any", b"1"), segment=segment)) == 1


async def test_entries_are_stored_and_found_in_the_order_asked_for(table: ProtocolClient) -> None:
    versions = await update(table, TableEntry(b"a", b"1"), TableEntry(b"b", b"2"))
    assert versions == sorted(versions)
    found = await get(table, b"b", b"missing", b"a")
    assert found == [
        TableEntry(b"b", b"2", versions[1]),
        TableEntry(b"missing", b"", NOT_EXISTS),
        TableEntry(b"a", b"1", versions[0]),
    ]


async def test_h64_a_key_that_repeats_in_a_batch_is_judged_against_the_state_before(
    table: ProtocolClient,
) -> None:
    versions = await update(
        table, TableEntry(b"a", b"first", NOT_EXISTS), TableEntry(b"a", b"last", NOT_EXISTS)
    )
    assert len(versions) == 2
    assert await get(table, b"a") == [TableEntry(b"a", b"last", versions[1])]


async def test_a_lost_condition_is_told_by_its_own_command(table: ProtocolClient) -> None:
    (version,) = await update(table, TableEntry(b"a", b"1"))
    for entries, kind in (
        ((TableEntry(b"a", b"2", NOT_EXISTS),), TableKeyBadVersion),
        ((TableEntry(b"a", b"2", version + 1),), TableKeyBadVersion),
        ((TableEntry(b"b", b"2", 7),), TableKeyDoesNotExist),
        ((TableEntry(b"c", b"3"), TableEntry(b"a", b"2", NOT_EXISTS)), TableKeyBadVersion),
    ):
        command = UpdateTableEntries(8, TABLE, "", entries, -1)
        reply = await table.ask(command, kind)
        assert isinstance(reply, TableKeyBadVersion | TableKeyDoesNotExist)
        assert (reply.request_id, reply.segment) == (8, TABLE)
    assert (await get(table, b"c"))[0].version == NOT_EXISTS
    assert await update(table, TableEntry(b"a", b"2", version))


async def test_an_expected_table_length_is_compared(table: ProtocolClient) -> None:
    await update(table, TableEntry(b"a", b"1"), offset=0)
    info = await table.ask(GetTableSegmentInfo(3, TABLE, ""), TableSegmentInfo)
    assert info.length > 0
    for command in (
        UpdateTableEntries(8, TABLE, "", (TableEntry(b"a", b"2"),), 7),
        RemoveTableKeys(8, TABLE, "", (TableKey(b"a"),), 7),
    ):
        refused = await table.ask(command, SegmentIsTruncated)
        assert (refused.request_id, refused.start_offset, refused.offset) == (8, info.length, 7)
    await update(table, TableEntry(b"a", b"2"), offset=info.length)


async def test_keys_are_removed(table: ProtocolClient) -> None:
    (version,) = await update(table, TableEntry(b"a", b"1"))
    removal = RemoveTableKeys(9, TABLE, "", (TableKey(b"a", version + 1),), -1)
    await table.ask(removal, TableKeyBadVersion)
    removal = RemoveTableKeys(9, TABLE, "", (TableKey(b"a", version),), -1)
    assert await table.ask(removal, TableKeysRemoved) == TableKeysRemoved(9, TABLE)
    assert (await get(table, b"a"))[0].version == NOT_EXISTS


async def test_a_table_that_is_not_empty_is_deleted_only_if_that_is_fine(
    table: ProtocolClient,
) -> None:
    await update(table, TableEntry(b"a", b"1"))
    refused = await table.ask(DeleteTableSegment(4, TABLE, True, ""), TableSegmentNotEmpty)
    assert (refused.request_id, refused.segment) == (4, TABLE)
    deleted = await table.ask(DeleteTableSegment(4, TABLE, False, ""), SegmentDeleted)
    assert deleted == SegmentDeleted(4, TABLE)


async def test_a_table_of_the_same_name_is_asked_and_not_the_one_before(
    table: ProtocolClient,
) -> None:
    await update(table, TableEntry(b"a", b"old"))
    await table.ask(DeleteTableSegment(4, TABLE, False, ""), SegmentDeleted)
    await table.ask(CreateTableSegment(1, TABLE, ""), SegmentCreated)
    assert (await get(table, b"a"))[0].version == NOT_EXISTS
    await table.ask(DeleteTableSegment(4, TABLE, False, ""), SegmentDeleted)
    await table.ask(CreateTableSegment(1, TABLE, ""), SegmentCreated)
    assert await update(table, TableEntry(b"a", b"new", NOT_EXISTS))


@pytest.mark.parametrize(
    "command",
    [
        UpdateTableEntries(3, "a/b", "", (TableEntry(b"a", b"1"),), -1),
        RemoveTableKeys(3, "a/b", "", (TableKey(b"a"),), -1),
        ReadTable(3, "a/b", "", (TableKey(b"a"),)),
        ReadTableKeys(3, "a/b", "", 1, IteratorArguments()),
        ReadTableEntries(3, "a/b", "", 1, IteratorArguments()),
        ReadTableEntriesDelta(3, "a/b", "", 0, 1),
        GetTableSegmentInfo(3, "a/b", ""),
        DeleteTableSegment(3, "a/b", False, ""),
    ],
    ids=lambda command: type(command).__name__,
)
async def test_a_missing_table_is_named(table: ProtocolClient, command: Command) -> None:
    reply = await table.ask(command, NoSuchSegment)
    assert (reply.request_id, reply.segment) == (3, "a/b")


@pytest.mark.parametrize("count", [1, 3, 5, 10, 11])
async def test_an_iteration_of_the_hash_layout_ends_with_an_empty_page_and_never_begins_anew(
    table: ProtocolClient, count: int
) -> None:
    entries = [TableEntry(b"%02d" % n, b"v%d" % n) for n in range(10)]
    await update(table, *entries)
    keys: list[bytes] = []
    token = b""
    while True:
        page = await table.ask(
            ReadTableKeys(7, TABLE, "", count, IteratorArguments(token)), TableKeysRead
        )
        assert page.request_id == 7
        assert len(page.keys) <= count
        if not page.keys:
            break
        keys += [key.key for key in page.keys]
        token = page.continuation_token
        assert token, "an empty token begins anew"
    assert sorted(keys) == [entry.key for entry in entries]
    assert page.continuation_token == token
    values: dict[bytes, bytes] = {}
    token = b""
    while True:
        entry_page = await table.ask(
            ReadTableEntries(7, TABLE, "", count, IteratorArguments(token)), TableEntriesRead
        )
        if not entry_page.entries:
            break
        assert not values.keys() & {entry.key for entry in entry_page.entries}
        values |= {entry.key: entry.value for entry in entry_page.entries}
        token = entry_page.continuation_token
        assert token, "an empty token begins anew"
    assert values == {entry.key: entry.value for entry in entries}
    assert entry_page.continuation_token == token


async def test_an_iteration_of_an_empty_table_is_one_empty_page(table: ProtocolClient) -> None:
    page = await table.ask(ReadTableKeys(7, TABLE, "", 5, IteratorArguments()), TableKeysRead)
    assert (list(page.keys), page.continuation_token) == ([], b"")


async def test_an_iteration_of_the_fixed_layout_ends_with_an_empty_token(
    table: ProtocolClient,
) -> None:
    await update(table, *(TableEntry(b"%02d" % n, b"v") for n in range(10)), segment=FIXED)
    bounds = IteratorArguments(b"", b"", b"00", b"99")
    page = await table.ask(ReadTableKeys(7, FIXED, "", 10, bounds), TableKeysRead)
    assert (len(page.keys), page.continuation_token) == (10, b"")


async def test_the_fixed_layout_is_read_by_range(table: ProtocolClient) -> None:
    await update(table, *(TableEntry(b"%02d" % n, b"v") for n in range(10)), segment=FIXED)
    bounds = IteratorArguments(b"", b"", b"03", b"06")
    page = await table.ask(ReadTableKeys(7, FIXED, "", 100, bounds), TableKeysRead)
    assert [key.key for key in page.keys] == [b"03", b"04", b"05", b"06"]


async def test_changes_are_read_from_a_position_on(table: ProtocolClient) -> None:
    await update(table, TableEntry(b"a", b"1"), TableEntry(b"b", b"2"))
    first = await table.ask(ReadTableEntriesDelta(7, TABLE, "", 0, 10), TableEntriesDeltaRead)
    assert [entry.key for entry in first.entries] == [b"a", b"b"]
    assert (first.request_id, first.reached_end, first.should_clear) == (7, True, False)
    await update(table, TableEntry(b"a", b"3"))
    second = await table.ask(
        ReadTableEntriesDelta(7, TABLE, "", first.last_position, 10), TableEntriesDeltaRead
    )
    assert [(entry.key, entry.value) for entry in second.entries] == [(b"a", b"3")]
    last = await table.ask(
        ReadTableEntriesDelta(7, TABLE, "", second.last_position, 10), TableEntriesDeltaRead
    )
    assert (list(last.entries), last.reached_end) == ([], True)


async def test_the_fixed_layout_has_no_changes_to_read(table: ProtocolClient) -> None:
    reply = await table.ask(ReadTableEntriesDelta(7, FIXED, "", 0, 10), OperationUnsupported)
    assert reply.request_id == 7


async def test_a_page_of_large_entries_is_cut_to_what_a_frame_holds(table: ProtocolClient) -> None:
    value = bytes(1_000_000)
    for number in range(20):
        await update(table, TableEntry(b"%02d" % number, value))
    page = await table.ask(
        ReadTableEntries(7, TABLE, "", 100, IteratorArguments()), TableEntriesRead
    )
    assert 0 < len(page.entries) < 17
    assert page.continuation_token
    delta = await table.ask(ReadTableEntriesDelta(7, TABLE, "", 0, 100), TableEntriesDeltaRead)
    assert 0 < len(delta.entries) < 17
    assert not delta.reached_end


async def test_a_page_is_encoded_once(
    table: ProtocolClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await update(table, *(TableEntry(b"%02d" % number, b"v") for number in range(20)))
    encoded: list[type[Command]] = []
    encode = Command.encode

    def count(command: Command) -> bytes:
        encoded.append(type(command))
        return encode(command)

    monkeypatch.setattr(Command, "encode", count)
    bounds = IteratorArguments()
    await table.ask(ReadTableKeys(7, TABLE, "", 10, bounds), TableKeysRead)
    await table.ask(ReadTableEntries(7, TABLE, "", 10, bounds), TableEntriesRead)
    await table.ask(ReadTableEntriesDelta(7, TABLE, "", 0, 10), TableEntriesDeltaRead)
    pages = (TableKeysRead, TableEntriesRead, TableEntriesDeltaRead)
    assert [kind for kind in encoded if kind in pages] == list(pages)


async def test_values_too_large_for_one_answer_are_refused(table: ProtocolClient) -> None:
    keys = [b"%02d" % number for number in range(20)]
    for key in keys:
        await update(table, TableEntry(key, bytes(1_000_000)))
    reply = await table.ask(ReadTable(6, TABLE, "", tuple(map(TableKey, keys))), ErrorMessage)
    assert (reply.request_id, reply.error_code) == (6, 0)


async def test_an_empty_key_is_refused(table: ProtocolClient) -> None:
    command = UpdateTableEntries(6, TABLE, "", (TableEntry(b"", b"1"),), -1)
    reply = await table.ask(command, ErrorMessage)
    assert (reply.request_id, reply.error_code) == (6, 0)


async def test_tables_that_went_away_are_said_to_be_elsewhere(
    node: Node, table: ProtocolClient
) -> None:
    await update(table, TableEntry(b"a", b"1"))
    node.tables.stop()
    command = ReadTable(7, TABLE, "", (TableKey(b"a"),))
    assert (await table.ask(command, WrongHost)).request_id == 7


async def test_updates_in_a_row_are_each_answered(node: Node, table: ProtocolClient) -> None:
    await update(table, TableEntry(b"a", b"1"))
    for number in range(500):
        entry = TableEntry(b"%d" % number, bytes(100))
        table.send(UpdateTableEntries(number, TABLE, "", (entry,), -1))
    answers = [await table.expect(TableEntriesUpdated) for _ in range(500)]
    assert [answer.request_id for answer in answers] == list(range(500))
    versions = [answer.versions[0] for answer in answers]
    assert versions == sorted(versions)
    assert node.server.statistics().unacknowledged_bytes == 0


async def receive_all(client: ProtocolClient, count: int) -> dict[int, Command]:
    """Replies by request id."""
    replies: dict[int, Command] = {}
    for _ in range(count):
        reply = await client.receive()
        request_id = getattr(reply, "request_id", None)
        assert isinstance(request_id, int), reply
        assert request_id not in replies, reply
        replies[request_id] = reply
    return replies


def single(
    number: int, key: bytes, value: bytes, version: int = NO_VERSION, *, segment: str = TABLE
) -> UpdateTableEntries:
    return UpdateTableEntries(number, segment, "", (TableEntry(key, value, version),))


async def test_updates_that_come_together_are_judged_and_answered_each_by_itself(
    node: Node, table: ProtocolClient
) -> None:
    (old,) = await update(table, TableEntry(b"a", b"0"))
    await update(table, TableEntry(b"aa", b"0"), segment=FIXED)
    table.send(
        single(1, b"a", b"1", old),
        single(2, b"a", b"2", old),
        single(3, b"b", b"3", 17),
        single(4, b"xx", b"4", segment=FIXED),
        single(5, b"not two bytes", b"5", segment=FIXED),
        single(6, b"yy", b"6", segment=FIXED),
        single(7, b"c", b"7", NOT_EXISTS),
        single(8, b"", b"8"),
        single(9, b"d", b"9", segment="a/b"),
        single(10, b"c", b"10"),
    )
    replies = await receive_all(table, 10)
    assert {number: type(reply) for number, reply in replies.items()} == {
        1: TableEntriesUpdated,
        2: TableKeyBadVersion,
        3: TableKeyDoesNotExist,
        4: TableEntriesUpdated,
        5: ErrorMessage,
        6: TableEntriesUpdated,
        7: TableEntriesUpdated,
        8: ErrorMessage,
        9: NoSuchSegment,
        10: TableEntriesUpdated,
    }
    found = await get(table, b"a", b"b", b"c")
    assert [entry.value for entry in found] == [b"1", b"", b"10"]
    last = replies[10]
    assert isinstance(last, TableEntriesUpdated)
    assert found[2].version == last.versions[0]
    assert [entry.value for entry in await get(table, b"xx", b"yy", segment=FIXED)] == [b"4", b"6"]
    assert node.server.statistics().unacknowledged_bytes == 0
    assert node.server.statistics().requests >= 14


async def test_updates_and_removals_of_a_key_happen_in_the_order_in_which_they_were_sent(
    table: ProtocolClient,
) -> None:
    await update(table, TableEntry(b"a", b"0"))
    table.send(
        single(1, b"a", b"1"),
        RemoveTableKeys(2, TABLE, "", (TableKey(b"a"),), -1),
        single(3, b"a", b"3", NOT_EXISTS),
        UpdateTableEntries(4, TABLE, "", (TableEntry(b"a", b"4"), TableEntry(b"b", b"4"))),
        single(5, b"b", b"5"),
    )
    replies = await receive_all(table, 5)
    assert not any(isinstance(each, TableKeyBadVersion) for each in replies.values()), replies
    assert [entry.value for entry in await get(table, b"a", b"b")] == [b"4", b"5"]


async def test_updates_in_a_row_follow_a_table_that_was_created_again(
    node: Node, table: ProtocolClient
) -> None:
    await update(table, TableEntry(b"a", b"old"))
    # Not through the connection that keeps the table open.
    await node.tables.delete_table(TABLE, must_be_empty=False)
    await node.tables.create_table(TABLE)
    table.send(*(single(number, b"%d" % number, b"new") for number in range(20)))
    replies = await receive_all(table, 20)
    assert {type(reply) for reply in replies.values()} == {TableEntriesUpdated}
    assert (await get(table, b"7"))[0].value == b"new"
    assert node.server.statistics().unacknowledged_bytes == 0


async def test_updates_in_a_row_are_judged_by_the_key_length_that_their_table_has_now(
    node: Node, table: ProtocolClient
) -> None:
    await update(table, TableEntry(b"aa", b"0"), segment=FIXED)
    table.send(*(single(number, b"aa", b"old", segment=FIXED) for number in range(5)))
    await receive_all(table, 5)
    await node.tables.delete_table(FIXED, must_be_empty=False)
    await node.tables.create_table(FIXED, key_length=3)
    # The one that finds the table gone, and the other one in its place.
    await table.ask(single(9, b"aa", b"old", segment=FIXED), ErrorMessage)
    table.send(
        single(1, b"bbb", b"new", segment=FIXED),
        single(2, b"aa", b"old", segment=FIXED),
        single(3, b"aa", b"old", segment=FIXED),
        single(4, b"ccc", b"new", segment=FIXED),
    )
    replies = await receive_all(table, 4)
    accepted, refused = TableEntriesUpdated, ErrorMessage
    assert [type(replies[number]) for number in (1, 2, 3, 4)] == [
        accepted,
        refused,
        refused,
        accepted,
    ]
    assert [each.value for each in await get(table, b"bbb", b"ccc", segment=FIXED)] == [b"new"] * 2
    assert node.server.statistics().unacknowledged_bytes == 0


async def test_updates_that_were_stored_before_a_bad_frame_are_stored(
    node: Node, table: ProtocolClient
) -> None:
    await update(table, TableEntry(b"a", b"0"))
    table.send_bytes(single(1, b"a", b"1").encode() + bytes((0x7F,)) * 16)
    await table.expect_close()
    other = await node.client()
    assert (await get(other, b"a"))[0].value == b"1"


async def test_an_idle_table_is_let_go_of() -> None:
    async with running_node(replace(QUICK, pin_idle_seconds=0.0)) as node:
        client = await node.client()
        await client.ask(CreateTableSegment(1, TABLE, ""), SegmentCreated)
        await update(client, TableEntry(b"a", b"1"))
        while node.server.statistics().pinned_tables:
            await asyncio.sleep(0.01)
        assert (await get(client, b"a"))[0].value == b"1"
