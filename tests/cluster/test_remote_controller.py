"""A whole controller over containers of two nodes: what it remembers ends with them, what it wrote is found again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from segmentstore.cluster.container_changes import ContainerChanges
from segmentstore.cluster.remote_store import RemoteStore
from segmentstore.codec.container_hash import container_of
from segmentstore.codec.controller_records.record_keys import SCOPES_TABLE
from segmentstore.codec.controller_records.stream_records import (
    ScalingPolicy,
    StreamConfigurationRecord,
)
from segmentstore.contracts.containers import HostId
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.controller.api.messages import Endpoint
from segmentstore.controller.controller import Controller
from segmentstore.controller.settings import ControllerSettings
from segmentstore.host.controller_supervisor import ControllerSupervisor
from segmentstore.runtime.clock import SystemWallClock
from tests.cluster.remote_nodes import RemoteNodes, remote_nodes

TWO = StreamConfigurationRecord(scaling=ScalingPolicy(segment_count_min=2))


class Leader:
    """A controller over the nodes, and its supervisor."""

    def __init__(self, nodes: RemoteNodes, store: RemoteStore) -> None:
        self.since = dict.fromkeys(range(nodes.container_count), 1)
        self.controller = Controller(
            segments=store,
            tables=store,
            wall_clock=SystemWallClock(),
            random=Random(5),
            locate=lambda name: Endpoint("127.0.0.1", 12345),
            settings=ControllerSettings(),
        )
        self.changes = ContainerChanges(
            locations=nodes.locations, since_of=lambda container_id: self.since[container_id]
        )
        self.supervisor = ControllerSupervisor(controller=self.controller, containers=self.changes)

    @property
    def runs(self) -> float:
        return self.supervisor.metrics()["controller_lives_total"]

    async def until(self, *, runs: int) -> None:
        async with asyncio.timeout(60):
            while self.runs < runs or not self.controller.is_ready:
                await asyncio.sleep(0.01)

    async def current(self, stream: str) -> list[int]:
        queries = self.controller.components.streams.queries
        return [each.segment_id for each in await queries.current_segments("s", stream)]


@asynccontextmanager
async def leader_over(nodes: RemoteNodes, store: RemoteStore) -> AsyncIterator[Leader]:
    leader = Leader(nodes, store)
    await nodes.locations.refresh()
    leader.changes.look()
    running = asyncio.create_task(leader.supervisor.run())
    try:
        await leader.until(runs=1)
        yield leader
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_streams_are_made_scaled_and_deleted_over_nodes() -> None:
    async with remote_nodes() as nodes, leader_over(nodes, nodes.store) as leader:
        components = leader.controller.components
        await components.scopes.create("s")
        for number in range(6):
            await components.streams.create("s", f"stream-{number}", TWO)
        await components.streams.scaling.scale(
            "s",
            "stream-3",
            sealed=await leader.current("stream-3"),
            ranges=[(0.0, 0.5), (0.5, 1.0)],
        )
        assert await leader.current("stream-3") == [1 << 32 | 2, 1 << 32 | 3]
        cut = dict.fromkeys(await leader.current("stream-3"), 0)
        await components.streams.truncation.truncate("s", "stream-3", cut)
        await components.streams.seal("s", "stream-4")
        await components.streams.delete("s", "stream-4")
        listed = (await components.scopes.streams("s", after="", count=100)).names
        assert [name for name in listed if name.startswith("stream-")] == [
            f"stream-{number}" for number in range(6) if number != 4
        ]
        await components.scopes.delete_with_content("s")
        assert not await nodes.store.list_segments("s/")


async def test_h84_the_next_leader_finds_everything_and_the_one_before_changes_nothing_more() -> (
    None
):
    async with remote_nodes() as nodes, leader_over(nodes, nodes.store) as first:
        await first.controller.components.scopes.create("s")
        await first.controller.components.streams.create("s", "a", TWO)
        newer = nodes.new_store(leader_epoch=2)
        async with leader_over(nodes, newer) as second:
            assert await second.current("a") == [0, 1]
            with pytest.raises(SegmentStoreError):
                await first.controller.components.streams.seal("s", "a")
            assert await second.current("a") == [0, 1]
        await newer.close()


async def test_a_run_ends_when_a_container_of_its_tables_moves_and_the_next_one_goes_on() -> None:
    async with remote_nodes() as nodes, leader_over(nodes, nodes.store) as leader:
        await leader.controller.components.scopes.create("s")
        moved = container_of(SCOPES_TABLE, nodes.container_count)
        await nodes.move(moved)
        await nodes.locations.refresh()
        leader.changes.look()
        await leader.until(runs=2)
        await leader.controller.components.streams.create("s", "a", TWO)
        assert await leader.current("a") == [0, 1]
        # Given anew to the same node: it was away in between.
        leader.since[moved] += 1
        leader.changes.look()
        await leader.until(runs=3)
        assert await leader.current("a") == [0, 1]


async def test_changes_are_told_once_an_end_before_a_beginning() -> None:
    nodes = RemoteNodes(container_count=2)
    nodes.locations.registered[HostId("a")] = nodes.nodes[0].as_registered
    nodes.locations.owners.update({ContainerId(0): HostId("a"), ContainerId(1): HostId("a")})
    since = {0: 1, 1: 1}
    told: list[tuple[int, bool]] = []

    def tell(container_id: ContainerId, *, runs: bool) -> None:
        told.append((container_id, runs))

    changes = ContainerChanges(locations=nodes.locations, since_of=lambda each: since[each])
    changes.watch(tell)
    assert changes.container_count == 2
    changes.look()
    assert told == []
    await nodes.locations.refresh()
    changes.look()
    assert told == [(0, True), (1, True)]
    changes.look()
    since[1] = 2
    changes.look()
    assert told[2:] == [(1, False), (1, True)]
    del nodes.locations.registered[HostId("a")]
    changes.look()
    assert told[4:] == [(0, False), (1, False)]
