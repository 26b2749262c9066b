"""What the requests of all calls to one gRPC server hold: a call is received when there is room for its request.

gRPC bounds the calls and the bytes of one request, not their product: 2,000 calls of 16 MiB are 32 GB, received before
a handler hears of them. So handlers of unary requests are registered as handlers of streams, which decide when the
request is received. That changes nothing of what goes over the wire.

- A request takes room for the longest there may be before it is received, since its length is not known, and for its
  length from then on until its call is answered. Room is given in the order in which it was asked for.
- One that does not arrive in `message_seconds_max` ends its call with DEADLINE_EXCEEDED: others wait for its room.
- What gRPC receives of a call ahead of its handler is LOOKAHEAD_BYTES at most. It has to be told to: by itself it takes
  more, by what the network carries.
- A call that streams requests may wait for its next one for ever, so it takes no room ahead. There are `streams_max` of
  them at a time, each with one request that is being received; a further one is refused with RESOURCE_EXHAUSTED. What
  they have received takes room by take().

All together hold `bytes_max`, `streams_max` requests of the greatest length, and LOOKAHEAD_BYTES a call.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

import grpc

from segmentstore.runtime.shared_room import Room, SharedRoom

LOOKAHEAD_BYTES: Final = 64 << 10

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"


class RequestBytes:
    """The room that all requests of one server share."""

    def __init__(
        self,
        *,
        bytes_max: int,
        message_bytes_max: int,
        message_seconds_max: float,
        streams_max: int = 0,
    ) -> None:
        assert message_bytes_max <= bytes_max, f"{message_bytes_max} > {bytes_max}"
        self.message_bytes_max = message_bytes_max
        self._room = SharedRoom(bytes_max)
        self._message_seconds_max = message_seconds_max
        self._streams_max = streams_max
        self._streams = 0

    @property
    def held_bytes(self) -> int:
        return self._room.held_bytes

    @property
    def waiting_count(self) -> int:
        return self._room.waiting_count

    async def take(self, byte_count: int) -> Room:
        """Waits for room; the caller gives it back."""
        assert byte_count <= self.message_bytes_max, f"{byte_count} > {self.message_bytes_max}"
        return await self._room.take(byte_count)

    @asynccontextmanager
    async def received(
        self, arriving: AsyncIterator[bytes], context: Context
    ) -> AsyncIterator[bytes]:
        """The one request of a call, which holds its bytes until the block ends. Ends the call if there is none."""
        room = await self.take(self.message_bytes_max)
        try:
            try:
                async with asyncio.timeout(self._message_seconds_max):
                    request = await anext(arriving, None)
            except TimeoutError:
                await context.abort(
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                    f"the request did not arrive in seconds_max={self._message_seconds_max}",
                )
            if request is None:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no request")
            assert request is not None, "abort returned"
            room.shrink(len(request))
            yield request
        finally:
            room.give_back()

    @asynccontextmanager
    async def one_stream(self, context: Context) -> AsyncIterator[None]:
        """A call that streams requests. Ends it if there are too many."""
        if self._streams >= self._streams_max:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"too many calls stream requests streams_max={self._streams_max}",
            )
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1


class ReceivedInTurn(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic for the type checker alone
    """Handlers whose requests are received when there is room for them."""

    def __init__(
        self, handlers: "Sequence[grpc.GenericRpcHandler[bytes, bytes]]", requests: RequestBytes
    ) -> None:
        self._handlers = handlers
        self._requests = requests

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "Handler | None":
        for each in self._handlers:
            handler: Any = each.service(handler_call_details)
            if handler is not None:
                return self._in_turn(handler)
        return None

    def _in_turn(self, handler: Any) -> Handler:
        assert handler.request_deserializer is None, "a request is counted before it is read"
        requests = self._requests

        async def unary(arriving: AsyncIterator[bytes], context: Context) -> bytes:
            async with requests.received(arriving, context) as request:
                answer: bytes = await handler.unary_unary(request, context)
                return answer

        async def answers(arriving: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
            async with requests.received(arriving, context) as request:
                async for answer in handler.unary_stream(request, context):
                    yield answer

        async def stream(arriving: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
            async with requests.one_stream(context):
                async for answer in handler.stream_stream(arriving, context):
                    yield answer

        if handler.request_streaming:
            assert handler.response_streaming, "a kind of call that no server has"
            return grpc.stream_stream_rpc_method_handler(stream)
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(answers)
        return grpc.stream_unary_rpc_method_handler(unary)
