"""Topics answer while the containers of their tables run, and begin anew when one of those was lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from segmentstore.contracts.identifiers import ContainerId
from segmentstore.host.container_registry import ContainerRegistry
from segmentstore.host.topic_supervisor import TopicSupervisor
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.topics.producer_ids import ProducerIds
from tests.kafka.node import Node, running


class _Registry(ContainerRegistry):
    """Containers that come and go as a test says."""

    def lose(self) -> None:
        for number in range(self.container_count):
            self._notify(ContainerId(number), runs=False)


@asynccontextmanager
async def supervised(node: Node) -> AsyncIterator[tuple[TopicSupervisor, _Registry]]:
    registry = _Registry(container_count=2)
    supervisor = TopicSupervisor(
        topics=node.topics,
        groups=node.groups,
        producer_ids=ProducerIds(tables=node.tables, wall_clock=SystemWallClock()),
        server=node.server,
        containers=registry,
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
        async with asyncio.timeout(20):
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
            async with asyncio.timeout(20):
                await supervisor.wait_until_started()
