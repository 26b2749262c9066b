"""A real `segmentstore standalone` that serves Kafka's clients, on a port that stays the same over its starts."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from segmentstore.cli.server_process import ServerProcess
from tests.held_ports import bound_sockets, ports_of


class KafkaServerProcess(ServerProcess):
    """The port is held by a socket that is bound and never listens, so that it is given to no other program."""

    def __init__(self, data_directory: Path, options: Sequence[str] = ()) -> None:
        self._holders = bound_sockets(1)
        (self.port,) = ports_of(self._holders)
        super().__init__(
            data_directory,
            [
                f"--kafka=127.0.0.1:{self.port}",
                "--wire=off",
                "--controller=off",
                "--containers=2",
                *options,
            ],
        )

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

    @property
    def bootstrap(self) -> str:
        """What a client is given."""
        return f"127.0.0.1:{self.port}"
