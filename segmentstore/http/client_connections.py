"""Connections of clients, and how a server that others stand in for parts from each of them.

A client that keeps a connection may send a request at the moment at which the server closes it, and cannot know then
whether it was carried out. So a connection ends in one of two ways:

    behind an answer    that says `Connection: close`: every answer that is begun once the server stops says it
    with a farewell     where no request has come for a while: 503 and the end of what is sent, unasked. What the
                        client has sent meanwhile is dropped, and the farewell is the answer to it: nothing was done. A
                        client that has sent nothing finds that its connection has ended

Invariants:

- What comes behind a farewell is never carried out.
- An answer that its client does not take is held for `write_seconds_max`, and as long again for each further
  `window_bytes` of it: then the connection is cut. That bounds what clients that have stopped hold in memory.
- A connection above `connections_max` ends before anything of it is read. One on which no whole head has come for 75
  seconds makes room.
- The connection stays open behind its farewell until the client has closed its side: closed at once it would be reset
  by what is on its way, and a reset may overtake the farewell.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from aiohttp import ClientConnectionResetError, StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage

from segmentstore.http import header_names
from segmentstore.http.responses import busy, refusal_response

_LOGGER = logging.getLogger(__name__)


def farewell(retry_after_seconds: int) -> bytes:
    """The answer to what may be on its way; for another node: that it has to ask where the container is by now."""
    refusal = busy("this process stops; nothing was done", retry_after_seconds)
    refusal.headers[header_names.SEGMENT_WRONG_NODE] = ""
    body = refusal.body()
    lines = [
        "HTTP/1.1 503 Service Unavailable",
        *(f"{name}: {value}" for name, value in refusal_response(refusal).headers.items()),
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class ClientConnection(web.RequestHandler):
    """aiohttp's, which can part from its client."""

    __slots__ = ("_patience",)

    def __init__(
        self, connections: "ClientConnections", *, loop: asyncio.AbstractEventLoop, **kwargs: Any
    ) -> None:
        super().__init__(connections, loop=loop, **kwargs)
        self._patience = connections.patience

    @property
    def is_idle(self) -> bool:
        """No request has begun. The head of one may be on its way."""
        waiter = self._waiter
        return waiter is not None and not waiter.done() and not self._close

    @property
    def is_parting(self) -> bool:
        """Takes no further request."""
        return self._close or self._force_close

    async def _drain_helper(self) -> None:
        """aiohttp's, behind each write: until the client has taken most of it. Raises ConnectionError."""
        transport = self.transport
        if transport is None or not self._paused:
            await super()._drain_helper()
            return
        try:
            async with asyncio.timeout(self._patience(transport.get_write_buffer_size())):
                await super()._drain_helper()
        except TimeoutError as error:
            transport.abort()
            raise ClientConnectionResetError("the client did not take the answer") from error

    def part(self, farewell: bytes) -> None:
        """Of an idle one."""
        assert self.is_idle, "a request is under way"
        transport = self.transport
        if transport is not None:
            transport.write(farewell)
            if transport.can_write_eof():
                transport.write_eof()
        # From here on it drops what comes; that the client closes its side ends it.
        self.close()


class ClientConnections(web.Server):
    """aiohttp's server over connections that can part, so many at most."""

    connections_max: int
    patience: Callable[[int], float]
    """Seconds for which so many bytes may wait for their client."""

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self._connections) > self.connections_max:
            _LOGGER.warning("connection refused: there are too many count=%s", self.connections_max)
            transport.abort()

    def __call__(self) -> web.RequestHandler:
        return ClientConnection(self, loop=self._loop, **self._kwargs)

    def client_connections(self) -> list[ClientConnection]:
        """Those that are open."""
        return [each for each in self.connections if isinstance(each, ClientConnection)]


class ClientRequest(web.BaseRequest):
    """aiohttp's; it is the last one of its connection if the server stops before the answer begins."""

    ATTRS = web.BaseRequest.ATTRS | frozenset(["_is_stopping"])

    def __init__(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
        *,
        is_stopping: Callable[[], bool],
    ) -> None:
        super().__init__(message, payload, protocol, writer, task, asyncio.get_running_loop())
        self._is_stopping = is_stopping

    @property
    def keep_alive(self) -> bool:
        """Asked when the head of the answer is made."""
        return not self._is_stopping() and super().keep_alive
