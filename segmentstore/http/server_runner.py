"""How the HTTP server of a node ends while other nodes go on: no client is left in doubt about a request.

    1  no connection begins any more; what the kernel has accepted is accepted, and the listening sockets close
    2  for `linger_seconds` requests on the connections that clients keep are answered, each the last of its connection
    3  connections without a request get a farewell (client_connections.py); requests under way are waited for
    4  what is left is dropped, after `shutdown_seconds`

A process without others does the fourth alone.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

from aiohttp import web

from segmentstore.http.client_connections import ClientConnections
from segmentstore.runtime.listening_sockets import refuse_handshakes

_LOOK_SECONDS = 0.02
_HANDSHAKE_SECONDS = 0.05
"""For the last packet of handshakes that have begun."""
_FAREWELL_SECONDS = 2.0
"""A client that has not closed its side by then has not looked at its connection, or is silent."""


class ServerRunner(web.ServerRunner):
    """Ends what waits after the last connection was accepted and before requests under way are waited for."""

    __slots__ = ("_connections", "_end_waits", "_shutdown_seconds")

    def __init__(
        self,
        connections: ClientConnections,
        *,
        end_waits: Callable[[], None],
        shutdown_seconds: float,
    ) -> None:
        """`end_waits` ends requests that may wait for long; it is called more than once."""
        super().__init__(connections, shutdown_timeout=shutdown_seconds)
        self._connections = connections
        self._end_waits = end_waits
        self._shutdown_seconds = shutdown_seconds

    async def shutdown(self) -> None:
        self._end_waits()

    async def take_leave(
        self, linger_seconds: float, *, farewell: bytes, owns_sockets: bool
    ) -> None:
        """Steps 1 to 3. `owns_sockets`: no other process listens on them."""
        await self._stop_accepting(owns_sockets=owns_sockets)
        await self._linger(linger_seconds)
        self._end_waits()
        await self._part(farewell)

    async def _stop_accepting(self, *, owns_sockets: bool) -> None:
        listening = [
            socket.socket(fileno=os.dup(each.fileno()))
            for site in self.sites
            for each in _sockets_of(site)
        ]
        for each in listening if owns_sockets else ():
            refuse_handshakes(each)
        await asyncio.sleep(_HANDSHAKE_SECONDS)
        for site in self.sites:
            await site.stop()
        # A connection that the loop has just taken is known behind its next turns only.
        await asyncio.sleep(_LOOK_SECONDS)
        accepted: list[socket.socket] = []
        for each in listening:
            each.setblocking(False)
            with each, suppress(OSError):
                while True:
                    accepted.append(each.accept()[0])
        for each in accepted:
            each.setblocking(False)
            await asyncio.get_running_loop().connect_accepted_socket(self._connections, each)

    async def _linger(self, seconds: float) -> None:
        """Until clients have left, at most so long."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            if not self._connections.connections:
                return
            await asyncio.sleep(_LOOK_SECONDS)

    async def _part(self, farewell: bytes) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._shutdown_seconds
        newest_farewell = loop.time()
        while connections := self._connections.client_connections():
            for each in connections:
                if each.is_idle:
                    each.part(farewell)
                    newest_farewell = loop.time()
            are_all_parting = all(each.is_parting for each in connections)
            if loop.time() >= (newest_farewell + _FAREWELL_SECONDS if are_all_parting else end):
                return
            await asyncio.sleep(_LOOK_SECONDS)


def _sockets_of(site: web.BaseSite) -> Sequence[socket.socket]:
    # aiohttp shows no more of them than their addresses.
    return getattr(site._server, "sockets", None) or ()
