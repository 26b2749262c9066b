"""The controller's records in the store: for clients, while the controller is of the same process."""

from dataclasses import replace

import pytest

from segmentstore.codec.wire_protocol.appends import CreateTransientSegment, SetupAppend
from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.reads import GetStreamSegmentInfo, ReadSegment
from segmentstore.codec.wire_protocol.refusals import ErrorMessage
from segmentstore.codec.wire_protocol.segments import (
    CreateSegment,
    DeleteSegment,
    MergeSegments,
    MergeSegmentsBatch,
    SealSegment,
    TruncateSegment,
)
from segmentstore.codec.wire_protocol.tables import (
    CreateTableSegment,
    DeleteTableSegment,
    IteratorArguments,
    ReadTable,
    ReadTableEntries,
    RemoveTableKeys,
    TableRead,
    UpdateTableEntries,
)
from segmentstore.contracts.tables import NO_VERSION, TableEntry, TableKey
from tests.containers.node import MemoryTiers, running
from tests.wire.conftest import SEGMENT, WRITER
from tests.wire.node import QUICK, running_server
from tests.wire.protocol_client import ProtocolClient

TABLE = "_system/_tables/scopes"
ENTRY = TableEntry(b"k", b"v", NO_VERSION)

COMMANDS: list[Command] = [
    CreateSegment(9, "_system/s", 0, 0, ""),
    DeleteSegment(9, TABLE, ""),
    SealSegment(9, TABLE, ""),
    TruncateSegment(9, TABLE, 2, ""),
    MergeSegments(9, SEGMENT, TABLE, ""),
    MergeSegments(9, TABLE, SEGMENT, ""),
    MergeSegmentsBatch(9, SEGMENT, ["scope/a", TABLE], ""),
    CreateTransientSegment(9, WRITER, TABLE, ""),
    GetStreamSegmentInfo(9, TABLE, ""),
    ReadSegment(TABLE, 0, 10, "", 9),
    SetupAppend(9, WRITER, TABLE, ""),
    CreateTableSegment(9, "_system/t", ""),
    DeleteTableSegment(9, TABLE, False, ""),
    UpdateTableEntries(9, TABLE, "", (ENTRY,), -1),
    RemoveTableKeys(9, TABLE, "", (TableKey(b"k", NO_VERSION),), -1),
    ReadTable(9, TABLE, "", (TableKey(b"k"),)),
    ReadTableEntries(9, TABLE, "", 10, IteratorArguments()),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
async def test_clients_do_not_reach_the_controllers_records(command: Command) -> None:
    async with (
        running(MemoryTiers()) as container,
        running_server(container, container, replace(QUICK), system_is_closed=True) as server,
    ):
        await container.create(SEGMENT)
        await container.create_table(TABLE)
        async with container.open_table(TABLE) as table:
            await table.update([ENTRY])
        client = await ProtocolClient.connect(server.address)
        # Twice: the second meets a table that may be open.
        for _ in range(2):
            refusal = await client.ask(command, ErrorMessage)
            assert refusal.request_id == 9
            assert "the store's own" in refusal.message
        async with container.open_table(TABLE) as table:
            found = await table.get([b"k"])
            assert [entry and entry.value for entry in found] == [b"v"]
        await client.close()


async def test_another_controller_may_keep_its_records_in_the_store() -> None:
    async with (
        running(MemoryTiers()) as container,
        running_server(container, container) as server,
    ):
        await container.create_table(TABLE)
        client = await ProtocolClient.connect(server.address)
        command = ReadTable(9, TABLE, "", (TableKey(b"k"),))
        assert (await client.ask(command, TableRead)).request_id == 9
        await client.close()
