"""The gRPC services, Pravega's and our own: finds the call, turns errors into statuses.

Invariants:

- A call that meets a recovering controller waits for it, and is answered UNAVAILABLE if that takes too long. Clients
  come back in pauses that grow tenfold (1 ms, 10 ms, ... 10 s): refused in the last moment of a recovery, they would
  stand still for many times as long as it took.
- A call that the service does not have is UNIMPLEMENTED; every call has one answerer.
- Calls are answered by the life of the controller that is there when they begin, and end with it at the latest.
- A fault of ours is logged here with its traceback, and reaches the client as INTERNAL without it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import grpc

from segmentstore.contracts.errors import ErrorKind, SegmentStoreError
from segmentstore.controller.api.call import SERVICE_NAME, Call
from segmentstore.controller.api.open_calls import OpenCalls
from segmentstore.controller.api.statuses import status_code
from segmentstore.controller.errors import RetryLaterError

_LOG = logging.getLogger(__name__)

__all__ = ["SERVICE_NAME", "ControllerService"]

Context = grpc.aio.ServicerContext[bytes, bytes]
Handler = Callable[[bytes, Context], Awaitable[bytes]]


class ControllerService:
    """The calls of the controller, served for as long as the process lives, by one life after the other."""

    def __init__(self, *, calls: Sequence[Call]) -> None:
        """`calls`: those that there are; each life brings its own answerers."""
        self._calls = _by_name(calls)
        self._open_calls = OpenCalls()
        self._ready = asyncio.Event()

    @property
    def is_ready(self) -> bool:
        """Whether calls are answered."""
        return self._ready.is_set()

    @property
    def open_calls(self) -> OpenCalls:
        """Those of the present life."""
        return self._open_calls

    def begin(self, calls: Sequence[Call]) -> None:
        """A life of the controller begins: these answer."""
        assert not self.is_ready, "a life begins while another one answers"
        answerers = _by_name(calls)
        assert answerers.keys() == self._calls.keys(), f"other calls {sorted(answerers)}"
        self._calls = answerers
        self._open_calls = OpenCalls()
        self._ready.set()

    async def end(self) -> None:
        """The life is over: calls under way are refused, later ones wait. Returns when none is under way."""
        self._ready.clear()
        await self._open_calls.end()

    async def answer(self, name: str, request: bytes) -> bytes:
        """One call without a socket.

        Raises SegmentStoreError (RetryLaterError while the controller recovers, LifeEndedError if its life ends),
        KeyError (no such call).
        """
        if not self._ready.is_set():
            raise RetryLaterError("the controller is recovering")
        async with self._open_calls.one():
            return await self._calls[name].answer(request)

    async def answer_when_ready(self, name: str, request: bytes, *, wait_seconds: float) -> bytes:
        """The same, for a caller who waits so long for a recovery. Raises as `answer`."""
        if not self._ready.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_seconds):
                    await self._ready.wait()
        return await self.answer(name, request)

    def handlers(self, *, wait_seconds: float) -> "list[grpc.GenericRpcHandler[bytes, bytes]]":
        """What a gRPC server registers, one per service; calls wait so long for a recovery."""
        services: dict[str, dict[str, grpc.RpcMethodHandler[bytes, bytes]]] = {}
        for name, call in self._calls.items():
            services.setdefault(call.service, {})[name] = grpc.unary_unary_rpc_method_handler(
                self._guarded(name, wait_seconds)
            )
        return [
            grpc.method_handlers_generic_handler(service, methods)
            for service, methods in services.items()
        ]

    def _guarded(self, name: str, wait_seconds: float) -> Handler:
        async def handle(request: bytes, context: Context) -> bytes:
            try:
                return await self.answer_when_ready(name, request, wait_seconds=wait_seconds)
            except SegmentStoreError as error:
                if error.kind is ErrorKind.CORRUPT:
                    _LOG.error("call=%s failed: %s", name, error)
                await context.abort(status_code(error), str(error))
            except Exception:  # noqa: BLE001 (the top of a call: the client gets a status, the server goes on)
                _LOG.exception("call=%s failed by a fault of ours", name)
                await context.abort(grpc.StatusCode.INTERNAL, "internal error")
            raise AssertionError("abort returned")

        return handle


def _by_name(calls: Sequence[Call]) -> dict[str, Call]:
    by_name = {call.name: call for call in calls}
    assert len(by_name) == len(calls), (
        f"a call has two answerers calls={sorted(call.name for call in calls)}"
    )
    return by_name
