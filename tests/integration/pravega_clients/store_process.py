"""A real `segmentstore standalone` on ports that stay the same over its lives, as clients remember them."""

import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from segmentstore.cli.server_process import ServerProcess


class StoreProcess(ServerProcess):
    """The three faces on free loopback ports, chosen once, and held also while no server is there.

    Held by a socket that is bound and never listens: nobody else on the machine is given the port meanwhile, neither to
    listen on nor to connect from, and the server, which binds with SO_REUSEADDR as the holder does, listens on it.
    """

    def __init__(
        self,
        data_directory: Path,
        options: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.history: list[str] = []
        """When it was started, ready and killed: what a test that fails shows."""
        self._holders = bound_sockets(3)
        self.http_port, self.wire_port, self.controller_port = ports_of(self._holders)
        faces = [
            f"--http=127.0.0.1:{self.http_port}",
            f"--wire=127.0.0.1:{self.wire_port}",
            f"--controller=127.0.0.1:{self.controller_port}",
        ]
        super().__init__(data_directory, [*faces, *options], environment=environment)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            super().__exit__(kind, error, traceback)
        finally:
            for each in self._holders:
                each.close()

    def start(self) -> Self:
        self._note("starting")
        try:
            return super().start()
        finally:
            self._note(self.ready_line)

    def kill(self) -> None:
        self._note("killed")
        super().kill()

    def _note(self, what: str) -> None:
        self.history.append(f"{time.monotonic():.3f} {what}")

    @property
    def uri(self) -> str:
        """What a client is given."""
        return f"tcp://127.0.0.1:{self.controller_port}"


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    sockets = bound_sockets(count)
    try:
        return ports_of(sockets)
    finally:
        for each in sockets:
            each.close()


def bound_sockets(count: int) -> list[socket.socket]:
    """On loopback ports of their own, which the caller closes."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        each.bind(("127.0.0.1", 0))
    return sockets


def ports_of(sockets: Sequence[socket.socket]) -> list[int]:
    return [each.getsockname()[1] for each in sockets]
