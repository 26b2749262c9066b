"""An idempotent producer has several batches of a partition under way; one of them is refused, and comes again last."""

import pytest

from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.kafka_protocol.fetch import FetchResponse
from segmentstore.codec.kafka_protocol.produce import ProduceResponse
from segmentstore.codec.record_batch import SentBatch, parse_header, sent_batch
from segmentstore.contracts.errors import ContainerStoppedError
from segmentstore.kafka.refused_batches import RefusedBatches
from tests.kafka.node import Client, Node, batch, fetch, fetched, produce, produced, running
from tests.topics.batches import batch_of, records_in

PRODUCER = 7


def numbered(sequence: int, epoch: int = 0) -> bytes:
    """One record, whose value is its number."""
    return batch_of(b"%d" % sequence, producer=(PRODUCER, epoch, sequence))


async def code_of(client: Client, content: bytes) -> int:
    answer = await client.ask(produce((0, content)), ProduceResponse)
    return produced(answer).error_code


async def refused(node: Node, client: Client, sequence: int) -> int:
    """A batch that the container had when it failed. The number of its request; its answer is not read yet."""
    node.segments.hold()
    before = node.segments.append_count
    number = client.send(produce((0, numbered(sequence))))
    await node.until(lambda each: each.segments.append_count == before + 1)
    node.segments.fail(ContainerStoppedError("it stops"))
    return number


async def values(client: Client) -> list[bytes | None]:
    answer = await client.ask(fetch((0, 0)), FetchResponse)
    return [each.value for each in records_in(bytes(fetched(answer).records or b""))]


@pytest.mark.parametrize("durable", [0, 1], ids=["unknown", "known"])
async def test_what_was_sent_behind_a_refused_batch_is_stored_behind_it(durable: int) -> None:
    """Also if the partition knows nothing of the producer, and has been opened again meanwhile."""
    async with running() as node:
        client = await node.client()
        for sequence in range(durable):
            assert await code_of(client, numbered(sequence)) == ErrorCode.NONE
        first = await refused(node, client, durable)
        behind = [client.send(produce((0, numbered(durable + each)))) for each in (1, 2)]
        answers = [await client.answer(each, ProduceResponse) for each in (first, *behind)]
        again = [await code_of(client, numbered(durable + each)) for each in range(3)]
        stored = await values(client)

    assert [produced(each).error_code for each in answers] == [
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ]
    assert again == [ErrorCode.NONE] * 3
    assert stored == [b"%d" % each for each in range(durable + 3)]


async def test_what_the_partition_expects_is_not_held_up() -> None:
    """The refused batch has come by another connection."""
    async with running() as node:
        client, other = await node.client(), await node.client()
        await client.answer(await refused(node, client, 0), ProduceResponse)
        assert await code_of(client, numbered(1)) == ErrorCode.KAFKA_STORAGE_ERROR
        assert await code_of(other, numbered(0)) == ErrorCode.NONE
        assert await code_of(client, numbered(1)) == ErrorCode.NONE
        assert await values(client) == [b"0", b"1"]


async def test_a_producer_that_begins_anew_and_others_are_not_held_up() -> None:
    async with running() as node:
        client = await node.client()
        await client.answer(await refused(node, client, 0), ProduceResponse)
        assert await code_of(client, batch(b"of none")) == ErrorCode.NONE
        assert await code_of(client, numbered(0, epoch=1)) == ErrorCode.NONE
        assert await code_of(client, numbered(1, epoch=1)) == ErrorCode.NONE


def test_a_batch_is_waited_for_in_bounds() -> None:
    refused_batches = RefusedBatches(partitions_max=2, seconds=10)
    first, second, third = (SentBatch(PRODUCER, 0, each) for each in (2**31 - 1, 0, 1))

    for index in range(3):
        refused_batches.note(f"t{index}", first, now=0.0)
        refused_batches.told(f"t{index}", now=0.0)
    assert [refused_batches.holds_up(f"t{each}", second, now=1.0) for each in range(3)] == [
        False,
        True,
        True,
    ]
    refused_batches.note("t1", second, now=5.0)
    # Its request is answered when all of its batches are settled, which may take long.
    assert refused_batches.holds_up("t1", third, now=50.0)
    refused_batches.told("t1", now=5.0)
    assert refused_batches.holds_up("t1", third, now=14.0)
    assert refused_batches.holds_up("t1", second, now=14.0)
    assert not refused_batches.holds_up("t1", third, now=15.0)
    assert not refused_batches.holds_up("t2", first, now=1.0)
    assert not refused_batches.holds_up("t2", second, now=1.0)


def test_what_names_no_producer_is_no_sent_batch() -> None:
    header = parse_header(numbered(5, epoch=3))
    assert sent_batch(numbered(5, epoch=3)) == SentBatch(
        header.producer_id, header.producer_epoch, header.base_sequence
    )
    assert sent_batch(batch(b"a")) is None
    assert sent_batch(numbered(5)[:60]) is None
    assert sent_batch(numbered(5)[:16] + b"\x01" + numbered(5)[17:]) is None
