"""A wall between clients and their store that loses acknowledgements.

The client asks a controller that passes every call on and answers `getURI` with our own address. There its bytes to the
store pass unchanged; of the frames that come back, the DataAppended that acknowledges the k-th event since the last one
that was lost is thrown away, and the connection closed at once: the store has the events, and their writer does not
know. Events are counted, not frames: on a slow machine a frame acknowledges many.
"""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from segmentstore.codec.controller_api import controller_pb2 as messages
from tests.integration.pravega_clients.controller_calls import SERVICE

if TYPE_CHECKING:
    # grpcio's classes are generic in its stubs only.
    _Handler = grpc.GenericRpcHandler[bytes, bytes]
else:
    _Handler = grpc.GenericRpcHandler

DATA_APPENDED = 7
_HEADER = struct.Struct(">ii")
_EVENT_NUMBERS = struct.Struct(">16xqq")
"""Of a DataAppended, behind its writer: of the last event that it acknowledges, and of the one before all of those."""


class AcknowledgementLoser:
    """The wall before the store. `drops` counts what it did."""

    def __init__(self, *, store_port: int, every: int) -> None:
        self._store_port = store_port
        self._every = every
        self._acknowledged = 0
        self._connections: dict[asyncio.Task[object], asyncio.StreamWriter] = {}
        self.drops = 0

    async def close(self) -> None:
        """End the connections that are left."""
        left = dict(self._connections)
        for to_client in left.values():
            to_client.transport.abort()
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """One connection of a client, until either side closes it or we do."""
        task = asyncio.current_task()
        assert task is not None, "a connection is served in a task"
        self._connections[task] = to_client
        try:
            await self._serve(client, to_client)
        finally:
            del self._connections[task]

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            store, to_store = await asyncio.open_connection("127.0.0.1", self._store_port)
        except ConnectionError:
            to_client.transport.abort()
            return
        try:
            passing = asyncio.create_task(self._pass_requests(client, to_store))
            try:
                with suppress(ConnectionError, asyncio.IncompleteReadError):
                    await self._pass_answers(store, to_client)
            finally:
                passing.cancel()
                with suppress(asyncio.CancelledError, ConnectionError):
                    await passing
        finally:
            to_store.transport.abort()
            to_client.transport.abort()

    async def _pass_requests(
        self, client: asyncio.StreamReader, to_store: asyncio.StreamWriter
    ) -> None:
        while piece := await client.read(1 << 16):
            to_store.write(piece)
            await to_store.drain()
        to_store.write_eof()

    async def _pass_answers(
        self, store: asyncio.StreamReader, to_client: asyncio.StreamWriter
    ) -> None:
        while True:
            header = await store.readexactly(_HEADER.size)
            kind, length = _HEADER.unpack(header)
            payload = await store.readexactly(length)
            if kind == DATA_APPENDED:
                self._acknowledged += _events_in(payload)
                if self._acknowledged >= self._every:
                    self._acknowledged = 0
                    self.drops += 1
                    return
            to_client.write(header + payload)
            await to_client.drain()


def _events_in(acknowledgement: bytes) -> int:
    last, before = _EVENT_NUMBERS.unpack_from(acknowledgement)
    # There is no number before the first event of a writer.
    return int(last - before) if before >= 0 else 1


class RedirectingController(_Handler):
    """Passes calls on as the bytes that they are."""

    def __init__(self, channel: grpc.aio.Channel, *, store_port: int) -> None:
        self._channel = channel
        self._address = messages.NodeUri(endpoint="127.0.0.1", port=store_port).SerializeToString()

    def service(
        self, details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        return grpc.unary_unary_rpc_method_handler(self._passing(details.method))

    def _passing(
        self, method: str
    ) -> Callable[[bytes, "grpc.aio.ServicerContext[bytes, bytes]"], Awaitable[bytes]]:
        async def call(request: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> bytes:
            passed_on: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
            passed_on = self._channel.unary_unary(
                method, request_serializer=bytes, response_deserializer=bytes
            )
            try:
                answer = await passed_on(request)
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "")
            return self._address if method == SERVICE + "getURI" else answer

        return call


@asynccontextmanager
async def losing_acknowledgements(
    *, controller_port: int, store_port: int, every: int
) -> AsyncIterator[tuple[str, AcknowledgementLoser]]:
    """(address of a controller behind which each k-th event's acknowledgement is lost, the one that loses them)."""
    loser = AcknowledgementLoser(store_port=store_port, every=every)
    listening = await asyncio.start_server(loser.serve, "127.0.0.1", 0, limit=1 << 20)
    port = listening.sockets[0].getsockname()[1]
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{controller_port}")
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([RedirectingController(channel, store_port=port)])
    controller = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"tcp://127.0.0.1:{controller}", loser
    finally:
        await server.stop(None)
        await channel.close(None)
        listening.close()
        await loser.close()
