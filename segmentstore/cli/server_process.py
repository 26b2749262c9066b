"""A store in a process of its own, for the demonstration, the benchmark, and tests that kill it.

Invariants:

- `start` returns only after the ready line; if the process ends first, its last words are in the error.
- Leaving the `with` block leaves no process behind.

Tests that start many servers have them forked from a process that has loaded the program (tests/preloaded_command.py):
`start_command` is what they replace.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, ClassVar, Protocol, Self

from segmentstore.contracts.errors import SegmentStoreError

_STOP_SECONDS = 60.0


class ServerProcessError(SegmentStoreError):
    """The server did not become ready."""


class RunningCommand(Protocol):
    """What is asked of a process that runs `segmentstore`; `subprocess.Popen` answers all of it."""

    @property
    def pid(self) -> int: ...

    @property
    def stdout(self) -> IO[str] | None: ...

    def send_signal(self, sig: int) -> None: ...

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int: ...


class StartCommand(Protocol):
    """Starts `segmentstore` with the words behind its name; `environment` is all of it. Raises OSError."""

    def __call__(
        self, words: Sequence[str], log: IO[bytes], environment: Mapping[str, str]
    ) -> RunningCommand: ...


def start_command(
    words: Sequence[str], log: IO[bytes], environment: Mapping[str, str]
) -> RunningCommand:
    """As users start it, with this interpreter."""
    return subprocess.Popen(
        [sys.executable, "-m", "segmentstore.cli", *words],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env=environment,
    )


class ServerProcess:
    """`segmentstore standalone` on a data directory, on any free port."""

    start_command: ClassVar[StartCommand] = staticmethod(start_command)

    def __init__(
        self,
        data_directory: Path,
        options: Sequence[str] = (),
        *,
        accept: Sequence[str] = ("ready",),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`accept`: first words of a line that will do; `partial` is a store with a container that did not recover.

        `environment`: variables that it gets besides our own.
        """
        self._data_directory = data_directory
        self._options = options
        self._accept = accept
        self._environment = {**os.environ, **(environment or {})}
        self._process: RunningCommand | None = None
        self.ready_line = ""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self.kill()

    @property
    def data_directory(self) -> Path:
        return self._data_directory

    @property
    def is_running(self) -> bool:
        """Started, and not ended by us."""
        return self._process is not None

    @property
    def process_id(self) -> int:
        return self._running().pid

    @property
    def address(self) -> str:
        """`http://HOST:PORT`."""
        return self.ready_line.split()[1]

    @property
    def status_address(self) -> str:
        """`http://HOST:PORT` of the parent, of a store in several processes."""
        words = dict(word.partition("=")[::2] for word in self.ready_line.split())
        return words["status"]

    @property
    def log_path(self) -> Path:
        """Where the server's stderr goes: beside the data directory."""
        return self._data_directory.with_name(self._data_directory.name + ".log")

    def start(self) -> Self:
        """Start and wait for the ready line. Raises ServerProcessError."""
        assert self._process is None, "the server is started already"
        words = ["standalone", "--data", str(self._data_directory)]
        for option in ("--http", "--wire", "--controller"):
            words += [option, "127.0.0.1:0"]
        words += self._options
        with self.log_path.open("ab") as log:
            process = self.start_command(words, log, self._environment)
        assert process.stdout is not None, "stdout is a pipe"
        self.ready_line = process.stdout.readline().strip()
        if self.ready_line.split(" ", 1)[0] not in self._accept:
            process.kill()
            process.stdout.close()
            code = process.wait()
            last_words = self.log_path.read_text().strip().splitlines()[-1:]
            raise ServerProcessError(
                f"the server did not start exit_code={code}: {''.join(last_words)}"
            )
        self._process = process
        return self

    def signal(self, number: int) -> None:
        """Any signal."""
        self._running().send_signal(number)

    def kill(self) -> None:
        """kill -9: no goodbye."""
        self.signal(signal.SIGKILL)
        self.wait()

    def terminate(self) -> int:
        """SIGTERM; the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """The exit code once it has ended; killed if that takes more than a minute."""
        process, self._process = self._running(), None
        try:
            return process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
        finally:
            if process.stdout is not None:
                process.stdout.close()

    def _running(self) -> RunningCommand:
        assert self._process is not None, "the server does not run"
        return self._process
