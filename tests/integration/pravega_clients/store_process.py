"""A real `segmentstore standalone` on ports that stay the same over its lives, as clients remember them."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from segmentstore.cli.server_process import ServerProcess
from tests.held_ports import bound_sockets, ports_of


class StoreProcess(ServerProcess):
    """The three faces on free loopback ports, chosen once, and held also while no server is there."""

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
