"""The gRPC service: finds the call, turns errors into statuses.

Invariants:

- Until the controller has recovered, every call is answered UNAVAILABLE: clients come back.
- A call that the service does not have is UNIMPLEMENTED; every call has one answerer.
- A fault of ours is logged here with its traceback, and reaches the client as INTERNAL without it.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence

import grpc

from segmentstore.contracts.errors import ErrorKind, SegmentStoreError
from segmentstore.controller.api.call import Call
from segmentstore.controller.api.statuses import status_code
from segmentstore.controller.errors import RetryLaterError

_LOG = logging.getLogger(__name__)

SERVICE_NAME = "io.pravega.controller.stream.api.grpc.v1.ControllerService"

Context = grpc.aio.ServicerContext[bytes, bytes]
Handler = Callable[[bytes, Context], Awaitable[bytes]]


class ControllerService:
    """The calls of the controller, ready to be served."""

    def __init__(self, *, calls: Sequence[Call], is_ready: Callable[[], bool]) -> None:
        self._calls = {call.name: call for call in calls}
        self._is_ready = is_ready
        assert len(self._calls) == len(calls), (
            f"a call has two answerers calls={sorted(call.name for call in calls)}"
        )

    async def answer(self, name: str, request: bytes) -> bytes:
        """One call without a socket. Raises SegmentStoreError, KeyError (no such call)."""
        if not self._is_ready():
            raise RetryLaterError("the controller is recovering")
        return await self._calls[name].answer(request)

    def handler(self) -> "grpc.GenericRpcHandler[bytes, bytes]":
        """What a gRPC server registers."""
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                name: grpc.unary_unary_rpc_method_handler(self._guarded(name))
                for name in self._calls
            },
        )

    def _guarded(self, name: str) -> Handler:
        async def handle(request: bytes, context: Context) -> bytes:
            try:
                return await self.answer(name, request)
            except SegmentStoreError as error:
                if error.kind is ErrorKind.CORRUPT:
                    _LOG.error("call=%s failed: %s", name, error)
                await context.abort(status_code(error), str(error))
            except Exception:  # noqa: BLE001 (the top of a call: the client gets a status, the server goes on)
                _LOG.exception("call=%s failed by a fault of ours", name)
                await context.abort(grpc.StatusCode.INTERNAL, "internal error")
            raise AssertionError("abort returned")

        return handle
