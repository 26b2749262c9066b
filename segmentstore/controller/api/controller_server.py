"""The socket of the controller: gRPC over plain HTTP/2.

Invariants:

- At most `calls_at_once_max` calls are under way; further ones are answered RESOURCE_EXHAUSTED, which clients retry.
- `close` lets calls that are under way finish for `close_grace_seconds`, then cancels them: an operation that a call
  began is finished by whoever holds its stream next.
"""

from dataclasses import dataclass

import grpc

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.controller.api.controller_service import ControllerService


@dataclass(frozen=True, slots=True)
class ControllerServerSettings:
    """Where and how to listen."""

    address: str = "127.0.0.1"
    port: int = 9090
    """0: any free one."""
    calls_at_once_max: int = 2000
    recovery_wait_seconds: float = 5.0
    """So long a call waits for a controller that recovers."""
    close_grace_seconds: float = 2.0


class ControllerServer:
    """Serves one controller."""

    def __init__(self, *, service: ControllerService, settings: ControllerServerSettings) -> None:
        self._service = service
        self._settings = settings
        self._server: grpc.aio.Server | None = None
        self._port = 0

    @property
    def port(self) -> int:
        """The port in use, once started."""
        return self._port

    async def start(self) -> None:
        """Listen. Raises InvalidRequestError if the address cannot be bound."""
        settings = self._settings
        server = grpc.aio.server(
            maximum_concurrent_rpcs=settings.calls_at_once_max,
            options=[
                # Two controllers on one port would share its connections without a word.
                ("grpc.so_reuseport", 0),
                # Clients keep idle connections alive with pings; refusing these would cut the connections.
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
                ("grpc.keepalive_permit_without_calls", 1),
            ],
        )
        handlers = self._service.handlers(wait_seconds=settings.recovery_wait_seconds)
        server.add_generic_rpc_handlers(tuple(handlers))
        host = f"[{settings.address}]" if ":" in settings.address else settings.address
        try:
            self._port = server.add_insecure_port(f"{host}:{settings.port}")
        except RuntimeError as error:
            raise InvalidRequestError(
                f"the controller cannot listen address={settings.address} port={settings.port}"
            ) from error
        await server.start()
        self._server = server

    async def close(self) -> None:
        """Stop listening and end what is under way; closing twice is fine."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(self._settings.close_grace_seconds)
