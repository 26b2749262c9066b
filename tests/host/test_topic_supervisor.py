"""Topics answer while the containers of their tables run, and begin anew when one of those was lost."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from segmentstore.contracts.identifiers import ContainerId
from segmentstore.host.container_registry import ContainerRegistry
from segmentstore.host.topic_supervisor import TopicSupervisor
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.topics.brokers import Brokers, OneBroker
from segmentstore.topics.groups.committed_offsets import OFFSETS_TABLE
from segmentstore.topics.producer_ids import ProducerIds
from segmentstore.topics.topic_records import CATALOGUE_TABLE
from tests.kafka.node import Node, running


class _Registry(ContainerRegistry):
    """Containers that come and go as a test says."""

    def begin(self) -> None:
        for number in range(self.container_count):
            self._notify(ContainerId(number), runs=True)

    def lose(self) -> None:
        for number in range(self.container_count):
            self._notify(ContainerId(number), runs=False)


@asynccontextmanager
async def supervised(
    node: Node, brokers: Brokers | None = None
) -> AsyncIterator[tuple[TopicSupervisor, _Registry]]:
    registry = _Registry(container_count=2)
    supervisor = TopicSupervisor(
        topics=node.topics,
        groups=node.groups,
        producer_ids=ProducerIds(tables=node.tables, wall_clock=SystemWallClock()),
        server=node.server,
        containers=registry,
        brokers=brokers,
    )
    task = asyncio.ensure_future(supervisor.run())
    try:
        yield supervisor, registry
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_they_answer_when_they_have_been_read() -> None:
    async with running(ready=False) as node, supervised(node) as (supervisor, _):
        assert supervisor.complaints()
        await supervisor.wait_until_started()
        assert supervisor.metrics()["kafka_ready"] == 1
        assert not any("do not answer" in each for each in supervisor.complaints())


async def test_they_begin_anew_when_a_container_of_their_tables_was_lost() -> None:
    async with running(ready=False) as node, supervised(node) as (supervisor, registry):
        await supervisor.wait_until_started()
        registry.lose()
        assert supervisor.metrics()["kafka_ready"] == 0
        async with asyncio.timeout(60):
            while supervisor.metrics()["kafka_ready"] == 0:
                await asyncio.sleep(0.01)
        assert supervisor.metrics()["kafka_starts_total"] == 2


async def test_tables_that_cannot_be_read_are_read_later() -> None:
    async with running(ready=False) as node:
        node.tables.stop()
        async with supervised(node) as (supervisor, _):
            await asyncio.sleep(0.1)
            assert supervisor.metrics()["kafka_ready"] == 0
            (complaint,) = supervisor.complaints()
            assert "topics do not answer now" in complaint
            node.tables._stopped = False
            async with asyncio.timeout(60):
                await supervisor.wait_until_started()


# --- in a store of several processes ------------------------------------------------------------


class _Elsewhere(OneBroker):
    """A process that has what a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.here = {CATALOGUE_TABLE, OFFSETS_TABLE}

    def is_here(self, segment: str) -> bool:
        return segment in self.here


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def test_groups_work_where_their_offsets_are_and_topics_go_on_meanwhile() -> None:
    brokers = _Elsewhere()
    brokers.here.clear()
    async with (
        running(ready=False) as node,
        supervised(node, brokers) as (supervisor, registry),
    ):
        await supervisor.wait_until_started()
        assert supervisor.metrics()["kafka_coordinates"] == 0
        assert not any("groups" in each for each in supervisor.complaints())
        brokers.here.add(OFFSETS_TABLE)
        registry.begin()
        await _until(lambda: supervisor.metrics()["kafka_coordinates"] == 1)
        brokers.here.clear()
        registry.lose()
        numbers = supervisor.metrics()
        assert (numbers["kafka_coordinates"], numbers["kafka_ready"]) == (0, 1)
        brokers.here.add(OFFSETS_TABLE)
        registry.begin()
        await _until(lambda: supervisor.metrics()["kafka_coordinates"] == 1)
        assert supervisor.metrics()["kafka_starts_total"] == 1


async def test_a_catalogue_that_falls_silent_is_told_and_what_is_known_is_served() -> None:
    async with running(ready=False) as node, supervised(node, _Elsewhere()) as (supervisor, _):
        await supervisor.wait_until_started()
        node.tables.stop()
        await _until(lambda: any("does not answer" in each for each in supervisor.complaints()))
        assert supervisor.answering() is node.topics
        found = node.topics.describe("t")
        assert found is not None
        await node.topics.own_partition("t", 0)
        node.tables._stopped = False
        await _until(lambda: not any("does not answer" in e for e in supervisor.complaints()))
