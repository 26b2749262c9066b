"""One connection to a server of Kafka's protocol: many requests under way, answered in order.

Invariants:

- submit() is synchronous: requests go in the order of the calls, and are taken by the server in that order.
- A request has one outcome: what its answer comes to, or, if the connection ends first, what `lost` makes of that. It
  is never sent twice.
- A caller that leaves takes nothing back: its answer is read when it comes, and dropped. One that leaves ask() ends the
  connection: the server may hold the answer, a fetch's as long as its caller wanted to wait, and all behind it with it.
  So does a server that says nothing for as long as ask() is told that it may.
- Requests and bytes that wait for an answer are bounded; one more is refused, and nothing is sent.
- A request goes in the newest version that both sides speak, so that servers may be replaced one after the other: the
  server is asked for its versions before anything else. What no common version has is refused, and nothing is sent.
"""

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from segmentstore.client.errors import (
    ConnectionLostError,
    NoCommonVersionError,
    OutcomeUnknownError,
)
from segmentstore.codec.kafka_protocol.api_table import Api
from segmentstore.codec.kafka_protocol.cluster import (
    ApiVersionRange,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from segmentstore.codec.kafka_protocol.fields import Buffer, KafkaProtocolError
from segmentstore.codec.kafka_protocol.frames import (
    FrameCutter,
    api_of,
    decode_response,
    encode_request,
)
from segmentstore.codec.kafka_protocol.structure import Structure
from segmentstore.runtime.cancellation import await_shielded, fail_unless_done, retrieve_exception
from segmentstore.runtime.written_parts import write_parts

_CLIENT_ID: Final = "segmentstore"
_CORRELATION_IDS: Final = 1 << 31

_REQUESTS_MAX: Final = 1_000
_BYTES_MAX: Final = 64 << 20
_CONNECT_SECONDS: Final = 10.0
_LOOKS_PER_SILENCE: Final = 4

_Response = TypeVar("_Response", bound=Structure)
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request that was sent."""

    correlation_id: int
    size: int
    take: Callable[[Buffer], None]
    lose: Callable[[ConnectionLostError], None]


class KafkaConnection(asyncio.Protocol):
    """Made by `open_kafka_connection`."""

    def __init__(self, *, requests_max: int, bytes_max: int) -> None:
        self._requests_max = requests_max
        self._bytes_max = bytes_max
        self._cutter = FrameCutter()
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._correlation_id = 0
        self._heard_at = 0.0
        """When an answer came, or one was waited for again; later by what this process stood still."""
        self._transport: asyncio.Transport | None = None
        self._spoken: dict[int, ApiVersionRange] = {}
        """By the server, by the number of the API."""
        self._ended = asyncio.Event()
        self._why_ended = ""

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_idle(self) -> bool:
        """Whether no answer is waited for."""
        return not self._waiting

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A stream's transport by what it does; uvloop's is of another class.
        self._transport = cast(asyncio.Transport, transport)

    def submit(
        self,
        request: Structure,
        kind: type[_Response],
        convert: Callable[[_Response], _Result],
        lost: Callable[[ConnectionLostError], Exception],
    ) -> "Future[_Result]":
        """What `convert` makes of the answer, or raises. Raises ConnectionLostError: nothing was sent."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionLostError("the connection has ended")
        if len(self._waiting) >= self._requests_max or self._waiting_bytes >= self._bytes_max:
            raise ConnectionLostError(
                f"too many requests wait for its answers requests={len(self._waiting)}"
                f" bytes={self._waiting_bytes}"
            )
        loop = asyncio.get_running_loop()
        self._correlation_id = correlation_id = (self._correlation_id + 1) % _CORRELATION_IDS
        api = api_of(request)
        assert api.response is kind, f"a request has another answer request={request!r:.100}"
        version = self._version_of(api)
        parts = encode_request(
            request, version, correlation_id=correlation_id, client_id=_CLIENT_ID
        )
        future: Future[_Result] = loop.create_future()
        # Its caller may have left.
        future.add_done_callback(retrieve_exception)

        def take(frame: Buffer) -> None:
            answer = decode_response(kind, frame, version, correlation_id=correlation_id)
            try:
                result = convert(answer)
            except Exception as error:  # noqa: BLE001  (its caller hears of it)
                fail_unless_done(future, error)
                return
            if not future.done():
                future.set_result(result)

        if not self._waiting:
            self._heard_at = loop.time()
        size = sum(len(part) for part in parts)
        self._waiting.append(
            _Waiting(
                correlation_id, size, take, lambda error: fail_unless_done(future, lost(error))
            )
        )
        self._waiting_bytes += size
        write_parts(transport, parts)
        return future

    async def ask(
        self, request: Structure, kind: type[_Response], *, silence_seconds: float | None = None
    ) -> _Response:
        """The answer to a request, which is to be the only one under way.

        Raises ConnectionLostError (the request was not sent), and OutcomeUnknownError, also when the server has said
        nothing for `silence_seconds`.
        """
        answer = self.submit(request, kind, lambda answer: answer, _unknown_outcome)
        try:
            while silence_seconds is not None and not answer.done():
                await self._wait_and_look(answer, silence_seconds)
            return await answer
        except asyncio.CancelledError:
            self.abort()
            raise

    async def _wait_and_look(self, answer: "Future[_Result]", silence_seconds: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + silence_seconds / _LOOKS_PER_SILENCE
        try:
            async with asyncio.timeout_at(until):
                await await_shielded(answer)
        except TimeoutError:
            now = loop.time()
            self.look(now, silence_seconds=silence_seconds, stood_still_seconds=now - until)

    async def learn_versions(self) -> None:
        """Before the first request. Raises ConnectionLostError."""
        try:
            answer = await self.ask(ApiVersionsRequest(), ApiVersionsResponse)
        except OutcomeUnknownError as error:
            raise ConnectionLostError(f"{error}") from error
        self._spoken = {each.api_key: each for each in answer.api_keys}

    def _version_of(self, api: Api) -> int:
        if api.request is ApiVersionsRequest:
            # Every server answers it, whatever else it speaks.
            return 0
        spoken = self._spoken.get(api.key)
        version = -1 if spoken is None else min(api.asked_in, spoken.max_version)
        if spoken is None or version < max(api.oldest, spoken.min_version):
            here = f"{api.oldest} to {api.asked_in}"
            there = "none" if spoken is None else f"{spoken.min_version} to {spoken.max_version}"
            raise NoCommonVersionError(
                f"the server speaks no version of {api.key.name} that is spoken here"
                f" here={here!r} there={there!r}"
            )
        return version

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._cutter.feed(data):
                if not self._waiting:
                    raise KafkaProtocolError("an answer to no request")
                waiting = self._waiting[0]
                waiting.take(frame)
                self._waiting.popleft()
                self._waiting_bytes -= waiting.size
        except KafkaProtocolError as error:
            self._why_ended = str(error)
            self.abort()
            return
        self._heard_at = asyncio.get_running_loop().time()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._ended.set()
        why = self._why_ended or exc or "closed"
        waiting, self._waiting = self._waiting, deque()
        self._waiting_bytes = 0
        for each in waiting:
            each.lose(ConnectionLostError(f"the connection ended before the answer: {why}"))

    def look(self, now: float, *, silence_seconds: float, stood_still_seconds: float) -> None:
        """End it if it owes an answer and has been silent for too long.

        `stood_still_seconds`: this process, since the last look; what the server said meanwhile may not be read yet.
        """
        self._heard_at = min(self._heard_at + stood_still_seconds, now)
        if self._waiting and now - self._heard_at >= silence_seconds:
            self._why_ended = f"the server says nothing for {silence_seconds:g} s"
            self.abort()

    def abort(self) -> None:
        """End it; what waits for an answer is told so in the loop's next turn."""
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """End it, and return when it has ended. Idempotent."""
        self.abort()
        if self._transport is not None:
            await self._ended.wait()

    def check(self) -> None:
        """O(requests that wait)."""
        expected = sum(each.size for each in self._waiting)
        assert expected == self._waiting_bytes, f"{expected} != {self._waiting_bytes}"


async def open_kafka_connection(
    host: str,
    port: int,
    *,
    requests_max: int = _REQUESTS_MAX,
    bytes_max: int = _BYTES_MAX,
    connect_seconds: float = _CONNECT_SECONDS,
) -> KafkaConnection:
    """One whose server has said which versions it speaks. Raises ConnectionLostError."""
    loop: Any = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(connect_seconds):
            _, connection = await loop.create_connection(
                lambda: KafkaConnection(requests_max=requests_max, bytes_max=bytes_max), host, port
            )
            assert isinstance(connection, KafkaConnection), f"{connection!r}"
            try:
                await connection.learn_versions()
            except BaseException:
                connection.abort()
                raise
    except TimeoutError as error:
        raise ConnectionLostError(
            f"connecting takes too long address={host}:{port} seconds_max={connect_seconds:g}"
        ) from error
    except (OSError, UnicodeError) as error:
        # The latter of a name that none can have, as one with an empty part.
        raise ConnectionLostError(f"no connection address={host}:{port}: {error}") from error
    return connection


def _unknown_outcome(error: ConnectionLostError) -> OutcomeUnknownError:
    return OutcomeUnknownError(str(error))
