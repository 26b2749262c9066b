"""A transient segment goes with the connection that made it, unless it was asked to be merged."""

import asyncio
from dataclasses import replace

import pytest

from segmentstore.codec.wire_protocol.appends import (
    ConditionalBlockEnd,
    CreateTransientSegment,
    DataAppended,
)
from segmentstore.codec.wire_protocol.reads import SegmentAttributeUpdated
from segmentstore.codec.wire_protocol.refusals import ErrorMessage, SegmentIsSealed
from segmentstore.codec.wire_protocol.segments import (
    AttributeChange,
    MergeSegments,
    MergeSegmentsBatch,
    SegmentCreated,
    SegmentsMerged,
)
from segmentstore.contracts.errors import LogFullError, SegmentNotFoundError
from tests.wire.conftest import SEGMENT, WRITER
from tests.wire.node import QUICK, Node, running_node
from tests.wire.protocol_client import PATIENCE_SECONDS, ProtocolClient


async def create(client: ProtocolClient) -> str:
    command = CreateTransientSegment(3, WRITER, SEGMENT, "")
    return (await client.ask(command, SegmentCreated)).segment


async def names(node: Node) -> list[str]:
    return [each.name for each in await node.container.list_segments()]


async def wait_until_names_are(node: Node, *expected: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await names(node) != sorted(expected):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("aborts", [False, True])
async def test_what_a_client_did_not_merge_goes_with_its_connection(
    node: Node, client: ProtocolClient, *, aborts: bool
) -> None:
    others = await node.client()
    kept = await create(others)
    written, _ = await create(client), await create(client)
    await client.set_up(WRITER, written)
    client.send(ConditionalBlockEnd(WRITER, 1, 0, b"the first piece", 9))
    await client.expect(DataAppended)
    if aborts:
        client.abort()
    else:
        await client.close()
    await wait_until_names_are(node, SEGMENT, kept)


async def test_one_that_is_being_made_when_the_connection_ends_goes_with_it(
    node: Node, client: ProtocolClient
) -> None:
    node.log.hold()
    client.send(CreateTransientSegment(3, WRITER, SEGMENT, ""))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not node.log.held_count:
            await asyncio.sleep(0.01)
    client.abort()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while node.server.statistics().connections:
            await asyncio.sleep(0.01)
    node.log.let_go()
    # Behind its creation in the log.
    await node.container.create("later")
    await wait_until_names_are(node, SEGMENT, "later")


async def test_one_that_could_not_be_made_keeps_none_from_going_with_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running_node(replace(QUICK, transients_per_connection_max=1)) as node:
        await node.container.create(SEGMENT)
        client = await node.client()
        await create(client)

        async def refusing(name: str, attributes: object = ()) -> None:
            raise LogFullError(f"the disk of the log is full {name} {attributes}")

        with monkeypatch.context() as patched:
            patched.setattr(node.container, "create", refusing)
            await client.ask(CreateTransientSegment(4, WRITER, SEGMENT, ""), ErrorMessage)
        await client.close()
        await wait_until_names_are(node, SEGMENT)


@pytest.mark.parametrize("in_a_batch", [False, True])
async def test_one_that_is_being_merged_when_the_connection_ends_is_merged(
    node: Node, client: ProtocolClient, *, in_a_batch: bool
) -> None:
    name = await create(client)
    await client.set_up(WRITER, name)
    client.send(ConditionalBlockEnd(WRITER, 1, 0, b"all of it", 9))
    await client.expect(DataAppended)
    node.log.hold()
    client.send(
        MergeSegmentsBatch(4, SEGMENT, (name,), "")
        if in_a_batch
        else MergeSegments(4, SEGMENT, name, "")
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not node.log.held_count:
            await asyncio.sleep(0.01)
    client.abort()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while node.server.statistics().connections:
            await asyncio.sleep(0.01)
    node.log.let_go()
    await wait_until_names_are(node, SEGMENT)
    assert await node.content(SEGMENT) == b"all of it"


async def test_one_whose_merge_was_refused_goes_with_the_connection(
    node: Node, client: ProtocolClient
) -> None:
    name = await create(client)
    await node.container.seal(SEGMENT)
    await client.ask(MergeSegments(4, SEGMENT, name, ""), SegmentIsSealed)
    assert name in await names(node)
    await client.close()
    await wait_until_names_are(node, SEGMENT)


async def test_one_whose_merge_met_another_attribute_goes_with_the_connection(
    node: Node, client: ProtocolClient
) -> None:
    name = await create(client)
    changes = (AttributeChange(WRITER, 4, 8, 7),)
    await client.ask(MergeSegments(4, SEGMENT, name, "", changes), SegmentAttributeUpdated)
    assert name in await names(node)
    await client.close()
    await wait_until_names_are(node, SEGMENT)


async def test_one_that_is_gone_already_is_passed_over(node: Node, client: ProtocolClient) -> None:
    gone, merged, left = [await create(client) for _ in range(3)]
    await node.container.delete(gone)
    await client.ask(MergeSegments(4, SEGMENT, merged, ""), SegmentsMerged)
    await client.close()
    await wait_until_names_are(node, SEGMENT)
    with pytest.raises(SegmentNotFoundError):
        await node.container.info(left)


async def test_one_that_cannot_be_deleted_now_stays_and_keeps_back_no_other(
    node: Node, client: ProtocolClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = await create(client), await create(client)
    delete = node.container.delete

    async def refusing(name: str) -> None:
        if name == first:
            raise LogFullError("the disk of the log is full")
        await delete(name)

    monkeypatch.setattr(node.container, "delete", refusing)
    await client.close()
    await wait_until_names_are(node, SEGMENT, first)


async def test_of_many_the_newest_go_with_the_connection() -> None:
    async with running_node(replace(QUICK, transients_per_connection_max=2)) as node:
        await node.container.create(SEGMENT)
        client = await node.client()
        oldest, *_ = [await create(client) for _ in range(3)]
        await client.close()
        await wait_until_names_are(node, SEGMENT, oldest)


async def test_a_server_that_ends_leaves_them_to_clients_that_come_back() -> None:
    async with running_node() as node:
        await node.container.create(SEGMENT)
        name = await create(await node.client())
        await node.server.close()
        assert await names(node) == [SEGMENT, name]
