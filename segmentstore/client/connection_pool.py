"""Connections by endpoint, opened when first needed and shared from then on.

Invariants:

- At most one open connection for each endpoint; concurrent users of a closed one wait for a single attempt.
- A pool belongs to one component (a writer, a reader, or the store for its short requests). Closing it ends its
  connections, and with them whatever the servers held for it, such as reads that wait at a tail.
"""

import asyncio

from segmentstore.client.errors import ConnectionLostError
from segmentstore.client.settings import ClientSettings
from segmentstore.client.tls import Tls
from segmentstore.client.wire_connection import (
    Endpoint,
    Sign,
    WireConnection,
    open_connection,
)


class ConnectionPool:
    """`connection(endpoint)` until `close()`."""

    def __init__(
        self, settings: ClientSettings, *, tls: Tls | None = None, sign: Sign | None = None
    ) -> None:
        self._settings = settings
        self._tls = tls
        self._sign = sign
        self._connections: dict[Endpoint, WireConnection] = {}
        self._locks: dict[Endpoint, asyncio.Lock] = {}
        self._is_closed = False

    def another(self) -> "ConnectionPool":
        """One of the same kind, without connections."""
        return ConnectionPool(self._settings, tls=self._tls, sign=self._sign)

    async def connection(self, endpoint: Endpoint) -> WireConnection:
        """An open connection. Raises ConnectionLostError."""
        connection = self._connections.get(endpoint)
        if connection is not None and connection.is_open:
            return connection
        async with self._locks.setdefault(endpoint, asyncio.Lock()):
            connection = self._connections.get(endpoint)
            if connection is not None and connection.is_open:
                return connection
            self._check_open(endpoint)
            try:
                async with asyncio.timeout(self._settings.connect_seconds):
                    connection = await open_connection(endpoint, tls=self._tls, sign=self._sign)
            except TimeoutError as error:
                raise ConnectionLostError(
                    f"connecting takes too long endpoint={endpoint}"
                ) from error
            self._connections[endpoint] = connection
            try:
                self._check_open(endpoint)
            except ConnectionLostError:
                await connection.close()
                raise
            return connection

    def _check_open(self, endpoint: Endpoint) -> None:
        if self._is_closed:
            raise ConnectionLostError(f"the client is closed endpoint={endpoint}")

    async def close(self) -> None:
        """End all connections. Closing twice is fine."""
        self._is_closed = True
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            await connection.close()
