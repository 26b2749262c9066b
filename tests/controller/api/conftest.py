"""A whole controller behind a real gRPC server on the loopback."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from random import Random
from typing import TypeVar

import grpc
import pytest
from google.protobuf.message import Message

from segmentstore.codec.controller_api import SERVICE
from segmentstore.codec.controller_api import controller_pb2 as api
from segmentstore.controller.api.grpc_server import ControllerServer, ControllerServerSettings
from segmentstore.controller.api.messages import Endpoint
from segmentstore.controller.controller import Controller
from segmentstore.controller.settings import ControllerSettings, StreamSettings
from segmentstore.runtime.clock import SystemWallClock
from tests.http.memory_segments import MemorySegments
from tests.reference.memory_tables import MemoryTables

Answer = TypeVar("Answer", bound=Message)


IMPATIENT = ControllerServerSettings(port=0, recovery_wait_seconds=0.05)


class Node:
    """A controller that runs, and a client of it."""

    def __init__(self, settings: ControllerServerSettings = IMPATIENT) -> None:
        self.segments = MemorySegments()
        self.tables = MemoryTables()
        self.controller = Controller(
            segments=self.segments,
            tables=self.tables,
            wall_clock=SystemWallClock(),
            random=Random(1),
            locate=lambda name: Endpoint("127.0.0.1", 10_000 + len(name)),
            controllers=lambda: [Endpoint("127.0.0.1", 9090)],
            settings=ControllerSettings(streams=StreamSettings(names_per_page=2)),
        )
        self.server = ControllerServer(
            service=self.controller.service,
            settings=settings,
        )
        self.channel: grpc.aio.Channel
        self._running: asyncio.Task[None]

    async def listen(self) -> None:
        await self.server.start()
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.server.port}")

    async def start(self) -> None:
        await self.controller.start()
        self._running = asyncio.create_task(self.controller.run())
        while not self.controller.is_ready:
            await asyncio.sleep(0)

    async def close(self) -> None:
        await self.channel.close(None)
        await self.server.close()
        if self.controller.is_ready:
            await self.end_life()

    async def end_life(self) -> None:
        self._running.cancel()
        with suppress(asyncio.CancelledError):
            await self._running

    async def call_raw(self, name: str, request: bytes) -> bytes:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(
            f"/{SERVICE}/{name}", bytes, bytes
        )
        return await call(request, timeout=60)

    async def call(self, name: str, request: Message, answer: type[Answer]) -> Answer:
        content = await self.call_raw(name, request.SerializeToString())
        message = answer()
        message.ParseFromString(content)
        return message

    async def refusal(self, name: str, request: Message) -> grpc.StatusCode:
        """The code with which the call fails."""
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await self.call(name, request, api.ServerRequest)
        return raised.value.code()


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    """Started, with the scope `s` and in it the stream `a` of two segments."""
    node = Node()
    await node.listen()
    await node.start()
    await node.call("createScope", api.ScopeInfo(scope="s"), api.CreateScopeStatus)
    await node.call("createStream", stream_config("a", segments=2), api.CreateStreamStatus)
    try:
        yield node
    finally:
        await node.close()


@pytest.fixture
async def silent_node() -> AsyncIterator[Node]:
    """Listens, but has not recovered."""
    node = Node()
    await node.listen()
    try:
        yield node
    finally:
        await node.close()


def stream_config(
    stream: str, *, scope: str = "s", segments: int = 1, tags: tuple[str, ...] = ()
) -> api.StreamConfig:
    """What a client sends to create or update a stream."""
    return api.StreamConfig(
        streamInfo=api.StreamInfo(scope=scope, stream=stream),
        scalingPolicy=api.ScalingPolicy(minNumSegments=segments),
        tags=api.Tags(tag=tags),
    )
