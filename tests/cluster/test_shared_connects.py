"""Goal: of a node that cannot be connected to all that wait hear at once, not one behind another.

Its machine is cut off: a connection seems to be taken, and nothing is said on it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest

from segmentstore.cluster.node_connections import (
    NodeConnections,
    NodeConnectionSettings,
    NodeUnreachableError,
)
from segmentstore.cluster.remote_partitions import RemotePartitions, RemotePartitionSettings
from segmentstore.contracts.cluster import ClusterNode
from segmentstore.contracts.containers import HostId
from segmentstore.topics.brokers import Broker
from segmentstore.topics.errors import PartitionUnavailableError
from tests.cluster.remote_nodes import KnownLocations

CALLERS = 30


@dataclass
class MuteServer:
    """Counts connections, and says nothing on any."""

    host: str = ""
    port: int = 0
    connections: int = 0
    _open: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.append(writer)
        while await reader.read(1 << 16):
            pass

    def close(self) -> None:
        for writer in self._open:
            writer.close()


@pytest.fixture
async def mute() -> AsyncIterator[MuteServer]:
    made = MuteServer()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.host, made.port = server.sockets[0].getsockname()[:2]
    yield made
    made.close()
    server.close()


@asynccontextmanager
async def connecting_to_node(
    mute: MuteServer, *, connect_seconds: float
) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    connections = NodeConnections(
        locations=KnownLocations(container_count=1),
        token="token",
        leader_epoch=1,
        settings=NodeConnectionSettings(connect_seconds=connect_seconds),
    )
    node = ClusterNode(HostId("a-1"), "", f"{mute.host}:{mute.port}", 0, "test")
    yield lambda: connections.connection(node)
    await connections.close()


@asynccontextmanager
async def opening_partitions(
    mute: MuteServer, *, connect_seconds: float
) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    partitions = RemotePartitions(
        locations=KnownLocations(container_count=1),
        settings=RemotePartitionSettings(connect_seconds=connect_seconds),
    )
    leader = Broker(1, (mute.host, mute.port))
    yield lambda: partitions.open("t", 0, leader)
    await partitions.close()


@pytest.mark.parametrize("kind", [connecting_to_node, opening_partitions])
async def test_callers_of_a_node_that_is_cut_off_wait_for_one_attempt_together(
    mute: MuteServer,
    kind: Callable[..., AbstractAsyncContextManager[Callable[[], Awaitable[object]]]],
) -> None:
    async with kind(mute, connect_seconds=0.5) as connect:
        for attempts in (1, 2):
            calls = [asyncio.ensure_future(connect()) for _ in range(CALLERS)]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert all(
                isinstance(each, NodeUnreachableError | PartitionUnavailableError)
                for each in outcomes
            ), outcomes
            # Those that come later do not hear of it: the node may be there again.
            while mute.connections < attempts:
                await asyncio.sleep(0.001)
            assert mute.connections == attempts


@pytest.mark.parametrize("kind", [connecting_to_node, opening_partitions])
async def test_an_attempt_whose_caller_has_left_is_made_by_the_next_one(
    mute: MuteServer,
    kind: Callable[..., AbstractAsyncContextManager[Callable[[], Awaitable[object]]]],
) -> None:
    async with kind(mute, connect_seconds=60.0) as connect:
        first, second = (asyncio.ensure_future(connect()) for _ in range(2))
        while not mute.connections:
            await asyncio.sleep(0.01)
        first.cancel()
        with suppress(asyncio.CancelledError):
            await first
        while mute.connections < 2:
            await asyncio.sleep(0.01)
        mute.close()
        with pytest.raises((NodeUnreachableError, PartitionUnavailableError)):
            await second
        assert mute.connections == 2
