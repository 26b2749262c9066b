"""Goal: what consumers do not take is bounded, of one connection and of all; and no other stands still for it."""

import asyncio

from segmentstore.codec.kafka_protocol.fetch import FetchResponse
from segmentstore.codec.kafka_protocol.produce import ProduceResponse
from segmentstore.kafka.answer_room import AnswerRoom
from segmentstore.kafka.fetch_requests import Fetching
from segmentstore.kafka.fetch_sessions import FetchSessions
from segmentstore.kafka.quotas import ByteQuota
from segmentstore.kafka.settings import KafkaSettings
from segmentstore.kafka.statistics import KafkaCounters
from segmentstore.runtime.shared_room import SharedRoom
from tests.kafka.node import Client, Node, batch, fetch, fetched, produce, produced, running

MIB = 1 << 20


async def filled(node: Node, byte_count: int, *, batches: int = 1) -> Client:
    """So many batches of so many bytes in partition 1."""
    client = await node.client()
    for _ in range(batches):
        answer = await client.ask(produce((1, batch(b"x" * byte_count))), ProduceResponse)
        assert produced(answer).error_code == 0
    return client


async def test_no_more_answers_are_made_than_may_wait_behind_a_batch() -> None:
    async with running() as node:
        client = await filled(node, 400_000)
        node.segments.hold()
        first = client.send(produce((0, batch(b"y"))))
        fetches = [client.send(fetch((1, 0))) for _ in range(40)]
        await node.until(lambda node: node.server.statistics().fetches >= 3)
        await asyncio.sleep(0.2)
        begun = node.server.statistics().fetches
        node.server.check()
        node.segments.let_go()
        assert produced(await client.answer(first, ProduceResponse)).error_code == 0
        for number in fetches:
            assert fetched(await client.answer(number, FetchResponse)).records
        await node.until(lambda node: not node.server.answer_bytes)

    assert begun == 3


async def test_consumers_that_take_nothing_leave_room_for_others() -> None:
    """Each of them has 12 MiB to take; of three there would be more than all may have."""
    settings = KafkaSettings(
        answer_bytes_max=32 * MIB, fetch_bytes_max=16 * MIB, taking_seconds=0.2
    )
    request = fetch((1, 0), bytes_max=16 * MIB, partition_bytes_max=16 * MIB)
    async with running(settings) as node:
        await filled(node, MIB - 1000, batches=12)
        silent = [await node.client() for _ in range(4)]
        for each in silent:
            each.send(request)
        await node.until(lambda node: node.server.answer_bytes > 12 * MIB)
        client = await node.client()
        answer = await client.ask(request, FetchResponse)
        assert len(fetched(answer).records or b"") > 11 * MIB
        assert node.server.answer_bytes <= 32 * MIB
        node.server.check()
        for each in silent:
            each.close()
        await node.until(lambda node: not node.server.answer_bytes)


async def test_a_consumer_that_takes_nothing_is_let_be_while_no_other_waits() -> None:
    settings = KafkaSettings(taking_seconds=0.05)
    request = fetch((1, 0), bytes_max=16 * MIB, partition_bytes_max=16 * MIB)
    async with running(settings) as node:
        client = await filled(node, MIB - 1000, batches=12)
        number = client.send(request)
        await node.until(lambda node: node.server.answer_bytes > 11 * MIB)
        await asyncio.sleep(0.5)
        answer = await client.answer(number, FetchResponse)
        assert len(fetched(answer).records or b"") > 11 * MIB
        await node.until(lambda node: not node.server.answer_bytes)


async def test_a_fetch_that_waits_for_more_records_is_answered_when_others_need_its_room() -> None:
    """It kept them for as long as a client may have a fetch wait, a minute, and others had nothing meanwhile."""
    settings = KafkaSettings(answer_bytes_max=16 * MIB, fetch_bytes_max=16 * MIB)
    async with running(settings) as node:
        client = await filled(node, MIB - 1000, batches=12)
        patient = fetch(
            (1, 0),
            wait_ms=60_000,
            bytes_min=16 * MIB,
            bytes_max=16 * MIB,
            partition_bytes_max=16 * MIB,
        )
        number = client.send(patient)
        await node.until(lambda node: node.server.answer_bytes > 11 * MIB)
        other = await node.client()
        at_once = fetch((1, 0), bytes_max=16 * MIB, partition_bytes_max=16 * MIB)
        asked = other.send(at_once)
        for each, asking in ((client, number), (other, asked)):
            async with asyncio.timeout(30):
                answer = await each.answer(asking, FetchResponse)
            assert len(fetched(answer).records or b"") > 11 * MIB


async def test_a_fetch_that_waits_for_records_needs_no_room() -> None:
    async with running() as node:
        waiting = await node.client()
        number = waiting.send(fetch((0, 0), wait_ms=60_000))
        await node.until(lambda node: node.server.statistics().fetches == 1)
        await asyncio.sleep(0.05)
        assert node.server.answer_bytes == 0
        other = await filled(node, 1000)
        assert fetched(await other.ask(fetch((1, 0)), FetchResponse)).records
        await other.ask(produce((0, batch(b"y"))), ProduceResponse)
        assert fetched(await waiting.answer(number, FetchResponse)).records
        await node.until(lambda node: not node.server.answer_bytes)


async def test_a_fetch_takes_the_room_that_it_waited_for_though_more_has_come_meanwhile() -> None:
    """Else one of a partition that grows would go behind all others again, and again, and never be answered."""
    async with running() as node:
        client = await filled(node, 10_000)
        shared = SharedRoom(25_000)
        taken = await shared.take(25_000)
        fetching = Fetching(
            topics=node.topics,
            settings=KafkaSettings(read_seconds=1.0),
            counters=KafkaCounters(),
            quota=ByteQuota(0, clients_max=1),
        )
        session = FetchSessions(partitions_max=1).of_connection()
        room = AnswerRoom(shared)
        waiting = asyncio.ensure_future(
            fetching.fetch(fetch((1, 0)), session, "test", room, version=11)
        )
        await node.until(lambda _: shared.waiting_count == 1)
        other = asyncio.ensure_future(shared.take(25_000))
        await client.ask(produce((1, batch(b"x" * 10_000))), ProduceResponse)
        taken.give_back()
        assert 10_000 < len(fetched(await waiting).records or b"") < 20_000
        room.give_back()
        (await other).give_back()
        assert shared.held_bytes == 0


async def test_what_an_answer_keeps_is_counted_until_it_is_given_back() -> None:
    shared = SharedRoom(100)
    room, other = AnswerRoom(shared), AnswerRoom(shared)
    assert room.keep(0)
    assert room.keep(10)
    assert room.keep(50)
    assert (shared.held_bytes, room.kept_bytes) == (60, 60)
    room.drop(50)
    assert room.keep(60), "room of its own, and a little more"
    assert (shared.held_bytes, room.kept_bytes) == (70, 70)
    assert not other.keep(31)
    assert other.keep(30)
    assert not room.keep(1)
    other.give_back()
    other.give_back()
    assert shared.held_bytes == 70
    waiting = asyncio.ensure_future(other.wait(1000))
    await asyncio.sleep(0)
    assert not room.keep(1), "others wait"
    room.give_back()
    await waiting
    assert other.keep(1000), "it has all that there is"
    assert shared.held_bytes == 100
    other.give_back()
    assert shared.held_bytes == 0
