"""Order, silence, malformed bytes, bounds, and the end of a connection."""

import asyncio

import pytest

from segmentstore.codec.kafka_protocol.api_table import APIS, ApiKey
from segmentstore.codec.kafka_protocol.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from segmentstore.codec.kafka_protocol.error_codes import ErrorCode
from segmentstore.codec.kafka_protocol.fetch import FetchResponse
from segmentstore.codec.kafka_protocol.frames import decode_response
from segmentstore.codec.kafka_protocol.produce import ProduceResponse
from segmentstore.kafka.settings import KafkaSettings
from tests.kafka.node import batch, fetch, fetched, produce, produced, running

_METADATA = MetadataRequest(
    topics=(MetadataRequestTopic(name="t"),), allow_auto_topic_creation=False
)


async def test_versions_are_those_of_the_table() -> None:
    async with running() as node:
        client = await node.client()
        answer = await client.ask(ApiVersionsRequest(), ApiVersionsResponse)

    found = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
    assert found == {key: (api.oldest, api.newest) for key, api in APIS.items()}


@pytest.mark.parametrize("version", [5, 6, 99])
async def test_a_client_that_is_too_new_is_told_our_versions_in_version_0(version: int) -> None:
    async with running() as node:
        client = await node.client()
        # A flexible header goes on with tagged fields, and the body with compact strings.
        content = bytes.fromhex(f"0012 {version:04x} 00000007 0001 63 00 02 61 02 62 00")
        client.send_bytes(len(content).to_bytes(4, "big") + content)
        answer = decode_response(ApiVersionsResponse, await client.frame(), 0, correlation_id=7)
        again = await client.ask(ApiVersionsRequest(), ApiVersionsResponse, 2)

    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(each.api_key, each.max_version) for each in answer.api_keys] == [(18, 4)]
    assert again.error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", [3, 4])
async def test_the_versions_are_told_behind_a_header_without_tagged_fields(version: int) -> None:
    """A client does not know yet whether the server knows of such fields."""
    async with running() as node:
        client = await node.client()
        content = bytes.fromhex(f"0012 {version:04x} 00000007 0001 63 00 02 61 02 62 00")
        client.send_bytes(len(content).to_bytes(4, "big") + content)
        frame = await client.frame()

    row_bytes = 7
    assert frame[:6] == bytes.fromhex("00000007 0000")
    assert frame[6] == len(APIS) + 1
    assert frame[7 : 7 + row_bytes] == bytes.fromhex("0000 0000 000d 00"), "Produce 0 to 13"
    assert len(frame) == 7 + len(APIS) * row_bytes + 4 + 1


async def test_answers_leave_in_the_order_of_the_requests() -> None:
    async with running() as node:
        client = await node.client()
        node.segments.hold()
        first = client.send(produce((0, batch(b"a"))))
        second = client.send(_METADATA)
        third = client.send(produce((1, batch(b"b"))))
        waiting = asyncio.ensure_future(client.frame())
        await asyncio.sleep(0.05)
        assert not waiting.done(), "metadata overtook the batch that is not durable"
        node.segments.let_go()

        assert int.from_bytes((await waiting)[:4], "big") == first
        await client.answer(second, MetadataResponse)
        assert produced(await client.answer(third, ProduceResponse)).base_offset == 0


async def test_many_batches_are_under_way_at_once_and_keep_their_order() -> None:
    async with running() as node:
        client = await node.client()
        node.segments.hold()
        before = node.segments.append_count
        numbers = [client.send(produce((0, batch(b"%d" % each)))) for each in range(50)]
        await node.until(lambda each: each.segments.append_count == before + 50)
        node.segments.let_go()
        offsets = [
            produced(await client.answer(number, ProduceResponse)).base_offset for number in numbers
        ]

    assert offsets == list(range(50))


async def test_acks_0_is_not_answered_and_is_stored() -> None:
    async with running() as node:
        client = await node.client()
        client.send(produce((0, batch(b"a")), acks=0))
        number = client.send(produce((0, batch(b"b"))))
        answer = await client.answer(number, ProduceResponse)

    assert produced(answer).base_offset == 1


@pytest.mark.parametrize("count", [1, 50])
async def test_batches_with_acks_0_are_stored_although_their_client_leaves_at_once(
    count: int,
) -> None:
    """The partition is opened by the first of them, and takes the others behind that."""
    async with running() as node:
        await node.topics.create("new", 1, {})
        client = await node.client()
        await client.ask(_METADATA, MetadataResponse)
        for number in range(count):
            client.send(produce((0, batch(b"%d" % number)), topic="new", acks=0))
        client.close()
        found = await node.topics.own_partition("new", 0)
        await node.until(lambda _: found.high_watermark == count)
        await node.until(lambda each: each.server.statistics().connections == 0)


async def test_what_a_client_asked_that_leaves_is_given_up() -> None:
    async with running() as node:
        client = await node.client()
        await client.ask(_METADATA, MetadataResponse)
        client.send(fetch((0, 0), wait_ms=600_000))
        client.send(produce((0, batch(b"a")), acks=0))
        client.close()
        await node.until(lambda each: each.server.statistics().connections == 0)


async def test_a_batch_with_acks_0_that_is_refused_ends_its_connection() -> None:
    async with running() as node:
        client, other = await node.client(), await node.client()
        client.send(produce((0, b"no batch"), acks=0))

        assert await client.is_closed()
        await other.ask(_METADATA, MetadataResponse)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"\xff\xff\xff\xff", id="negative length"),
        pytest.param(b"\x7f\xff\xff\xff", id="length of two gigabytes"),
        pytest.param(b"\0\0\0\2\0\0", id="half a header"),
        pytest.param(bytes.fromhex("0000000a 0063 0000 00000001 ffff"), id="unknown API"),
        pytest.param(bytes.fromhex("0000000a 0003 0009 00000001 ffff"), id="newer version"),
        pytest.param(bytes.fromhex("0000000a 0001 0003 00000001 ffff"), id="older version"),
        pytest.param(bytes.fromhex("0000000e 0003 0004 00000001 ffff 7fffffff"), id="list"),
        pytest.param(bytes.fromhex("0000000b 0012 0002 00000001 ffff 00"), id="a byte too many"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another protocol"),
    ],
)
async def test_a_malformed_frame_ends_its_connection_and_no_other(content: bytes) -> None:
    async with running() as node:
        client, other = await node.client(), await node.client()
        await other.ask(_METADATA, MetadataResponse)
        client.send_bytes(content)

        assert await client.is_closed()
        await other.ask(_METADATA, MetadataResponse)
        assert node.server.statistics().connections_malformed == 1
        assert node.server.statistics().connections == 1


@pytest.mark.parametrize("sent", [b"", b"\0\0\0\x20\0"])
async def test_a_connection_of_which_nothing_is_heard_ends_in_time(sent: bytes) -> None:
    """Its client may have gone without a word: each would stay, until there are too many for another one."""
    settings = KafkaSettings(idle_seconds=0.1, connections_max=1)
    async with running(settings) as node:
        client = await node.client()
        client.send_bytes(sent)
        async with asyncio.timeout(60):
            assert await client.is_closed()
        assert node.server.statistics().connections_idle == 1
        await node.until(lambda node: node.server.statistics().connections == 0)
        await (await node.client()).ask(_METADATA, MetadataResponse)


async def test_a_connection_that_asks_or_waits_for_an_answer_is_not_idle() -> None:
    async with running() as node:
        waiting, asking = await node.client(), await node.client()
        number = waiting.send(fetch((0, 0), wait_ms=60_000))
        await node.until(lambda node: node.server.statistics().fetches == 1)
        for _ in range(5):
            await asking.ask(_METADATA, MetadataResponse)
            for connection in list(node.server._connections):
                connection.end_if_idle()
        await asking.ask(produce((0, batch(b"x"))), ProduceResponse)
        assert fetched(await waiting.answer(number, FetchResponse)).records
        assert node.server.statistics().connections_idle == 0


async def test_a_client_that_has_not_taken_its_answer_yet_is_not_idle() -> None:
    async with running() as node:
        client, reader = await node.client(), await node.client()
        for _ in range(12):
            await client.ask(produce((0, batch(b"x" * 1_000_000))), ProduceResponse)
        number = reader.send(fetch((0, 0), bytes_max=16 << 20, partition_bytes_max=16 << 20))
        await node.until(lambda node: node.server.answer_bytes > 11 << 20)
        for _ in range(3):
            for connection in list(node.server._connections):
                connection.end_if_idle()
        assert len(fetched(await reader.answer(number, FetchResponse)).records or b"") > 11 << 20
        assert node.server.statistics().connections_idle == 1, "the other one alone"


async def test_what_was_asked_before_a_malformed_frame_is_answered() -> None:
    async with running() as node:
        client = await node.client()
        number = client.send(_METADATA)
        client.send_bytes(bytes.fromhex("0000000a 0063 0000 00000001 ffff"))
        await client.answer(number, MetadataResponse)
        assert await client.is_closed()


async def test_a_connection_with_too_much_waiting_is_not_read_and_others_are() -> None:
    settings = KafkaSettings(waiting_requests_max=5)
    async with running(settings) as node:
        client, other = await node.client(), await node.client()
        node.segments.hold()
        numbers = [client.send(produce((0, batch(b"x" * 1000)))) for _ in range(500)]
        await asyncio.sleep(0.1)
        await other.ask(_METADATA, MetadataResponse)
        begun = node.server.statistics().requests
        node.segments.let_go()
        offsets = [
            produced(await client.answer(number, ProduceResponse)).base_offset for number in numbers
        ]

    assert begun < 500
    assert offsets == list(range(500))


async def test_a_request_that_is_longer_than_the_bound_is_taken_alone() -> None:
    async with running(KafkaSettings(waiting_bytes_max=1000)) as node:
        client = await node.client()
        numbers = [client.send(produce((0, batch(b"x" * 5000)))) for _ in range(3)]
        answers = [await client.answer(number, ProduceResponse) for number in numbers]

    assert [produced(each).error_code for each in answers] == [0, 0, 0]


async def test_too_much_waiting_in_all_holds_up_those_that_wait_and_is_over_by_itself() -> None:
    async with running(KafkaSettings(all_waiting_bytes_max=10_000)) as node:
        clients = [await node.client() for _ in range(4)]
        node.segments.hold()
        sent = [
            (client, client.send(produce((0, batch(b"x" * 4000)))))
            for client in clients
            for _ in range(5)
        ]
        await asyncio.sleep(0.1)
        node.segments.let_go()
        codes = [
            produced(await client.answer(number, ProduceResponse)).error_code
            for client, number in sent
        ]
        assert node.server.statistics().waiting_bytes == 0

    assert codes == [0] * 20


async def test_a_client_too_many_is_disconnected() -> None:
    async with running(KafkaSettings(connections_max=1)) as node:
        client = await node.client()
        await client.ask(_METADATA, MetadataResponse)
        other = await node.client()
        assert await other.is_closed()
        await client.ask(_METADATA, MetadataResponse)


async def test_requests_wait_until_topics_answer() -> None:
    async with running(ready=False) as node:
        client = await node.client()
        await client.ask(ApiVersionsRequest(), ApiVersionsResponse)
        number = client.send(_METADATA)
        node.ready()
        answer = await client.answer(number, MetadataResponse)

    assert answer.topics[0].error_code == ErrorCode.NONE


async def test_a_request_that_waits_too_long_for_topics_ends_its_connection() -> None:
    async with running(KafkaSettings(start_seconds=0.01), ready=False) as node:
        client = await node.client()
        client.send(_METADATA)
        assert await client.is_closed()


async def test_close_answers_what_is_under_way_and_leaves_nothing_waiting() -> None:
    async with running(KafkaSettings(drain_seconds=60)) as node:
        client, reader = await node.client(), await node.client()
        await client.ask(produce((0, batch(b"before"))), ProduceResponse)
        reader.send(fetch((0, 1), wait_ms=60_000))
        node.segments.hold()
        before = node.segments.append_count
        number = client.send(produce((0, batch(b"a"))))
        await node.until(lambda each: each.segments.append_count == before + 1)
        closing = asyncio.ensure_future(node.server.close())
        await asyncio.sleep(0.05)
        node.segments.let_go()
        await closing
        answer = await client.answer(number, ProduceResponse)
        assert await reader.is_closed()

    assert produced(answer).base_offset == 1
    assert node.server.statistics().waiting_bytes == 0


async def test_a_client_that_goes_leaves_its_batches_to_the_log() -> None:
    async with running() as node:
        client, other = await node.client(), await node.client()
        node.segments.hold()
        before = node.segments.append_count
        client.send(produce((0, batch(b"a"))))
        await node.until(lambda each: each.segments.append_count == before + 1)
        client.close()
        await node.until(lambda each: each.server.statistics().connections == 1)
        node.segments.let_go()
        answer = await other.ask(fetch((0, 0), wait_ms=60_000), FetchResponse)

    assert fetched(answer).high_watermark == 1


def test_a_row_of_the_table_is_answered_for_every_api() -> None:
    assert sorted(APIS) == sorted(ApiKey)
    assert len(APIS) == 25


async def test_memory_of_a_long_request_is_used_again_once_its_batch_was_handed_over() -> None:
    kept: list[int] = []
    async with running() as node:
        client = await node.client()
        for _ in range(6):
            answer = await client.ask(produce((0, batch(b"x" * 200_000))), ProduceResponse)
            assert produced(answer).error_code == ErrorCode.NONE
            kept.append(node.server.frame_memory_kept_bytes)

    # From the second on the client is known as one that sends long frames.
    assert kept[1] >= 200_000
    assert kept[1:] == [kept[1]] * 5
