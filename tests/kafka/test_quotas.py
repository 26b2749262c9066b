"""A client gets its rate and no more, whether it waits by itself or not; others are not held up by it."""

import asyncio
from random import Random

import pytest

from segmentstore.codec.kafka_protocol.fetch import FetchResponse
from segmentstore.codec.kafka_protocol.produce import ProduceResponse
from segmentstore.kafka.quotas import WAIT_SECONDS_MAX, ByteQuota
from segmentstore.kafka.settings import KafkaSettings
from tests.kafka.node import batch, fetch, produce, running


@pytest.mark.parametrize("seed", range(20))
def test_a_client_that_waits_gets_its_rate(seed: int) -> None:
    random, now, taken, largest = Random(seed), 100.0, 0, 0
    quota = ByteQuota(1000, clients_max=10)
    for _ in range(400):
        byte_count = random.choice((0, 10, 400, 3000))
        taken, largest = taken + byte_count, max(largest, byte_count)
        now += quota.take("one", byte_count, now) / 1000 + random.choice((0, 0, 0.1))
        assert taken <= 1000 * (now - 100 + 1) + largest
    # And no less: with so much to ask for it is held back by its rate alone.
    before = now
    for _ in range(100):
        now += quota.take("one", 1000, now) / 1000
    assert now - before <= 101


def test_a_debt_longer_than_the_longest_wait_is_not_forgotten() -> None:
    quota = ByteQuota(100, clients_max=10)
    wait = 1000 * WAIT_SECONDS_MAX
    assert quota.take("one", 3000, 0.0) == wait
    assert quota.take("one", 0, 10.0) == wait
    assert quota.take("one", 0, 28.0) == 1000
    assert quota.take("other", 50, 28.0) == 0


def test_names_are_bounded_and_forgotten_when_they_owe_nothing() -> None:
    quota = ByteQuota(100, clients_max=3)
    for name in ("a", "b", "c"):
        assert quota.take(name, 200, 0.0) == 1000
    assert quota.take("d", 100, 0.0) == 0
    assert quota.take("e", 100, 0.0) == 1000
    assert quota.take("a", 100, 0.0) == 2000
    # All but "a" have paid, and the one second that they may save is theirs.
    assert quota.take("f", 100, 2.5) == 0
    assert quota.take("a", 100, 2.5) == 500


def test_without_a_rate_nothing_is_counted() -> None:
    quota = ByteQuota(0, clients_max=1)
    assert quota.take("one", 1 << 40, 0.0) == 0
    assert quota.take("other", 1 << 40, 0.0) == 0


async def test_a_producer_that_does_not_wait_is_made_to_and_loses_nothing() -> None:
    settings = KafkaSettings(producer_byte_rate=10_000)
    async with running(settings) as node:
        client, loop = await node.client(), asyncio.get_running_loop()
        begun = loop.time()
        numbers = [client.send(produce((0, batch(b"v" * 5_000)))) for _ in range(5)]
        answers = []
        for count, number in enumerate(numbers, 1):
            answers.append(await client.answer(number, ProduceResponse))
            # What it took, less the second that it may save, and less the time that has passed, however long that is.
            owed = 5_000 * count / 10_000 - 1 - (loop.time() - begun)
            assert answers[-1].throttle_time_ms >= 1_000 * owed
        assert answers[0].throttle_time_ms == 0
        # 25,000 bytes: those of the second that it may save, and the rest at its rate, but for the last.
        assert loop.time() - begun >= 0.95
        assert [each.topics[0].partitions[0].base_offset for each in answers] == [0, 1, 2, 3, 4]


async def test_a_consumer_is_told_to_wait_and_another_client_is_not() -> None:
    # So slow that what it owes is not paid while the test runs, however long that takes.
    settings = KafkaSettings(consumer_byte_rate=10)
    async with running(settings) as node:
        client = await node.client()
        await client.ask(produce((0, batch(b"v" * 2_500))), ProduceResponse)
        answer = await client.ask(fetch((0, 0)), FetchResponse)
        assert answer.throttle_time_ms > 1_000
        assert answer.topics[0].partitions[0].records
        # What a connection may not do another one of the same client may not either.
        again = await node.client()
        more = await again.ask(fetch((0, 1)), FetchResponse)
        assert more.throttle_time_ms > 0
        node.server.check()
