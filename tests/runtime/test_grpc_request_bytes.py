"""Requests of all calls of a gRPC server hold what they may, over real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from segmentstore.runtime.grpc_listening import listening_server
from segmentstore.runtime.grpc_request_bytes import Context, RequestBytes

KIB = 1 << 10
LONG = 1 << 20


class Served:
    """Calls that wait for `let_go`, and a client of them."""

    def __init__(self, requests: RequestBytes) -> None:
        self.requests = requests
        self.let_go = asyncio.Event()
        self.begun = 0
        self.most_held = 0
        self.channel: grpc.aio.Channel

    async def length_of(self, request: bytes, context: Context) -> bytes:
        self.begun += 1
        self.most_held = max(self.most_held, self.requests.held_bytes)
        await self.let_go.wait()
        return b"%d" % len(request)

    async def twice(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        yield await self.length_of(request, context)
        yield b"again"

    def call(self, request: bytes) -> "grpc.aio.UnaryUnaryCall[bytes, bytes]":
        return self.channel.unary_unary("/s/LengthOf", None, None)(request)

    def open_call(self) -> Any:
        """Whose request is still to be sent."""
        method: Any = self.channel.stream_unary("/s/LengthOf", None, None)
        return method()


@asynccontextmanager
async def served(
    *, bytes_max: int = 3 * LONG, message_seconds_max: float = 600.0
) -> AsyncIterator[Served]:
    requests = RequestBytes(
        bytes_max=bytes_max, message_bytes_max=LONG, message_seconds_max=message_seconds_max
    )
    each = Served(requests)
    handlers = {
        "LengthOf": grpc.unary_unary_rpc_method_handler(each.length_of),
        "Twice": grpc.unary_stream_rpc_method_handler(each.twice),
    }
    server, port = await listening_server(
        "a test",
        address="127.0.0.1",
        port=0,
        calls_at_once_max=1000,
        handlers=[grpc.method_handlers_generic_handler("s", handlers)],
        requests=requests,
    )
    each.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    try:
        yield each
        assert requests.held_bytes == requests.waiting_count == 0
    finally:
        await each.channel.close(None)
        await server.stop(0)


async def until_waiting(server: Served, count: int) -> None:
    while server.requests.waiting_count < count:
        await asyncio.sleep(0.001)


async def test_requests_are_received_as_far_as_there_is_room_and_all_are_answered() -> None:
    async with served() as server:
        calls = [server.call(bytes(LONG)) for _ in range(20)]
        await until_waiting(server, 17)
        while server.begun < 3:
            await asyncio.sleep(0.001)
        assert server.requests.held_bytes == 3 * LONG
        server.let_go.set()
        assert [await call for call in calls] == [b"%d" % LONG] * 20
        assert server.most_held <= 3 * LONG


async def test_a_request_without_room_stays_with_its_client() -> None:
    """Beyond what gRPC takes ahead. A slow machine cannot fail this, a fast one finds a fault."""
    async with served(bytes_max=LONG) as server:
        first = server.call(b"holds a little")
        while server.begun < 1:
            await asyncio.sleep(0.001)
        call = server.open_call()
        writing = asyncio.ensure_future(call.write(bytes(LONG)))
        await until_waiting(server, 1)
        await asyncio.wait([writing], timeout=0.3)
        assert not writing.done()
        server.let_go.set()
        assert await first == b"14"
        await writing
        await call.done_writing()
        assert await call == b"%d" % LONG


async def test_short_requests_do_not_keep_the_room_of_long_ones() -> None:
    async with served(bytes_max=LONG + 10 * KIB) as server:
        calls = [server.call(bytes(KIB)) for _ in range(20)]
        while (server.begun, server.requests.waiting_count) != (11, 9):
            await asyncio.sleep(0.001)
        assert server.requests.held_bytes == 11 * KIB
        server.let_go.set()
        assert [await call for call in calls] == [b"1024"] * 20


async def test_answers_in_pieces_come_as_well() -> None:
    async with served() as server:
        server.let_go.set()
        call = server.channel.unary_stream("/s/Twice", None, None)(b"abc")
        assert [each async for each in call] == [b"3", b"again"]


async def test_a_request_that_does_not_arrive_gives_its_room_to_others() -> None:
    async with served(bytes_max=LONG, message_seconds_max=0.01) as server:
        server.let_go.set()
        late = server.open_call()
        assert await late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert server.begun == 0


async def test_a_call_without_a_request_is_refused() -> None:
    async with served() as server:
        empty = server.open_call()
        await empty.done_writing()
        assert await empty.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert server.begun == 0


async def test_a_request_that_is_too_long_is_refused_and_gives_back_its_room() -> None:
    async with served() as server:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await server.call(bytes(LONG + 1))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        while server.requests.held_bytes:
            await asyncio.sleep(0.001)


async def test_a_client_that_leaves_while_it_waits_leaves_the_line() -> None:
    async with served(bytes_max=LONG) as server:
        first = server.call(b"abc")
        while server.begun < 1:
            await asyncio.sleep(0.001)
        leaving, staying = server.call(bytes(LONG)), server.call(bytes(LONG))
        await until_waiting(server, 2)
        leaving.cancel()
        while server.requests.waiting_count > 1:
            await asyncio.sleep(0.001)
        server.let_go.set()
        assert await first == b"3"
        assert await staying == b"%d" % LONG


async def test_room_is_given_in_the_order_in_which_it_was_asked_for() -> None:
    requests = RequestBytes(bytes_max=100, message_bytes_max=80, message_seconds_max=1.0)
    order: list[int] = []

    async def ask(number: int, byte_count: int) -> None:
        room = await requests.take(byte_count)
        order.append(number)
        await asyncio.sleep(0)
        room.give_back()
        room.give_back()

    first = await requests.take(60)
    asking = [asyncio.ensure_future(ask(n, size)) for n, size in enumerate((80, 10, 10, 60))]
    await asyncio.sleep(0)
    assert (requests.held_bytes, requests.waiting_count) == (60, 4)
    asking[1].cancel()
    first.shrink(30)
    await asyncio.sleep(0)
    assert order == []
    first.give_back()
    await asyncio.gather(*asking, return_exceptions=True)
    assert order == [0, 2, 3]
    assert requests.held_bytes == 0
