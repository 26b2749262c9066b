"""A controller of a cluster in one process: what it answers by itself, and until when."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from random import Random
from typing import NamedTuple

import grpc

from segmentstore.cluster.cluster_view import ClusterView
from segmentstore.cluster.leader import Election, Leadership
from segmentstore.cluster.records import LeaderRecord
from segmentstore.host.cluster_controller import ClusterController
from segmentstore.host.data_directory import DirectoryIdentity
from segmentstore.host.setting_sources import resolve_settings
from tests.cluster.simulated_coordination import SimulatedCoordination, SimulatedSession
from tests.host.test_controller_addresses import listed_at
from tests.tier1.bookkeeper.simulated_network import Network


class _Details(NamedTuple):
    """Of a call as gRPC tells it."""

    method: str
    invocation_metadata: tuple[tuple[str, str], ...] = ()


CALL: grpc.HandlerCallDetails = _Details("/a.Service/Call")  # type: ignore[assignment]  # a class without a constructor


async def test_a_leader_whose_lease_is_over_answers_nothing_from_what_it_remembers() -> None:
    async with leading() as (controller, leadership):
        assert controller._relay.own_handler(CALL, wait_seconds=0.0) is not None
        # As after a stop: its calls may be read before its loop has seen that the lease is over.
        leadership.lease._valid_until = asyncio.get_running_loop().time()
        assert controller._relay.own_handler(CALL, wait_seconds=0.0) is None


async def test_a_controller_names_itself_to_a_client_that_asks_for_the_controllers() -> None:
    async with leading() as (controller, _):
        address = controller.addresses().controller
        host, _, port = address.rpartition(":")
        assert await listed_at(address) == [(host, int(port))]


@asynccontextmanager
async def leading() -> AsyncIterator[tuple[ClusterController, Leadership]]:
    world = SimulatedCoordination(Random(1))

    async def connect() -> SimulatedSession:
        return await SimulatedSession.connect(world, Network(Random(2)))

    def election(
        leader: LeaderRecord, work: Callable[[Leadership], Coroutine[None, None, None]]
    ) -> Election:
        return Election(connect=connect, leader=leader, work=work, random=Random(3))

    flags = {"controller.address": "127.0.0.1:0", "http.address": "127.0.0.1:0"}
    controller = ClusterController(
        resolve_settings(flags=flags, environment={}),
        identity=DirectoryIdentity(bytes(16), 1, 0),
        view=ClusterView(await connect(), container_count=1, random=Random(4)),
        election_of=election,
        token="",
        random=Random(5),
    )
    await controller.start()
    running = asyncio.create_task(controller.run())
    try:
        async with asyncio.timeout(20):
            while controller._controller is None:
                await asyncio.sleep(0.01)
        assert controller._election is not None
        leadership = controller._election.leadership
        assert leadership is not None
        yield controller, leadership
    finally:
        running.cancel()
        await asyncio.wait([running])
        await controller.close()
