"""A store of two processes: each partition is where its container is, and nothing is lost when one is killed."""

import asyncio
import json
import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from confluent_kafka.admin import AdminClient

from segmentstore.cli.server_process import ServerProcess
from segmentstore.client.topics import NewRecord, connected_topics
from tests.integration.kafka.clients import new_group, new_topic
from tests.integration.kafka.committing_members import are_at_the_end, committing_members
from tests.integration.kafka.numbered_records import NumberedRecords, read_partition

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SECONDS_MAX = 150.0
"""No promise, only an end."""
PARTITIONS = 6
OPTIONS = [
    "--kafka=127.0.0.1:0",
    "--set=kafka.grpc_address=127.0.0.1:0",
    "--containers=4",
    "--set=kafka.file_seconds=0.2",
]


def server(directory: Path, processes: int) -> ServerProcess:
    return ServerProcess(directory / "data", [f"--processes={processes}", *OPTIONS])


def said(running: ServerProcess, name: str) -> str:
    found = re.search(rf"{name}=(\S+)", running.ready_line)
    assert found is not None, running.ready_line
    return found[1]


async def status_of(running: ServerProcess) -> Mapping[str, Any]:
    url = f"{said(running, 'status')}/health"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        status: Mapping[str, Any] = json.loads(await answer.read())
        return status


async def kill(running: ServerProcess, name: str) -> None:
    """Returns when the next one is there."""
    pid = (await status_of(running))[f"{name}_process_id"]
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            status = await status_of(running)
            if status["ready"] and status[f"{name}_process_id"] not in (None, pid):
                return
            await asyncio.sleep(0.05)


def topic_of_both(bootstrap: str) -> str:
    """A topic that two processes lead, if there are two: where a partition is follows from the topic's id, which is
    drawn, and one topic in 32 has all partitions in one process."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = ""
    for _ in range(20):
        topic = new_topic(bootstrap, PARTITIONS)
        partitions = admin.list_topics(timeout=SECONDS_MAX).topics[topic].partitions
        if len({each.leader for each in partitions.values()}) == 2:
            break
    return topic


async def test_each_process_is_killed_under_load_and_nothing_is_lost(tmp_path: Path) -> None:
    running = server(tmp_path, 2)
    with running:
        bootstrap = said(running, "kafka")
        topic = await asyncio.to_thread(topic_of_both, bootstrap)
        told = await asyncio.to_thread(
            lambda: AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=SECONDS_MAX)
        )
        own = {(await status_of(running))[f"node_{number}_kafka"] for number in range(2)}
        assert {f"{each.host}:{each.port}" for each in told.brokers.values()} == own
        assert bootstrap not in own
        assert len({each.leader for each in told.topics[topic].partitions.values()}) == 2
        group = new_group()
        async with committing_members(bootstrap, group, topic) as members:
            await members.until_shared(PARTITIONS)
            with NumberedRecords(bootstrap, topic, PARTITIONS) as records:
                for name in ("node_1", "node_0", "volumes"):
                    await asyncio.to_thread(records.wait_for_more, 50)
                    await kill(running, name)
                await asyncio.to_thread(records.wait_for_more, 50)
                await asyncio.to_thread(records.stop)
                await asyncio.to_thread(records.compare)
                await members.until_found(records.sent)
                async with asyncio.timeout(SECONDS_MAX):
                    while not await asyncio.to_thread(
                        are_at_the_end, bootstrap, group, topic, PARTITIONS
                    ):
                        await asyncio.sleep(0.1)
        assert running.terminate() == 0
    for processes in (1, 3):
        running = server(tmp_path, processes)
        with running:
            found = 0
            for partition in range(PARTITIONS):
                values = await asyncio.to_thread(
                    read_partition, said(running, "kafka"), topic, partition
                )
                assert [int(value) for _, value in values] == list(
                    range(partition, records.sent, PARTITIONS)
                )
                found += len(values)
            assert found == records.sent
            assert running.terminate() == 0


async def until_topics_answer(session: aiohttp.ClientSession, address: str) -> None:
    """The store is ready when it answers by one of its processes; each looks up topics when it begins."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            async with session.get(f"http://{address}/v1/topics") as answer:
                if answer.status == 200:
                    return
                assert answer.status == 503, await answer.text()
            await asyncio.sleep(0.05)


async def test_our_client_and_http_reach_every_partition_at_any_process(tmp_path: Path) -> None:
    running = server(tmp_path, 2)
    with running:
        async with (
            connected_topics(said(running, "kafka")) as topics,
            aiohttp.ClientSession() as session,
        ):
            await topics.create("logs", partitions=PARTITIONS)
            status = await status_of(running)
            for number in range(2):
                await until_topics_answer(session, status[f"node_{number}_http"])
            for partition in range(PARTITIONS):
                assert await topics.produce("logs", partition, [NewRecord(value=b"first")]) == 0
                for number in range(2):
                    url = f"http://{status[f'node_{number}_http']}/v1/topics/logs/partitions/{partition}/records"
                    async with session.post(url, json=[{"value": f"of {number}"}]) as answer:
                        assert answer.status == 200, await answer.text()
                    async with session.get(url) as answer:
                        read = await answer.json()
                        assert len(read["records"]) == 2 + number
                fetched = await topics.fetch("logs", partition, offset=0)
                values = [each.value for each in fetched.records]
                assert values == [b"first", b"of 0", b"of 1"]
            assert [each.end for each in await topics.offsets("logs")] == [3] * PARTITIONS
        assert running.terminate() == 0
