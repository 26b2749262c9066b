"""Any controller of a cluster answers clients: the leader by itself, the others by asking the leader.

What rests on no table (where a segment is) each answers by itself, also while none leads, unless it has heard nothing
for a while: it would send clients to where nothing is any more, and they would come back to it.

    client -> a controller that does not lead -> the leader -> back the same way

A call is handed on as the bytes that came, whatever its method is: with its deadline, and without a look into it. The
answer comes back the same way, and so does the status if it is an error. Every method of the controller has one request
and one answer.

Invariants:

- A controller answers by itself while it leads, and never asks itself.
- A call is handed on once: one that was handed on to a controller which does not lead (any more, or not yet) is refused
  with UNAVAILABLE, which clients retry.
- Where no leader is known or reachable the call is answered UNAVAILABLE, and nothing was done. A leader that goes away
  under a call ends it as the loss of a connection to a controller does; whether it was done is not known then. So do
  the news of another leader, or of none, and so does a leader from which nothing comes any more: a process that is
  stopped, or a way that is cut, leaves the connection as it is.
- At most `_CHANNELS_MAX` connections to leaders are open; the one that was needed longest ago is closed.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import grpc

from segmentstore.controller.api.call import Call
from segmentstore.controller.api.grpc_server import ControllerService, handlers_of

RELAYED: Final = "segmentstore-relayed"
"""Metadata of a call that a controller has handed on."""
_CHANNELS_MAX: Final = 8
_CHANNEL_OPTIONS: Final = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # A call may wait for long; without this the questions whether the leader is there end after the second.
    ("grpc.http2.max_pings_without_data", 0),
)
_ANOTHER_LEADS: Final = "another controller leads now, or none"
_NOT_HANDED_ON: Final = ("user-agent", "content-type", "te")
"""Metadata of the connection, not of the call."""

Context = grpc.aio.ServicerContext[bytes, bytes]


class LeaderRelay:
    """What a ControllerServer serves in a cluster. close() it behind the server."""

    def __init__(
        self,
        *,
        own_service: Callable[[], ControllerService | None],
        leader_address: Callable[[], str | None],
        own_calls: Iterable[Call],
        answers_own_calls: Callable[[], bool],
        silence_seconds: float = 10.0,
    ) -> None:
        """`own_service` is None while this process does not lead; `leader_address` is HOST:PORT, None if not known;
        `own_calls` are those that it answers whether it leads or not, as long as `answers_own_calls` says so; a leader
        that was silent for `silence_seconds` under a call is asked whether it is there, and has as long to answer."""
        self._own_handlers = handlers_of(own_calls)
        self._answers_own_calls = answers_own_calls
        self._own_service = own_service
        self._leader_address = leader_address
        self._channels: dict[str, grpc.aio.Channel] = {}
        """The one that was used last is the last."""
        # Servers here end a connection that asks more often than every five seconds.
        silence_ms = round(silence_seconds * 1000)
        self._channel_options = (
            *_CHANNEL_OPTIONS,
            ("grpc.keepalive_time_ms", silence_ms),
            ("grpc.keepalive_timeout_ms", silence_ms),
            # gRPC 1.85 waits for the answer so long, a minute if not told, whatever the timeout above is.
            ("grpc.http2.ping_timeout_ms", silence_ms),
        )
        self._handed_on: dict[grpc.aio.UnaryUnaryCall[bytes, bytes], str] = {}
        """Calls that wait for the leader of that address."""

    def handlers(self, *, wait_seconds: float) -> "list[grpc.GenericRpcHandler[bytes, bytes]]":
        """What a gRPC server registers. As long as this process leads, calls wait so long for its recovery."""
        return [_Handler(self, wait_seconds)]

    def look(self) -> None:
        """There may be other news of who leads: what waits for an earlier leader ends."""
        # Who leads is asked for each call: the first news come before this process has an address to compare with.
        for call, address in list(self._handed_on.items()):
            if address != self._leader_address():
                del self._handed_on[call]
                call.cancel()

    async def close(self) -> None:
        """Closing twice is fine."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close(None)

    def own_handler(
        self, details: grpc.HandlerCallDetails, *, wait_seconds: float
    ) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        """Of the controller in this process; None if it does not lead, and the call needs one that does."""
        own = _first_handler(self._own_handlers, details)
        if own is not None and self._answers_own_calls():
            return own
        service = self._own_service()
        if service is None:
            return None
        found = _first_handler(service.handlers(wait_seconds=wait_seconds), details)
        return found or _unimplemented()

    async def hand_on(self, method: str, request: bytes, context: Context) -> bytes:
        """The leader's answer."""
        metadata = context.invocation_metadata() or ()
        address = self._leader_address()
        if address is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no controller leads now")
        if any(key == RELAYED for key, _ in metadata):
            await context.abort(
                grpc.StatusCode.UNAVAILABLE, "the controller that was asked does not lead"
            )
        assert address is not None, "abort returned"
        channel = await self._channel(address)
        if address != self._leader_address():
            await context.abort(grpc.StatusCode.UNAVAILABLE, _ANOTHER_LEADS)
        # The request is at hand: a call that streams it would hide the leader's refusal behind a failed write.
        call: grpc.aio.UnaryUnaryCall[bytes, bytes] = channel.unary_unary(method, None, None)(
            request,
            timeout=context.time_remaining(),
            metadata=grpc.aio.Metadata(
                *((key, value) for key, value in metadata if key not in _NOT_HANDED_ON),
                (RELAYED, "1"),
            ),
        )
        self._handed_on[call] = address
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "")
            raise AssertionError("abort returned") from error
        except asyncio.CancelledError:
            # The caller has left; or look() has ended the call.
            if call in self._handed_on:
                raise
            await context.abort(grpc.StatusCode.UNAVAILABLE, _ANOTHER_LEADS)
            raise
        finally:
            self._handed_on.pop(call, None)
            call.cancel()

    async def _channel(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.pop(address, None)
        if channel is None:
            channel = grpc.aio.insecure_channel(address, self._channel_options)
        self._channels[address] = channel
        if len(self._channels) > _CHANNELS_MAX:
            oldest = next(iter(self._channels))
            await self._channels.pop(oldest).close(None)
        return channel


class _Handler(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic for the type checker alone
    """Decides at the beginning of each call."""

    def __init__(self, relay: LeaderRelay, wait_seconds: float) -> None:
        self._relay = relay
        self._wait_seconds = wait_seconds

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[bytes, bytes]":
        own = self._relay.own_handler(handler_call_details, wait_seconds=self._wait_seconds)
        if own is not None:
            return own
        method = handler_call_details.method

        async def handle(request: bytes, context: Context) -> bytes:
            return await self._relay.hand_on(method, request, context)

        return grpc.unary_unary_rpc_method_handler(handle)


def _first_handler(
    handlers: "Iterable[grpc.GenericRpcHandler[bytes, bytes]]", details: grpc.HandlerCallDetails
) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
    return next(filter(None, (each.service(details) for each in handlers)), None)


def _unimplemented() -> "grpc.RpcMethodHandler[bytes, bytes]":
    async def refuse(request: bytes, context: Context) -> bytes:  # noqa: ARG001
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such call")
        raise AssertionError("abort returned")

    return grpc.unary_unary_rpc_method_handler(refuse)
