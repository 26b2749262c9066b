"""Calls to the controller: deadlines, retries, and its refusals as errors.

Invariants:

- A call ends within `request_seconds`, its retries included.
- Only calls that may be carried out twice are sent again; the others fail with OutcomeUnknownError when the
  connection breaks, because they may have been carried out.
- Of several controllers the one that answered last is asked. When it does not answer, the next one is, at the next
  attempt or, for a call that may not be repeated, at the next call.
- A controller that comes back is found within `retry_seconds_max` and a fifth of it, however long it was away, unless
  attempts to reach it are not answered at all: each of those may take `connect_seconds`.
- Behind close() nothing is sent, and no channel is opened again.
- A status that is not a success becomes an error here, by its name, unless the caller wants to look at it (`checked`).
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from segmentstore.client.errors import (
    AlreadyExistsError,
    ClientError,
    ClosedError,
    DeadlineExceededError,
    NotDoneError,
    NotEmptyError,
    NotFoundError,
    OutcomeUnknownError,
    RefusedError,
    ServiceUnavailableError,
    StateConflictError,
    StreamSealedError,
    outcome_unknown,
)
from segmentstore.client.settings import ClientSettings, Tls
from segmentstore.codec.controller_api import SERVICE
from segmentstore.contracts.errors import ErrorKind, InvalidRequestError, SegmentStoreError

Answer = TypeVar("Answer", bound=Message)

_SUCCESS: Final = ("SUCCESS", "OK", "STARTED")


def _closed() -> ClosedError:
    return ClosedError("the client is closed")


class ControllerChannel:
    """A connection to one of the controllers of a store; gRPC opens it with the first call and again after a loss."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        settings: ClientSettings,
        random: Random,
        tls: Tls | None = None,
        authorization: Callable[[], str] | None = None,
        before_first_call: Callable[[], Coroutine[None, None, None]] | None = None,
    ) -> None:
        """`authorization` gives what the controller wants to see with every call, such as "Basic ...": it is asked each
        time. `before_first_call` is awaited once; the first call raises what it raises."""
        assert addresses, "a store without a controller"
        self._tls = tls
        self._authorization = authorization
        self._before_first_call = before_first_call
        self._addresses = list(addresses)
        """The one that is asked is the first."""
        self._settings = settings
        self._random = random
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._is_closed = False

    @property
    def _address(self) -> str:
        return self._addresses[0]

    async def close(self) -> None:
        """Calls under way end with OutcomeUnknownError, later ones with ClosedError. Closing twice is fine."""
        self._is_closed = True
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close(None)

    async def ask(
        self,
        method: str,
        request: Message,
        answer: type[Answer],
        *,
        what: str,
        name: str,
        repeatable: bool = True,
        checked: bool = True,
        service: str = SERVICE,
    ) -> Answer:
        """The answer. `what` and `name` are for messages; not `checked`, the caller looks at the status.

        Raises the refusal; OutcomeUnknownError if a call that may not be repeated got no answer, or the channel was
        closed meanwhile; ClosedError.
        """
        before, self._before_first_call = self._before_first_call, None
        if before is not None:
            await before()
        backoff = self._settings.backoff(self._random)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.request_seconds
        refusal: SegmentStoreError | None = None
        while True:
            if self._is_closed:
                raise _closed() if refusal is None else outcome_unknown(_closed())
            address = self._address
            call = self._call(f"/{service}/{method}", request, answer)
            try:
                found = await call(
                    request,
                    timeout=max(0.001, deadline - loop.time()),
                    metadata=self._metadata(),
                )
            except grpc.aio.AioRpcError as error:
                refusal = self._error_of(error, what=what, name=name)
                if isinstance(refusal, ServiceUnavailableError | DeadlineExceededError):
                    self._leave(address)
                if not isinstance(refusal, ServiceUnavailableError):
                    raise refusal from error
                if not repeatable:
                    raise OutcomeUnknownError(str(refusal)) from error
                pause = backoff.next_seconds()
                if loop.time() + pause >= deadline:
                    raise refusal from error
            except asyncio.CancelledError as error:
                if self._has_ended_call():
                    raise outcome_unknown(_closed()) from error
                raise
            else:
                if checked and "status" in answer.DESCRIPTOR.fields_by_name:
                    _check_status(found, what=what, name=name)
                return found
            await asyncio.sleep(pause)

    def _has_ended_call(self) -> bool:
        """Whether close() cancelled gRPC's call, and the task that waits for it was not cancelled."""
        task = asyncio.current_task()
        return self._is_closed and (task is None or not task.cancelling())

    def _leave(self, address: str) -> None:
        """The next one is asked from now on, unless another call has seen to that."""
        if self._address == address:
            self._addresses.append(self._addresses.pop(0))

    def _call(
        self, method: str, request: Message, answer: type[Answer]
    ) -> "grpc.aio.UnaryUnaryMultiCallable[Message, Answer]":
        channel = self._channels.get(self._address)
        if channel is None:
            channel = self._channels[self._address] = self._open()
        return channel.unary_unary(
            method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )

    def _open(self) -> grpc.aio.Channel:
        # Left to itself, gRPC waits longer after each failed attempt, up to two minutes, and calls fail until then.
        pauses = self._settings
        options: list[tuple[str, str | int]] = [
            ("grpc.initial_reconnect_backoff_ms", _whole_ms(pauses.retry_seconds_first)),
            ("grpc.max_reconnect_backoff_ms", _whole_ms(pauses.retry_seconds_max)),
            # The time that an attempt gets: gRPC does not begin the next one earlier.
            ("grpc.min_reconnect_backoff_ms", _whole_ms(pauses.connect_seconds)),
        ]
        if self._tls is None:
            return grpc.aio.insecure_channel(self._address, options)
        return grpc.aio.secure_channel(
            self._address,
            self._tls.channel_credentials(),
            [*options, *self._tls.channel_options()],
        )

    def _metadata(self) -> grpc.aio.Metadata | None:
        if self._authorization is None:
            return None
        return grpc.aio.Metadata(("authorization", self._authorization()))

    def _error_of(self, error: grpc.aio.AioRpcError, *, what: str, name: str) -> SegmentStoreError:
        details = error.details() or error.code().name
        match error.code():
            case grpc.StatusCode.NOT_FOUND:
                return NotFoundError(what, name)
            case grpc.StatusCode.ALREADY_EXISTS:
                return AlreadyExistsError(what, name)
            case grpc.StatusCode.FAILED_PRECONDITION:
                return StateConflictError(f"{what}: {details} name={name!r}")
            case grpc.StatusCode.INVALID_ARGUMENT | grpc.StatusCode.OUT_OF_RANGE:
                return InvalidRequestError(f"{what}: {details} name={name!r}")
            case grpc.StatusCode.CANCELLED if self._is_closed:
                return outcome_unknown(_closed())
            case grpc.StatusCode.DEADLINE_EXCEEDED | grpc.StatusCode.CANCELLED:
                return DeadlineExceededError(
                    f"controller does not answer in time address={self._address}"
                )
            case (
                grpc.StatusCode.UNIMPLEMENTED
                | grpc.StatusCode.PERMISSION_DENIED
                | grpc.StatusCode.UNAUTHENTICATED
            ):
                return RefusedError(f"controller refuses: {details}", ErrorKind.INVALID)
            case _:
                return ServiceUnavailableError(
                    f"controller is not available: {details} address={self._address}"
                )


def _whole_ms(seconds: float) -> int:
    """At least gRPC's own least, 100 ms."""
    return max(100, round(seconds * 1000))


def status_of(answer: Message, field: str = "status") -> str:
    """The name of a status."""
    enum = answer.DESCRIPTOR.fields_by_name[field].enum_type
    assert enum is not None, f"not a status {answer.DESCRIPTOR.name}.{field}"
    number: int = getattr(answer, field)
    value = enum.values_by_number.get(number)
    return value.name if value is not None else f"{number}"


def _check_status(answer: Message, *, what: str, name: str) -> None:
    """Raises what a status means that is not a success."""
    status = status_of(answer)
    if status in _SUCCESS:
        return
    if status.endswith("NOT_FOUND"):
        missing = status.removesuffix("_NOT_FOUND").lower().replace("_", " ")
        raise NotFoundError(missing, name)
    if status.endswith("_EXISTS"):
        raise AlreadyExistsError(what, name)
    if status.endswith("_NOT_EMPTY"):
        raise NotEmptyError(what, name)
    if status == "STREAM_SEALED":
        raise StreamSealedError(name)
    if status == "STREAM_NOT_SEALED":
        raise StateConflictError(f"stream is not sealed; seal it before deleting it name={name!r}")
    if status.startswith("INVALID"):
        raise InvalidRequestError(f"{what} cannot be called so name={name!r}")
    if status == "FAILURE":
        raise NotDoneError(f"controller could not do it {what} name={name!r}")
    if status == "PRECONDITION_FAILED":
        raise StateConflictError(f"the state of the {what} forbids it name={name!r}")
    raise ClientError(f"controller answers {status} {what} name={name!r}")
