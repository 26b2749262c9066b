"""The gRPC server of the controller: the socket (plain HTTP/2), the services, the calls under way, errors as statuses.

There are two services, Pravega's and our own. A call goes from the server to ControllerService, which waits for a
controller that recovers and hands the call to the answerer of its name; OpenCalls holds those under way in one run of
the controller.

Which gRPC status an error becomes (clients retry on the codes, not on the words):

| kind | code | clients |
|---|---|---|
| INVALID, TOO_LARGE | INVALID_ARGUMENT | give up |
| NOT_FOUND | NOT_FOUND | give up |
| CONFLICT | FAILED_PRECONDITION | retry a few times |
| UNAVAILABLE, FENCED | UNAVAILABLE | retry |
| FULL | RESOURCE_EXHAUSTED | retry |
| CORRUPT | INTERNAL | retry, and a person is needed |

Invariants:

- At most `calls_at_once_max` calls are under way; further ones are answered RESOURCE_EXHAUSTED, which clients retry.
- The requests of all calls hold `request_bytes_max` together; a further one is not received before there is room.
- A call that meets a recovering controller waits for it, and is answered UNAVAILABLE if that takes too long. Clients
  come back in pauses that grow tenfold (1 ms, 10 ms, ... 10 s): refused in the last moment of a recovery, they would
  stand still for many times as long as it took. One that rests on no table is answered at once.
- A call that the service does not have is UNIMPLEMENTED; every call has one answerer.
- Calls are answered by the run of the controller that is there when they begin, and end with it at the latest. When
  `OpenCalls.end` returns no call is under way any more, and each of them was answered or refused.
- A call that is ended so is refused with ControllerRestartedError, which clients come back after; its operation is
  taken up by the next run, as that of any caller who left.
- `ControllerServer.close` lets calls that are under way finish for `close_grace_seconds`, then cancels them: an
  operation that a call began is finished by the next task that holds its stream.
- A fault of ours is logged here with its traceback, and reaches the client as INTERNAL without it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import grpc

from segmentstore.contracts.errors import ErrorKind, SegmentStoreError
from segmentstore.controller.api.call import Call
from segmentstore.controller.errors import ControllerRestartedError, RetryLaterError
from segmentstore.runtime.grpc_listening import listening_server, words_of
from segmentstore.runtime.grpc_request_bytes import RequestBytes

_LOG = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[bytes, bytes]
Handler = Callable[[bytes, Context], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class ControllerServerSettings:
    """Where and how to listen."""

    address: str = "127.0.0.1"
    port: int = 9090
    """0: any free one."""
    calls_at_once_max: int = 2000
    message_bytes_max: int = 4 << 20
    """Of one request; above it a client gets RESOURCE_EXHAUSTED."""
    request_bytes_max: int = 128 << 20
    """Of the requests of all calls; a further one is received when there is room for the longest there may be."""
    message_seconds_max: float = 60.0
    """A request that takes longer to arrive ends its call."""
    recovery_wait_seconds: float = 5.0
    """So long a call waits for a controller that recovers."""
    close_grace_seconds: float = 2.0


class OpenCalls:
    """The calls under way in one run of the controller; they end with it."""

    def __init__(self) -> None:
        self._calls: dict[asyncio.Timeout, None] = {}
        self._ended = False
        self._all_left = asyncio.Event()

    def __len__(self) -> int:
        return len(self._calls)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """One call. Raises ControllerRestartedError if the run ends first."""
        assert not self._ended, "a call of a run that has ended"
        call = asyncio.timeout(None)
        try:
            async with call:
                self._calls[call] = None
                yield
        except TimeoutError as error:
            if not call.expired():
                raise
            raise ControllerRestartedError(
                "the controller starts anew; whether this was done is not known"
            ) from error
        finally:
            del self._calls[call]
            if not self._calls:
                self._all_left.set()

    async def end(self) -> None:
        """Break off what is under way, and wait until it has left."""
        self._ended = True
        now = asyncio.get_running_loop().time()
        for call in self._calls:
            call.reschedule(now)
        while self._calls:
            self._all_left.clear()
            await self._all_left.wait()


class ControllerService:
    """The calls of the controller, served until the process ends, by one run of the controller after the other."""

    def __init__(self, *, calls: Sequence[Call]) -> None:
        """`calls`: those that there are; each run brings its own answerers."""
        self._calls = _calls_by_name(calls)
        self._open_calls = OpenCalls()
        self._ready = asyncio.Event()
        self._handlers: dict[float, list[grpc.GenericRpcHandler[bytes, bytes]]] = {}

    @property
    def is_ready(self) -> bool:
        """Whether calls are answered."""
        return self._ready.is_set()

    @property
    def open_calls(self) -> OpenCalls:
        """Those of the present run."""
        return self._open_calls

    def begin(self, calls: Sequence[Call]) -> None:
        """A run of the controller begins: these answer."""
        assert not self.is_ready, "a run begins while another one answers"
        answerers = _calls_by_name(calls)
        assert answerers.keys() == self._calls.keys(), f"other calls {sorted(answerers)}"
        self._calls = answerers
        self._open_calls = OpenCalls()
        self._ready.set()

    async def end(self) -> None:
        """The run is over: calls under way are refused, later ones wait. Returns when none is under way."""
        self._ready.clear()
        await self._open_calls.end()

    async def answer(self, name: str, request: bytes) -> bytes:
        """One call without a socket.

        Raises SegmentStoreError (RetryLaterError while the controller recovers, ControllerRestartedError if its run
        ends), KeyError (no such call).
        """
        call = self._calls[name]
        if not call.rests_on_tables:
            return await call.answer(request)
        if not self._ready.is_set():
            raise RetryLaterError("the controller is recovering")
        async with self._open_calls.one():
            return await call.answer(request)

    async def answer_when_ready(self, name: str, request: bytes, *, wait_seconds: float) -> bytes:
        """The same, for a caller who waits so long for a recovery. Raises as `answer`."""
        if self._calls[name].rests_on_tables and not self._ready.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_seconds):
                    await self._ready.wait()
        return await self.answer(name, request)

    def handlers(self, *, wait_seconds: float) -> "list[grpc.GenericRpcHandler[bytes, bytes]]":
        """What a gRPC server registers, one per service; calls wait so long for a recovery."""
        # A relay asks for them at each call.
        if wait_seconds not in self._handlers:
            self._handlers[wait_seconds] = handlers_of(
                Call(
                    name,
                    partial(self.answer_when_ready, name, wait_seconds=wait_seconds),
                    call.service,
                )
                for name, call in self._calls.items()
            )
        return self._handlers[wait_seconds]


def handlers_of(calls: Iterable[Call]) -> "list[grpc.GenericRpcHandler[bytes, bytes]]":
    """What a gRPC server registers to answer these, one per service."""
    services: dict[str, dict[str, grpc.RpcMethodHandler[bytes, bytes]]] = {}
    for call in calls:
        services.setdefault(call.service, {})[call.name] = grpc.unary_unary_rpc_method_handler(
            _guarded(call)
        )
    return [
        grpc.method_handlers_generic_handler(service, methods)
        for service, methods in services.items()
    ]


def _guarded(call: Call) -> Handler:
    async def handle(request: bytes, context: Context) -> bytes:
        try:
            return await call.answer(request)
        except SegmentStoreError as error:
            if error.kind is ErrorKind.CORRUPT:
                _LOG.error("call=%s failed: %s", call.name, error)
            await context.abort(status_code(error), words_of(error))
        except Exception:  # noqa: BLE001 (the top of a call: the client gets a status, the server goes on)
            _LOG.exception("call=%s failed by a fault of ours", call.name)
            await context.abort(grpc.StatusCode.INTERNAL, "internal error")
        raise AssertionError("abort returned")

    return handle


class ServedCalls(Protocol):
    """What a server serves: the calls of one controller, or of whichever controller leads (`leader_relay.py`)."""

    def handlers(self, *, wait_seconds: float) -> "list[grpc.GenericRpcHandler[bytes, bytes]]":
        """What a gRPC server registers; calls wait so long for a recovery."""


class ControllerServer:
    """Serves one controller."""

    def __init__(self, *, service: ServedCalls, settings: ControllerServerSettings) -> None:
        self._service = service
        self._settings = settings
        self._requests = RequestBytes(
            bytes_max=settings.request_bytes_max,
            message_bytes_max=settings.message_bytes_max,
            message_seconds_max=settings.message_seconds_max,
        )
        self._server: grpc.aio.Server | None = None
        self._port = 0

    @property
    def port(self) -> int:
        """The port in use, once started."""
        return self._port

    async def start(self) -> None:
        """Listen. Raises InvalidRequestError if the address cannot be bound."""
        settings = self._settings
        self._server, self._port = await listening_server(
            "the controller",
            address=settings.address,
            port=settings.port,
            calls_at_once_max=settings.calls_at_once_max,
            handlers=self._service.handlers(wait_seconds=settings.recovery_wait_seconds),
            requests=self._requests,
        )

    async def close(self) -> None:
        """Stop listening and end what is under way; closing twice is fine."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(self._settings.close_grace_seconds)


def status_code(error: SegmentStoreError) -> grpc.StatusCode:
    """The code that says what the caller should do."""
    match error.kind:
        case ErrorKind.INVALID | ErrorKind.TOO_LARGE:
            return grpc.StatusCode.INVALID_ARGUMENT
        case ErrorKind.NOT_FOUND:
            return grpc.StatusCode.NOT_FOUND
        case ErrorKind.CONFLICT:
            return grpc.StatusCode.FAILED_PRECONDITION
        case ErrorKind.UNAVAILABLE | ErrorKind.FENCED:
            return grpc.StatusCode.UNAVAILABLE
        case ErrorKind.FULL:
            return grpc.StatusCode.RESOURCE_EXHAUSTED
        case ErrorKind.CORRUPT:
            return grpc.StatusCode.INTERNAL


def _calls_by_name(calls: Sequence[Call]) -> dict[str, Call]:
    by_name = {call.name: call for call in calls}
    assert len(by_name) == len(calls), (
        f"a call has two answerers calls={sorted(call.name for call in calls)}"
    )
    return by_name
