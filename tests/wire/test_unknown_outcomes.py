"""Changes whose container stops before their outcome is known: their connection ends, and none of them is refused.

A refusal would say that nothing was done, and the client would do it again, or report a conflict with its own success.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from containers.segment_container import StreamSegmentContainer
from segmentstore.codec.wire_protocol.administration import FlushToStorage
from segmentstore.codec.wire_protocol.appends import CreateTransientSegment
from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.reads import (
    GetStreamSegmentInfo,
    ReadSegment,
    StreamSegmentInfo,
    UpdateSegmentAttribute,
)
from segmentstore.codec.wire_protocol.refusals import WrongHost
from segmentstore.codec.wire_protocol.segments import (
    CreateSegment,
    DeleteSegment,
    MergeSegments,
    MergeSegmentsBatch,
    SealSegment,
    TruncateSegment,
    UpdateSegmentPolicy,
)
from segmentstore.codec.wire_protocol.tables import (
    CreateTableSegment,
    DeleteTableSegment,
    RemoveTableKeys,
    TableEntriesUpdated,
    UpdateTableEntries,
)
from segmentstore.contracts.errors import DurableDataLogError, LogNotPrimaryError
from segmentstore.contracts.tables import NO_VERSION, NOT_EXISTS, TableEntry, TableKey
from tests.containers.node import MemoryTiers, make_container
from tests.wire.conftest import SEGMENT, WRITER
from tests.wire.node import HoldingLog, running_server
from tests.wire.protocol_client import ProtocolClient

TABLE = "scope/group_kvtable/0.#epoch.0"
SOURCE = f"{SEGMENT}#transaction.{'0' * 32}"
NEW = TableEntry(b"k", b"v", NOT_EXISTS)

CHANGES: list[Command] = [
    CreateSegment(9, "scope/stream/1.#epoch.0", 0, 0, ""),
    CreateTransientSegment(9, WRITER, SEGMENT, ""),
    SealSegment(9, SEGMENT, ""),
    DeleteSegment(9, SEGMENT, ""),
    TruncateSegment(9, SEGMENT, 2, ""),
    UpdateSegmentPolicy(9, SEGMENT, 1, 1, ""),
    UpdateSegmentAttribute(9, SEGMENT, WRITER, 4, -(1 << 63), ""),
    MergeSegments(9, SEGMENT, SOURCE, ""),
    MergeSegmentsBatch(9, SEGMENT, [SOURCE], ""),
    CreateTableSegment(9, "scope/other_kvtable/0.#epoch.0", ""),
    DeleteTableSegment(9, TABLE, False, ""),
    UpdateTableEntries(9, TABLE, "", (NEW,), -1),
    UpdateTableEntries(9, TABLE, "", (NEW, TableEntry(b"l", b"v", NO_VERSION)), -1),
    RemoveTableKeys(9, TABLE, "", (TableKey(b"there", NO_VERSION),), -1),
]


@asynccontextmanager
async def running_until_it_fails(
    container: StreamSegmentContainer,
) -> AsyncIterator[StreamSegmentContainer]:
    await container.start()
    life = asyncio.ensure_future(container.run())
    try:
        yield container
    finally:
        await container.close()
        await asyncio.wait([life])
        life.exception()


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[HoldingLog, ProtocolClient]]:
    """One container behind everything, with SEGMENT, SOURCE (sealed) and TABLE in it."""
    tiers = MemoryTiers()
    log = HoldingLog(tiers)
    async with (
        running_until_it_fails(make_container(tiers, log=log)) as container,
        running_server(container, container) as server,
    ):
        await container.create(SEGMENT)
        async with container.open_segment(SEGMENT) as segment:
            await segment.append(b"12345")
        await container.create(SOURCE)
        await container.seal(SOURCE)
        await container.create_table(TABLE)
        client = await ProtocolClient.connect(server.address)
        there = TableEntry(b"there", b"v", NO_VERSION)
        await client.ask(UpdateTableEntries(1, TABLE, "", (there,), -1), TableEntriesUpdated)
        yield log, client
        await client.close()


@pytest.mark.parametrize("error", [LogNotPrimaryError("fenced"), DurableDataLogError("disk")])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: type(change).__name__)
async def test_h86_a_change_whose_outcome_is_unknown_closes_its_connection(
    change: Command, error: DurableDataLogError
) -> None:
    async with connected() as (log, client):
        log.hold()
        client.send(change)
        while not log.held_count:
            await asyncio.sleep(0)
        log.fail(error)
        assert await client.expect_close() == []


@pytest.mark.parametrize(
    "question",
    [
        GetStreamSegmentInfo(9, SEGMENT, ""),
        ReadSegment(SEGMENT, 0, 10, "", 9),
        FlushToStorage(0, "", 9),
    ],
    ids=lambda question: type(question).__name__,
)
async def test_h86_what_changes_nothing_is_sent_elsewhere(question: Command) -> None:
    async with connected() as (log, client):
        log.hold()
        waiting = ReadSegment(SEGMENT, 5, 10, "", 8)
        client.send(waiting, GetStreamSegmentInfo(7, SEGMENT, ""))
        await client.expect(StreamSegmentInfo)
        log.fail(LogNotPrimaryError("fenced"))
        assert (await client.expect(WrongHost)).request_id == 8
        assert (await client.ask(question, WrongHost)).request_id == 9
