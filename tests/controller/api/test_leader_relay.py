"""A controller that does not lead answers by asking the one that does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from segmentstore.codec.controller_api import SERVICE
from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.controller.api.grpc_server import (
    ControllerServer,
    ControllerServerSettings,
    ControllerService,
)
from segmentstore.controller.api.leader_relay import RELAYED, LeaderRelay
from segmentstore.controller.api.messages import Endpoint, no_token
from segmentstore.controller.api.stream_calls import LocationCalls
from tests.controller.api.conftest import Node
from tests.held_ports import bound_sockets, ports_of

SCOPE = api.ScopeInfo(scope="s")


class Follower:
    """A controller's server that relays; `leader` and `own` are what it knows of itself and of others."""

    def __init__(self, leader: str | None, *, silence_seconds: float = 10.0) -> None:
        self.leader = leader
        self.own: ControllerService | None = None
        self.is_fresh = True
        self.relay = LeaderRelay(
            own_service=lambda: self.own,
            leader_address=lambda: self.leader,
            own_calls=LocationCalls(
                locate=lambda name: Endpoint("127.0.0.9", len(name)),
                issue_token=no_token,
                controllers=tuple,
            ).calls(),
            answers_own_calls=lambda: self.is_fresh,
            silence_seconds=silence_seconds,
        )
        self.server = ControllerServer(
            service=self.relay,
            settings=ControllerServerSettings(port=0, recovery_wait_seconds=0.05),
        )
        self.channel: grpc.aio.Channel

    async def start(self) -> None:
        await self.server.start()
        self.channel = grpc.aio.insecure_channel(self.address)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    async def close(self) -> None:
        await self.channel.close(None)
        await self.server.close()
        await self.relay.close()

    async def call(self, name: str, request: bytes, *, seconds: float | None = 60.0) -> bytes:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(
            f"/{SERVICE}/{name}", bytes, bytes
        )
        return await call(request, timeout=seconds)

    async def refusal(
        self, name: str, request: bytes, *, seconds: float = 60.0
    ) -> grpc.aio.AioRpcError:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await self.call(name, request, seconds=seconds)
        return raised.value


class CutWay:
    """A way to a server that may be cut: connections stay, and carry nothing any more."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> str:
        """Its address."""
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    def cut(self) -> None:
        self._open.clear()

    async def close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, back]
        self._tasks += [
            asyncio.create_task(self._carry(reader, back)),
            asyncio.create_task(self._carry(there, writer)),
        ]

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while content := await reader.read(1 << 16):
            await self._open.wait()
            writer.write(content)
        writer.close()


@pytest.fixture
async def follower(node: Node) -> AsyncIterator[Follower]:
    """Of the leader `node`."""
    follower = Follower(f"127.0.0.1:{node.server.port}")
    await follower.start()
    try:
        yield follower
    finally:
        await follower.close()


async def test_a_call_is_answered_as_the_leader_answers_it(node: Node, follower: Follower) -> None:
    stream = api.StreamInfo(scope="s", stream="a").SerializeToString()
    answer = await follower.call("getCurrentSegments", stream)
    assert answer == await node.call_raw("getCurrentSegments", stream)
    assert answer


async def test_the_leaders_refusals_come_with_their_code_and_words(
    node: Node, follower: Follower
) -> None:
    refused = await follower.refusal("getCurrentSegments", b"\xff\xff")
    assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await node.call_raw("getCurrentSegments", b"\xff\xff")
    assert refused.details() == raised.value.details()
    assert (await follower.refusal("noSuchCall", b"")).code() is grpc.StatusCode.UNIMPLEMENTED


async def test_many_calls_are_handed_on_at_once(node: Node, follower: Follower) -> None:
    stream = api.StreamInfo(scope="s", stream="a").SerializeToString()
    expected = await node.call_raw("getCurrentSegments", stream)
    answers = await asyncio.gather(
        *(follower.call("getCurrentSegments", stream) for _ in range(100))
    )
    assert set(answers) == {expected}


async def test_the_deadline_travels_with_the_call(node: Node, follower: Follower) -> None:
    operations = node.controller.components.streams.operations
    stream = api.StreamInfo(scope="s", stream="a").SerializeToString()
    async with operations.exclusive("s", "a"):
        refused = await follower.refusal("sealStream", stream, seconds=0.3)
    assert refused.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_caller_that_leaves_ends_the_call_at_the_leader(
    node: Node, follower: Follower
) -> None:
    operations = node.controller.components.streams.operations
    stream = api.StreamInfo(scope="s", stream="a").SerializeToString()
    open_calls = node.controller.service.open_calls
    async with operations.exclusive("s", "a"):
        asking = asyncio.create_task(follower.call("sealStream", stream))
        while not open_calls:
            await asyncio.sleep(0.01)
        asking.cancel()
        async with asyncio.timeout(60):
            while open_calls:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def call_that_waits(node: Node, follower: Follower) -> AsyncIterator["asyncio.Task[bytes]"]:
    """Without a deadline; it has come to the leader, and is not answered inside of the block."""
    operations = node.controller.components.streams.operations
    stream = api.StreamInfo(scope="s", stream="a").SerializeToString()
    async with operations.exclusive("s", "a"):
        asking = asyncio.create_task(follower.call("sealStream", stream, seconds=None))
        while not node.controller.service.open_calls:
            await asyncio.sleep(0.01)
        yield asking


@pytest.mark.parametrize("then", [None, "127.0.0.1:1"])
async def test_a_call_that_waits_for_a_leader_ends_once_another_one_leads(
    node: Node, follower: Follower, then: str | None
) -> None:
    """None: no other is known, or it is this one. The connection to the first one is there, and no answer comes."""
    async with call_that_waits(node, follower) as asking:
        follower.relay.look()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(asking), 0.1)
        follower.leader = then
        follower.relay.look()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await asyncio.wait_for(asking, 60)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_call_ends_when_the_way_to_its_leader_is_cut(node: Node) -> None:
    """Also where it goes on leading: both may still reach the coordination store."""
    way = CutWay(node.server.port)
    follower = Follower(await way.start(), silence_seconds=0.5)
    await follower.start()
    async with call_that_waits(node, follower) as asking:
        way.cut()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await asyncio.wait_for(asking, 60)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    await follower.close()
    await way.close()


async def test_without_a_leader_calls_are_unavailable(node: Node, follower: Follower) -> None:
    request = SCOPE.SerializeToString()
    follower.leader = None
    assert (await follower.refusal("createScope", request)).code() is grpc.StatusCode.UNAVAILABLE
    # Of a port that is held, and on which nothing listens.
    (holder,) = bound_sockets(1)
    with holder:
        follower.leader = f"127.0.0.1:{ports_of([holder])[0]}"
        refused = await follower.refusal("createScope", request)
    assert refused.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_call_is_handed_on_once(node: Node, follower: Follower) -> None:
    second = Follower(follower.address)
    await second.start()
    follower.leader = second.address
    request = SCOPE.SerializeToString()
    assert (await second.refusal("createScope", request)).code() is grpc.StatusCode.UNAVAILABLE
    # And one that believes that it leads itself, but does not yet.
    follower.leader = follower.address
    assert (await follower.refusal("createScope", request)).code() is grpc.StatusCode.UNAVAILABLE
    assert RELAYED.islower()
    await second.close()


async def test_a_controller_that_leads_answers_by_itself(node: Node, follower: Follower) -> None:
    follower.leader = None
    follower.own = node.controller.service
    stream = api.StreamInfo(scope="s", stream="a").SerializeToString()
    assert await follower.call("getCurrentSegments", stream)
    assert (await follower.refusal("noSuchCall", b"")).code() is grpc.StatusCode.UNIMPLEMENTED
    follower.own = None
    refused = await follower.refusal("getCurrentSegments", stream)
    assert refused.code() is grpc.StatusCode.UNAVAILABLE


async def test_where_a_segment_is_is_told_by_one_that_does_not_lead_unless_it_heard_nothing_for_long(
    node: Node, follower: Follower
) -> None:
    stream = api.StreamInfo(scope="s", stream="a")
    segment = api.SegmentId(streamInfo=stream, segmentId=0).SerializeToString()
    leader, follower.leader = follower.leader, None
    found = api.NodeUri.FromString(await follower.call("getURI", segment))
    assert found.endpoint == "127.0.0.9"
    assert await follower.call("getDelegationToken", stream.SerializeToString()) == b""
    # It would send clients astray, again and again.
    follower.is_fresh = False
    refused = await follower.refusal("getURI", segment)
    assert refused.code() is grpc.StatusCode.UNAVAILABLE
    follower.leader = leader
    found = api.NodeUri.FromString(await follower.call("getURI", segment))
    assert found.endpoint == "127.0.0.1"
