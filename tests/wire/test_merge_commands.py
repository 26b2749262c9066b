"""One segment becomes part of another: large events, transactions, batches."""

import asyncio
from dataclasses import replace

import pytest

from containers.container_settings import ContainerSettings
from segmentstore.codec.wire_protocol.appends import (
    NO_EVENT_NUMBER,
    ConditionalBlockEnd,
    CreateTransientSegment,
    DataAppended,
)
from segmentstore.codec.wire_protocol.command import KeepAlive
from segmentstore.codec.wire_protocol.reads import (
    NO_ATTRIBUTE_VALUE,
    GetStreamSegmentInfo,
    SegmentAttributeUpdated,
)
from segmentstore.codec.wire_protocol.refusals import (
    ErrorMessage,
    NoSuchSegment,
    SegmentIsSealed,
)
from segmentstore.codec.wire_protocol.segments import (
    AttributeChange,
    MergedSource,
    MergeSegments,
    MergeSegmentsBatch,
    SealSegment,
    SegmentCreated,
    SegmentsBatchMerged,
    SegmentSealed,
    SegmentsMerged,
)
from segmentstore.contracts.identifiers import (
    AttributeKey,
)
from tests.containers.node import FAST_FLUSH
from tests.wire.conftest import SEGMENT, WRITER
from tests.wire.node import Node, running_node
from tests.wire.protocol_client import ProtocolClient

MARK = bytes.fromhex("7df9a874246cc9d69397cdd19ead68c5")
MISSING = "scope/stream/9.#epoch.0"
TRANSACTION = f"{SEGMENT}#transaction.{'0' * 32}"
SECOND_TRANSACTION = f"{SEGMENT}#transaction.{'0' * 31}1"


async def test_a_large_event_goes_through_a_transient_segment_in_one_step(
    node: Node, client: ProtocolClient
) -> None:
    await node.append(SEGMENT, b"before")
    created = await client.ask(CreateTransientSegment(3, WRITER, SEGMENT, ""), SegmentCreated)
    name = created.segment
    assert name.startswith(f"{SEGMENT}#transient.{WRITER.hex()}.")
    assert len(name.rsplit(".", 1)[1]) == 32
    assert (await client.set_up(WRITER, name)).last_event_number == NO_EVENT_NUMBER
    client.send(ConditionalBlockEnd(WRITER, 1, 0, b"first half, ", 9))
    await client.expect(DataAppended)
    client.send(ConditionalBlockEnd(WRITER, 2, 12, b"second half", 9))
    await client.expect(DataAppended)
    merged = await client.ask(MergeSegments(4, SEGMENT, name, ""), SegmentsMerged)
    assert merged == SegmentsMerged(4, SEGMENT, name, 6 + 23)
    assert await node.content(SEGMENT) == b"beforefirst half, second half"
    await client.ask(GetStreamSegmentInfo(5, name, ""), NoSuchSegment)


async def test_transient_segments_of_one_writer_have_different_names(
    client: ProtocolClient,
) -> None:
    command = CreateTransientSegment(3, WRITER, SEGMENT, "")
    names = {(await client.ask(command, SegmentCreated)).segment for _ in range(3)}
    assert len(names) == 3


async def test_an_open_transaction_is_not_merged(node: Node, client: ProtocolClient) -> None:
    await node.container.create(TRANSACTION)
    await node.append(TRANSACTION, b"abc")
    reply = await client.ask(MergeSegments(4, SEGMENT, TRANSACTION, ""), ErrorMessage)
    assert reply.request_id == 4
    await client.ask(SealSegment(5, TRANSACTION, ""), SegmentSealed)
    merged = await client.ask(MergeSegments(6, SEGMENT, TRANSACTION, ""), SegmentsMerged)
    assert merged.target_length == 3


async def test_h74_a_merge_that_is_repeated_gives_the_same_answer_again(
    node: Node, client: ProtocolClient
) -> None:
    await node.container.create(TRANSACTION)
    await node.append(TRANSACTION, b"abc")
    await node.container.seal(TRANSACTION)
    command = MergeSegments(4, SEGMENT, TRANSACTION, "")
    first = await client.ask(command, SegmentsMerged)
    await node.append(SEGMENT, b"later")
    assert await client.ask(command, SegmentsMerged) == first
    assert await node.content(SEGMENT) == b"abclater"


async def test_a_merge_into_a_sealed_segment_is_refused(node: Node, client: ProtocolClient) -> None:
    await node.container.create(TRANSACTION)
    await node.container.seal(TRANSACTION)
    await node.container.seal(SEGMENT)
    reply = await client.ask(MergeSegments(4, SEGMENT, TRANSACTION, ""), SegmentIsSealed)
    assert (reply.request_id, reply.segment) == (4, SEGMENT)


async def test_a_merge_changes_attributes_of_the_target_in_the_same_step_or_not_at_all(
    node: Node, client: ProtocolClient
) -> None:
    await node.container.create(TRANSACTION)
    await node.append(TRANSACTION, b"abc")
    await node.container.seal(TRANSACTION)
    wrong = AttributeChange(MARK, 4, 8, 7)
    refused = await client.ask(
        MergeSegments(4, SEGMENT, TRANSACTION, "", (wrong,)), SegmentAttributeUpdated
    )
    assert refused == SegmentAttributeUpdated(4, success=False)
    assert await node.content(SEGMENT) == b""
    right = AttributeChange(MARK, 4, 8, NO_ATTRIBUTE_VALUE)
    command = MergeSegments(5, SEGMENT, TRANSACTION, "", (right,))
    merged = await client.ask(command, SegmentsMerged)
    assert await client.ask(command, SegmentsMerged) == merged
    assert await node.content(SEGMENT) == b"abc"
    key = AttributeKey(MARK)
    assert await node.container.attributes(SEGMENT, [key]) == {key: 8}


async def test_a_batch_merges_in_order_and_counts_sources_that_are_gone_as_merged(
    node: Node, client: ProtocolClient
) -> None:
    await node.append(SEGMENT, b"x")
    for name, data in ((TRANSACTION, b"first"), (SECOND_TRANSACTION, b"second")):
        await node.container.create(name)
        await node.append(name, data)
        await node.container.seal(name)
    gone = f"{SEGMENT}#transaction.{'f' * 32}"
    sources = (SECOND_TRANSACTION, gone, TRANSACTION)
    reply = await client.ask(MergeSegmentsBatch(4, SEGMENT, sources, ""), SegmentsBatchMerged)
    assert reply.target == SEGMENT
    assert list(reply.sources) == [
        MergedSource(SECOND_TRANSACTION, 7),
        MergedSource(gone, 7),
        MergedSource(TRANSACTION, 12),
    ]
    assert await node.content(SEGMENT) == b"xsecondfirst"


# --- operators, hosts, tokens --------------------------------------------------------------------


async def with_transactions(node: Node, count: int) -> list[str]:
    """Sealed ones; number n has the byte n."""
    names = [f"{SEGMENT}#transaction.{number:032x}" for number in range(count)]
    for number, name in enumerate(names):
        await node.container.create(name)
        await node.append(name, bytes([number]))
        await node.container.seal(name)
    return names


async def test_a_large_batch_waits_for_the_log_once() -> None:
    # Nothing is flushed: how often the log is shortened meanwhile depends on how long the batch takes.
    unflushed = replace(FAST_FLUSH, flush_interval_seconds=3600.0, prompt_age_seconds=3600.0)
    async with running_node(container_settings=ContainerSettings(writer=unflushed)) as node:
        await node.container.create(SEGMENT)
        client = await node.client()
        names = await with_transactions(node, 100)
        before = node.container.metrics()["frames_total"]
        command = MergeSegmentsBatch(4, SEGMENT, tuple(names), "")
        reply = await client.ask(command, SegmentsBatchMerged)
        assert [source.target_length for source in reply.sources] == list(range(1, 101))
        # The second at most is a checkpoint's.
        assert node.container.metrics()["frames_total"] - before <= 2
        assert await node.content(SEGMENT) == bytes(range(100))
        assert await client.ask(command, SegmentsBatchMerged) == reply


@pytest.mark.parametrize("every_second_is_transient", [False, True])
async def test_others_are_served_while_a_batch_names_very_many_sources_that_are_gone(
    node: Node, client: ProtocolClient, *, every_second_is_transient: bool
) -> None:
    other = await node.client()
    names = [f"{SEGMENT}#transaction.{number:032x}" for number in range(2_000)]
    if every_second_is_transient:
        names[::2] = [f"{SEGMENT}#transient.{number:032x}.{'0' * 32}" for number in range(1_000)]
    client.send(MergeSegmentsBatch(4, SEGMENT, tuple(names), ""))
    answer = asyncio.create_task(client.expect(SegmentsBatchMerged))
    served = 0
    while not answer.done():
        await other.ask(KeepAlive(), KeepAlive)
        served += 1
    assert [source.target_length for source in (await answer).sources] == [0] * 2_000
    assert served > 20


async def test_a_batch_stops_at_an_open_transaction_and_goes_on_when_it_is_repeated(
    node: Node, client: ProtocolClient
) -> None:
    names = await with_transactions(node, 4)
    late = f"{SEGMENT}#transaction.{'e' * 32}"
    await node.container.create(late)
    await node.append(late, b"late")
    gone = f"{SEGMENT}#transaction.{'f' * 32}"
    sources = (names[0], gone, names[1], late, names[2], gone, names[3])
    command = MergeSegmentsBatch(4, SEGMENT, sources, "")
    await client.ask(command, ErrorMessage)
    assert await node.content(SEGMENT) == b"\x00\x01"
    assert (await node.container.info(names[2])).length == 1
    await node.container.seal(late)
    reply = await client.ask(command, SegmentsBatchMerged)
    # A source that is gone stands at the end of the target as it is then.
    assert [source.target_length for source in reply.sources] == [1, 2, 2, 6, 7, 7, 8]
    assert await node.content(SEGMENT) == b"\x00\x01late\x02\x03"


async def test_a_batch_seals_transient_segments_and_no_others(
    node: Node, client: ProtocolClient
) -> None:
    (transaction,) = await with_transactions(node, 1)
    created = await client.ask(CreateTransientSegment(3, WRITER, SEGMENT, ""), SegmentCreated)
    await node.append(created.segment, b"large")
    command = MergeSegmentsBatch(4, SEGMENT, (created.segment, transaction), "")
    reply = await client.ask(command, SegmentsBatchMerged)
    assert [source.target_length for source in reply.sources] == [5, 6]
    assert await node.content(SEGMENT) == b"large\x00"
