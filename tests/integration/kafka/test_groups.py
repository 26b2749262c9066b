"""Members that come, go and are killed; offsets that outlive all of them, and the server."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, TopicPartition

from tests.integration.kafka.clients import SECONDS_MAX, Sent, new_group, new_topic
from tests.integration.kafka.clients import produce_by_confluent as produce
from tests.integration.kafka.committing_members import Member
from tests.integration.kafka.kafka_server import KafkaServerProcess

pytestmark = pytest.mark.integration


@asynccontextmanager
async def member(bootstrap: str, group: str, topic: str, *words: str) -> AsyncIterator[Member]:
    """A process of its own, which is killed at the end: its group does not hear of it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.kafka.group_member"),
        *(bootstrap, group, topic, *words),
        stdout=subprocess.PIPE,
    )
    found = Member(process)
    following = asyncio.create_task(found.follow())
    try:
        yield found
    finally:
        await found.kill()
        await following


async def until_shared(*members: Member) -> None:
    """All six partitions, as many for each. On the way there others may be told: one that is slow is left out."""
    async with asyncio.timeout(SECONDS_MAX):
        while (
            sorted(chain(*(each.partitions for each in members))) != list(range(6))
            or len({len(each.partitions) for each in members}) > 1
        ):
            await asyncio.sleep(0.05)


async def test_members_share_the_partitions_and_take_over_those_of_the_killed(
    server: KafkaServerProcess,
) -> None:
    topic, group = new_topic(server.bootstrap, 6), new_group()
    async with member(server.bootstrap, group, topic) as first:
        await until_shared(first)
        async with member(server.bootstrap, group, topic) as second:
            await until_shared(first, second)
            async with member(server.bootstrap, group, topic) as third:
                await until_shared(first, second, third)
                await second.kill()
                await third.kill()
            await until_shared(first)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not is_so():
            await asyncio.sleep(0.05)


async def test_a_static_member_that_is_killed_and_started_again_costs_the_others_nothing(
    server: KafkaServerProcess,
) -> None:
    """That the other hears of nothing is proved behind a record that it reads later: in a rebalance it would have given
    its partitions back before the one that comes back is assigned any."""
    topic, group = new_topic(server.bootstrap, 6), new_group()
    async with member(server.bootstrap, group, topic, "static=a", "commits") as first:
        await until_shared(first)
        async with member(server.bootstrap, group, topic, "static=b", "commits") as second:
            await until_shared(first, second)
        changes, had = list(first.changes), list(second.partitions)
        async with member(server.bootstrap, group, topic, "static=b", "commits") as again:
            await until(lambda: bool(again.changes))
            assert again.changes == [had]
            produce(server.bootstrap, topic, [Sent(None, b"0")])
            assert 0 in first.partitions
            await until(lambda: (0, 0) in first.found)
            assert first.changes == changes
        # The leader, which was there first.
        await first.kill()
        async with member(server.bootstrap, group, topic, "static=a", "commits") as leader:
            await until(lambda: bool(leader.changes))
            assert leader.changes == [changes[-1]]


async def test_of_two_clients_with_one_instance_id_the_older_one_ends(
    server: KafkaServerProcess,
) -> None:
    topic, group = new_topic(server.bootstrap, 6), new_group()
    async with (
        member(server.bootstrap, group, topic, "static=a") as older,
        member(server.bootstrap, group, topic, "static=b") as other,
    ):
        await until_shared(older, other)
        had = list(older.partitions)
        async with member(server.bootstrap, group, topic, "static=a") as newer:
            await until(lambda: bool(newer.changes) and bool(older.failed))
            assert newer.changes == [had]
            assert "fenced" in older.failed.lower()
            assert not newer.failed


async def test_clients_of_different_kinds_each_have_a_group(server: KafkaServerProcess) -> None:
    topic = new_topic(server.bootstrap, 2)
    records = [Sent(b"%d" % at, b"%d" % at) for at in range(20)]
    produce(server.bootstrap, topic, records)
    consumers = [
        AIOKafkaConsumer(
            topic,
            bootstrap_servers=server.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=120_000,
        )
        for group in (new_group(), new_group())
    ]
    for each in consumers:
        await each.start()
    try:
        for each in consumers:
            async with asyncio.timeout(SECONDS_MAX):
                found = [(await each.getone()).value for _ in records]
            assert sorted(found) == sorted(each.value for each in records if each.value)
            await each.commit()
    finally:
        for each in consumers:
            await each.stop()


def test_committed_offsets_survive_kill_9_and_members_join_again(tmp_path: Path) -> None:
    """A member that joins again begins at what was committed, however much it had fetched or been given before."""
    group = new_group()
    with KafkaServerProcess(tmp_path / "data") as server:
        topic = new_topic(server.bootstrap)
        produce(server.bootstrap, topic, [Sent(None, b"%d" % at) for at in range(10)])
        consumer = Consumer(
            {
                "bootstrap.servers": server.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "heartbeat.interval.ms": 500,
            }
        )
        found: list[bytes | None] = []
        joined = 0

        def assigned(_consumer: Consumer, _places: list[TopicPartition]) -> None:
            nonlocal joined
            joined += 1
            found.clear()

        consumer.subscribe([topic], on_assign=assigned)
        _poll(consumer, found, lambda: len(found) == 4)
        assert found == [b"%d" % at for at in range(4)]
        place = TopicPartition(topic, 0, 4, metadata="a note")
        consumer.commit(offsets=[place], asynchronous=False)
        before = joined
        server.kill()
        server.start()
        produce(server.bootstrap, topic, [Sent(None, b"10")])
        _poll(consumer, found, lambda: joined > before and len(found) == 7)
        (committed,) = consumer.committed([TopicPartition(topic, 0)], timeout=SECONDS_MAX)
        consumer.close()

    assert found == [b"%d" % at for at in range(4, 11)]
    assert (committed.offset, committed.metadata) == (4, "a note")


def _poll(consumer: Consumer, found: list[bytes | None], is_over: Callable[[], bool]) -> None:
    """Adds one value after the other."""
    until = time.monotonic() + SECONDS_MAX
    while not is_over():
        assert time.monotonic() < until, f"too few records found={found}"
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            found.append(message.value())
