"""A server whose container another process has taken over, and which has heard nothing of it.

A reader that is told "no such segment" or "end of segment" takes the segment for read to its end, and goes on with the
next ones: from a server that does not know more it would skip what others wrote. Such a server says "wrong host".
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from segmentstore.codec.wire_protocol.command import Command
from segmentstore.codec.wire_protocol.reads import (
    GetStreamSegmentInfo,
    ReadSegment,
    SegmentRead,
    StreamSegmentInfo,
)
from segmentstore.codec.wire_protocol.refusals import NoSuchSegment, WrongHost
from segmentstore.codec.wire_protocol.segments import SealSegment, SegmentSealed
from tests.containers.node import MemoryTiers, make_container
from tests.wire.conftest import SEGMENT
from tests.wire.node import running_node, running_server
from tests.wire.protocol_client import PATIENCE_SECONDS, ProtocolClient

SEALED = "a/b/7.#epoch.0"

QUESTIONS: dict[str, Command] = {
    "a segment that it does not know": ReadSegment("a/b/1", 0, 100, "", 5),
    "the end of a sealed segment": ReadSegment(SEALED, 3, 100, "", 5),
    "the end of an open segment": ReadSegment(SEGMENT, 3, 100, "", 5),
    "past the end": ReadSegment(SEGMENT, 9, 100, "", 5),
    "properties": GetStreamSegmentInfo(5, SEGMENT, ""),
    "properties of a segment that it does not know": GetStreamSegmentInfo(5, "a/b/1", ""),
    "sealing what is sealed": SealSegment(5, SEALED, ""),
}


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS.keys())
@pytest.mark.parametrize("is_open", [False, True], ids=["closed", "open"])
async def test_h82_a_fenced_server_says_wrong_host_and_never_that_a_segment_is_gone_or_ends(
    question: Command, is_open: bool
) -> None:
    async with fenced_later() as (tiers, client):
        if is_open:
            for segment in (SEGMENT, SEALED):
                await client.ask(ReadSegment(segment, 0, 100, "", 1), SegmentRead)
        tiers.log_store.epoch += 1  # what a new owner does first
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await client.ask(question, WrongHost)).request_id == 5


@asynccontextmanager
async def fenced_later() -> AsyncIterator[tuple[MemoryTiers, ProtocolClient]]:
    """A server whose container ends by a fence without ending the test."""
    tiers = MemoryTiers()
    container = make_container(tiers, lease=None)
    await container.start()
    work = asyncio.create_task(container.run())
    for segment in (SEGMENT, SEALED):
        await container.create(segment)
        async with container.open_segment(segment) as opened:
            await opened.append(b"abc")
    await container.seal(SEALED)
    try:
        async with running_server(container, container) as server:
            client = await ProtocolClient.connect(server.address)
            try:
                yield tiers, client
            finally:
                await client.close()
    finally:
        await container.close()
        await asyncio.gather(work, return_exceptions=True)


async def test_h82_a_server_that_is_still_the_owner_says_all_of_it_when_it_has_looked() -> None:
    async with running_node(lease=None) as node:
        for segment in (SEGMENT, SEALED):
            await node.container.create(segment)
            await node.append(segment, b"abc")
        client = await node.client()
        assert (await client.ask(SealSegment(1, SEALED, ""), SegmentSealed)).request_id == 1
        assert (await client.ask(ReadSegment(SEALED, 3, 100, "", 2), SegmentRead)).end_of_segment
        await client.ask(ReadSegment("a/b/1", 0, 100, "", 3), NoSuchSegment)
        info = await client.ask(GetStreamSegmentInfo(4, SEALED, ""), StreamSegmentInfo)
        assert info.is_sealed
        client.send(ReadSegment(SEGMENT, 3, 100, "", 5))
        while node.server.statistics().waiting_reads != 1:
            await asyncio.sleep(0)
        await node.append(SEGMENT, b"def")
        assert (await client.expect(SegmentRead)).data == b"def"
