"""A real `segmentstore standalone` on ports that stay the same over its lives, as clients remember them."""

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from segmentstore.cli.server_process import ServerProcess


class StoreProcess(ServerProcess):
    """The three faces on free loopback ports, chosen once."""

    def __init__(
        self,
        data_directory: Path,
        options: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.http_port, self.wire_port, self.controller_port = free_ports(3)
        faces = [
            f"--http=127.0.0.1:{self.http_port}",
            f"--wire=127.0.0.1:{self.wire_port}",
            f"--controller=127.0.0.1:{self.controller_port}",
        ]
        super().__init__(data_directory, [*faces, *options], environment=environment)

    @property
    def uri(self) -> str:
        """What a client is given."""
        return f"tcp://127.0.0.1:{self.controller_port}"


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
