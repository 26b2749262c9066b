"""Connections to segment stores: many requests at once on one socket, and a pool with one connection an endpoint.

Invariants:

- Every request has an id of its own on its connection; an answer goes to the sink of its id and to no other. Answers to
  ids that no sink waits for any more (a cancelled request) are dropped.
- A sink hears of each answer in the order of arrival, and of the end of the connection exactly once, last.
- The first frame in both directions is Hello; before the server's Hello is read, no connection is handed out.
- There is no task here: the transport and a timer call, and the sinks act at once or hand over to their own tasks.
- A connection that has sinks, and whose server says nothing for `silence_seconds` though it was asked, ends: no request
  waits for a process that stands still, or a machine without power. A server that never answered a KeepAlive is left
  alone: not every one does.
- A pool opens a connection when it is first needed and shares it from then on: it has at most one open connection for
  each endpoint, and concurrent users of a closed one wait for a single attempt.
- A pool belongs to one component (a writer, a reader, or the store for its short requests). Closing it ends its
  connections, and with them whatever the servers held for it, such as reads that wait at a tail.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias, TypeVar, cast

from segmentstore.client.errors import ClosedError, ConnectionLostError
from segmentstore.client.settings import ClientSettings, Tls
from segmentstore.codec.wire_protocol.command import (
    OLDEST_WIRE_VERSION,
    WIRE_VERSION,
    Command,
    Hello,
    KeepAlive,
)
from segmentstore.codec.wire_protocol.fields import ProtocolError
from segmentstore.codec.wire_protocol.frames import FrameSplitter
from segmentstore.runtime.cancellation import fail_unless_done
from segmentstore.runtime.guarded_callback import guarded
from segmentstore.runtime.keyed_locks import KeyedLocks

Reply = TypeVar("Reply", bound=Command)

_LOOKS_PER_SILENCE = 4

Sign: TypeAlias = Callable[[Command], Command]


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a segment store listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class ReplySink(Protocol):
    """What takes the answers of one request id."""

    def received(self, reply: Command) -> None:
        """An answer arrived. Must not raise."""

    def lost(self, error: ConnectionLostError) -> None:
        """No more answers will come."""


class _OneReply:
    """The sink of a request that has exactly one answer."""

    __slots__ = ("_connection", "_request_id", "future")

    def __init__(self, connection: "WireConnection", request_id: int) -> None:
        self._connection = connection
        self._request_id = request_id
        self.future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()

    def received(self, reply: Command) -> None:
        self._connection.unsubscribe(self._request_id)
        if not self.future.done():
            self.future.set_result(reply)

    def lost(self, error: ConnectionLostError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class WireConnection(asyncio.Protocol):
    """Made by `open_connection`; `close()` ends it."""

    def __init__(self, endpoint: ServerAddress, sign: Sign | None = None) -> None:
        self.endpoint = endpoint
        self._sign = sign
        self._splitter = FrameSplitter()
        self._transport: asyncio.Transport | None = None
        self._sinks: dict[int, ReplySink] = {}
        self._last_request_id = 0
        self._received_at = asyncio.get_running_loop().time()
        self._hello: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._look_timer: asyncio.TimerHandle | None = None
        self._looked_at = 0.0
        self._asked_at: float | None = None
        """When the KeepAlive was sent that is not answered yet."""
        self._answers_keep_alive = False

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def silent_seconds(self) -> float:
        """How long ago the server was last heard of."""
        return asyncio.get_running_loop().time() - self._received_at

    async def greeted(self) -> None:
        """Wait for the server's Hello. Raises ConnectionLostError."""
        await self._hello

    async def request(self, command: Callable[[int], Command]) -> Command:
        """Send what `command` makes of a new request id and wait for its one answer.

        Cancelling abandons the answer. Raises ConnectionLostError, ProtocolError.
        """
        request_id = self.next_request_id()
        sink = _OneReply(self, request_id)
        self.subscribe(request_id, sink)
        try:
            self.send(command(request_id))
            return await sink.future
        finally:
            self.unsubscribe(request_id)

    def next_request_id(self) -> int:
        self._last_request_id += 1
        return self._last_request_id

    def subscribe(self, request_id: int, sink: ReplySink) -> None:
        """Give the sink every answer with this id. Raises ConnectionLostError if the connection has ended."""
        if not self.is_open:
            raise ConnectionLostError(f"connection is closed endpoint={self.endpoint}")
        self._sinks[request_id] = sink

    def unsubscribe(self, request_id: int) -> None:
        self._sinks.pop(request_id, None)

    def send(self, command: Command) -> None:
        """Queue a frame. The callers bound what they have outstanding, and so the queue. Raises ConnectionLostError."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionLostError(f"connection is closed endpoint={self.endpoint}")
        if self._sign is not None:
            command = self._sign(command)
        self._transport.write(command.encode())

    def end_when_silent(self, seconds: float) -> None:
        """From now on; called once, when it is greeted."""
        assert self._look_timer is None, "called twice"
        self.send(KeepAlive())
        self._look_later(seconds)

    def _look_later(self, silence_seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._looked_at = loop.time()
        look = guarded(self._look, self._crashed)
        self._look_timer = loop.call_later(
            silence_seconds / _LOOKS_PER_SILENCE, look, silence_seconds
        )

    def _look(self, silence_seconds: float) -> None:
        if not self.is_open:
            return
        interval = silence_seconds / _LOOKS_PER_SILENCE
        now = asyncio.get_running_loop().time()
        # After a pause of this process itself the answer may be here, and not read yet.
        has_looked = now - self._looked_at < 2 * interval
        if not self._sinks or (self._asked_at is not None and self._received_at >= self._asked_at):
            self._asked_at = None
        if self._asked_at is not None:
            if has_looked and self._answers_keep_alive and now - self._asked_at >= silence_seconds:
                self._end(ConnectionLostError(f"the server says nothing endpoint={self.endpoint}"))
                self.abort()
                return
        elif self._sinks and self.silent_seconds >= interval:
            self._asked_at = now
            self.send(KeepAlive())
        self._look_later(silence_seconds)

    def _crashed(self, bug: Exception) -> None:
        """Without its looks a request could wait for ever."""
        self._end(ConnectionLostError(f"looking at the connection failed: {bug!r}"))
        self.abort()

    def abort(self) -> None:
        """End the connection at once; the sinks hear of it through the loop."""
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """End the connection and wait until it has ended."""
        if self._transport is None:
            return
        self._transport.abort()
        await asyncio.shield(self._ended)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Of a stream socket, which can write. uvloop's is of no class of asyncio.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(Hello(WIRE_VERSION, OLDEST_WIRE_VERSION).encode())

    def data_received(self, data: bytes) -> None:
        self._received_at = asyncio.get_running_loop().time()
        try:
            for command in self._splitter.feed_commands(data):
                self._dispatch(command)
        except ProtocolError as error:
            self._end(ConnectionLostError(f"server speaks no protocol of ours: {error}"))
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        reason = str(exc) if exc is not None else "closed"
        self._end(ConnectionLostError(f"connection ended: {reason} endpoint={self.endpoint}"))
        if not self._ended.done():
            self._ended.set_result(None)

    def _dispatch(self, command: Command) -> None:
        if isinstance(command, Hello):
            if not command.speaks(high_version=WIRE_VERSION, low_version=OLDEST_WIRE_VERSION):
                raise ProtocolError(
                    f"no common version high={command.high_version} low={command.low_version}"
                )
            if not self._hello.done():
                self._hello.set_result(None)
            return
        if isinstance(command, KeepAlive):
            self._answers_keep_alive = True
            return
        request_id: object = getattr(command, "request_id", None)
        sink = self._sinks.get(request_id) if isinstance(request_id, int) else None
        if sink is not None:
            sink.received(command)

    def _end(self, error: ConnectionLostError) -> None:
        if self._look_timer is not None:
            self._look_timer.cancel()
        # The caller that waits for the greeting may have left.
        fail_unless_done(self._hello, error)
        sinks, self._sinks = self._sinks, {}
        for sink in sinks.values():
            sink.lost(error)


async def open_connection(
    endpoint: ServerAddress, *, tls: Tls | None = None, sign: Sign | None = None
) -> WireConnection:
    """A greeted connection. `sign` gives commands their tokens. Raises ConnectionLostError."""
    loop = asyncio.get_running_loop()
    try:
        transport, connection = await loop.create_connection(
            partial(WireConnection, endpoint, sign),
            endpoint.host,
            endpoint.port,
            ssl=None if tls is None else tls.ssl_context(),
            server_hostname=None if tls is None else tls.server_name,
        )
    except (OSError, UnicodeError) as error:
        # The latter of a name that none can have, as one with an empty part.
        raise ConnectionLostError(
            f"no segment store answers endpoint={endpoint}: {error}"
        ) from error
    try:
        await connection.greeted()
    except BaseException:
        transport.abort()
        raise
    return connection


class ConnectionPool:
    """`connection(endpoint)` until `close()`."""

    def __init__(
        self, settings: ClientSettings, *, tls: Tls | None = None, sign: Sign | None = None
    ) -> None:
        self._settings = settings
        self._tls = tls
        self._sign = sign
        self._connections: dict[ServerAddress, WireConnection] = {}
        self._locks = KeyedLocks[ServerAddress]()
        self._is_closed = False

    def new_pool(self) -> "ConnectionPool":
        """One of the same kind, without connections."""
        return ConnectionPool(self._settings, tls=self._tls, sign=self._sign)

    async def connection(self, endpoint: ServerAddress) -> WireConnection:
        """An open connection. Raises ConnectionLostError, ClosedError."""
        connection = self._connections.get(endpoint)
        if connection is not None and connection.is_open:
            return connection
        async with self._locks.held(endpoint):
            connection = self._connections.get(endpoint)
            if connection is not None and connection.is_open:
                return connection
            self.check_open()
            try:
                async with asyncio.timeout(self._settings.connect_seconds):
                    connection = await open_connection(endpoint, tls=self._tls, sign=self._sign)
            except TimeoutError as error:
                raise ConnectionLostError(
                    f"connecting takes too long endpoint={endpoint}"
                ) from error
            self._connections[endpoint] = connection
            try:
                self.check_open()
                connection.end_when_silent(self._settings.silence_seconds)
            except (ConnectionLostError, ClosedError):
                await connection.close()
                raise
            return connection

    def check_open(self) -> None:
        """Raises ClosedError behind close()."""
        if self._is_closed:
            raise ClosedError("the client is closed")

    async def close(self) -> None:
        """End all connections, also if this is cancelled. Closing twice is fine."""
        self._is_closed = True
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.abort()
        for connection in connections.values():
            await connection.close()
