"""Connections of clients, and how a server that others stand in for parts from each of them.

A client that keeps a connection may send a request at the moment at which the server closes it, and cannot know then
whether it was carried out. So a connection ends in one of two ways:

    behind an answer    that says `Connection: close`: every answer that is begun once the server stops says it
    with a farewell     where no request has come for a while: 503 and the end of what is sent, unasked. What the
                        client has sent meanwhile is dropped, and the farewell is the answer to it: nothing was done. A
                        client that has sent nothing finds that its connection has ended

Invariants:

- What comes behind a farewell is never carried out.
- What clients may hold is bounded as `segmentstore/runtime/http_connections.py` says. A connection on which no whole
  head has come for 75 seconds makes room.
- The connection stays open behind its farewell until the client has closed its side: closed at once it would be reset
  by what is on its way, and a reset may overtake the farewell.
"""

import asyncio
from collections.abc import Callable

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage

from segmentstore.http import header_names
from segmentstore.http.responses import busy, refusal_response
from segmentstore.runtime.http_connections import BoundedConnection, BoundedConnections


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


class ClientConnection(BoundedConnection):
    """A connection that can part from its client."""

    __slots__ = ()

    @property
    def is_idle(self) -> bool:
        """No request has begun. The head of one may be on its way."""
        waiter = self._waiter
        return waiter is not None and not waiter.done() and not self._close

    @property
    def is_parting(self) -> bool:
        """Takes no further request."""
        return self._close or self._force_close

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


class ClientConnections(BoundedConnections):
    """aiohttp's server over connections that can part."""

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
