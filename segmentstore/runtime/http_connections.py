"""Connections of HTTP clients: so many at most, and none that is held by a client that takes nothing of its answer.

Invariants:

- A connection above `connections_max` ends before anything of it is read.
- An answer that its client does not take is held for `window_seconds_max`, and as long again for each further
  `window_bytes` of it: then the connection is cut. That bounds what clients that have stopped hold in memory.
- A request that is no HTTP costs one line of the log: anything that reaches the port may send it.
- No answer is given before its last byte is with the kernel: a connection that is idle holds nothing of one.

aiohttp waits for a client only while more than 64 KiB are behind, and for ever. So the bound for what may be behind is
zero here: bytes that no wait looks at would stay with a connection that nothing can close, since closing it waits for
them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import ceil
from typing import Any, cast

from aiohttp import ClientConnectionResetError, web
from aiohttp.http_exceptions import HttpProcessingError

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionBounds:
    """What the clients of one server may hold."""

    connections_max: int
    window_bytes: int
    window_seconds_max: float

    def patience(self, byte_count: int) -> float:
        """Seconds for which so many bytes of an answer may wait for their client."""
        return self.window_seconds_max * max(1, ceil(byte_count / self.window_bytes))


class BoundedConnection(web.RequestHandler):
    """aiohttp's, which waits for a client that does not take its answer, and not for ever."""

    __slots__ = ("_bounds",)

    def __init__(
        self, connections: "BoundedConnections", *, loop: asyncio.AbstractEventLoop, **kwargs: Any
    ) -> None:
        super().__init__(connections, loop=loop, **kwargs)
        self._bounds = connections.bounds

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio's by their methods alone.
        cast(asyncio.Transport, transport).set_write_buffer_limits(high=0)
        super().connection_made(transport)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """aiohttp's, which logs an error with its traceback. What is no HTTP is its client's fault, and common."""
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        _LOGGER.info("request refused: it is no HTTP peer=%s why=%.200r", request.remote, message)
        response = web.Response(status=status, text=message, content_type="text/plain")
        response.force_close()
        return response

    async def _drain_helper(self) -> None:
        """aiohttp's, behind each answer and longer piece: until all is taken. Raises ConnectionError."""
        transport = self.transport
        if transport is None or not self._paused:
            await super()._drain_helper()
            return
        try:
            async with asyncio.timeout(self._bounds.patience(transport.get_write_buffer_size())):
                await super()._drain_helper()
        except TimeoutError as error:
            transport.abort()
            raise ClientConnectionResetError("the client did not take the answer") from error


class BoundedConnections(web.Server):
    """aiohttp's server over bounded connections."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        *,
        bounds: ConnectionBounds,
        **kwargs: Any,
    ) -> None:
        super().__init__(handler, **kwargs)
        self.bounds = bounds

    def __call__(self) -> web.RequestHandler:
        return BoundedConnection(self, loop=self._loop, **self._kwargs)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self._connections) > self.bounds.connections_max:
            _LOGGER.warning(
                "connection refused: there are too many count=%s", self.bounds.connections_max
            )
            transport.abort()
