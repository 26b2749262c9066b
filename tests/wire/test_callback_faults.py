"""What fails in a callback of a connection ends that connection: a client that waits for an answer learns of it.

No task would see the exception, and the client would wait for an answer that is never made.
"""

import asyncio
from typing import NoReturn

import pytest

from segmentstore.codec.wire_protocol.appends import DataAppended
from segmentstore.codec.wire_protocol.reads import ReadSegment
from segmentstore.codec.wire_protocol.segments import SegmentCreated
from segmentstore.codec.wire_protocol.tables import (
    CreateTableSegment,
    RemoveTableKeys,
    TableEntriesUpdated,
    UpdateTableEntries,
)
from segmentstore.contracts.tables import TableEntry, TableKey
from segmentstore.wire import table_order
from segmentstore.wire.reads import ConnectionReads
from segmentstore.wire.replies import SendBuffer
from segmentstore.wire.requests import ConnectionRequests
from segmentstore.wire.writers import Writer
from tests.wire.conftest import OTHER, SEGMENT, WRITER
from tests.wire.node import Node
from tests.wire.protocol_client import PATIENCE_SECONDS, event

TABLE = "scope/group_kvtable/0.#epoch.0"


def fail(*_arguments: object, **_more: object) -> NoReturn:
    raise RuntimeError("a bug in a callback")


def update() -> UpdateTableEntries:
    return UpdateTableEntries(5, TABLE, "", (TableEntry(b"k", b"v"),), -1)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (SendBuffer, "gather_acknowledgements"),
        (Writer, "take_acknowledgement"),
        (ConnectionReads, "_look_when_room"),
        (ConnectionRequests, "reply_frames"),
        (table_order, "change_reply"),
    ],
)
async def test_a_bug_in_a_callback_closes_the_connection_and_no_other(
    node: Node, monkeypatch: pytest.MonkeyPatch, owner: object, name: str
) -> None:
    reports: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    client, other = await node.client(), await node.client()
    await client.ask(CreateTableSegment(1, TABLE, ""), SegmentCreated)
    await client.ask(update(), TableEntriesUpdated)
    await client.set_up(WRITER, SEGMENT)
    await other.set_up(OTHER, SEGMENT)
    with monkeypatch.context() as broken:
        broken.setattr(owner, name, fail)
        if owner is ConnectionReads:
            length = (await node.container.info(SEGMENT)).length
            client.send(ReadSegment(SEGMENT, length, 100, "", 7))
            while not node.server.statistics().waiting_reads:
                await asyncio.sleep(0)
            async with node.container.open_segment(SEGMENT) as segment:
                await segment.append(b"x")
        elif owner in (SendBuffer, Writer):
            client.append(WRITER, event(b"hello"), 5)
        elif owner is ConnectionRequests:
            client.send(update())
        else:
            client.send(RemoveTableKeys(5, TABLE, "", (TableKey(b"k"),), -1))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await client.expect_close()
    other.append(OTHER, event(b"world"), 6)
    await other.expect(DataAppended)
    assert not reports
