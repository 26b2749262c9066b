"""`segmentstore` in processes that are forks of one which has loaded the program: a start costs a fifth of its CPU.

    python -m tests.preloaded_command DESCRIPTOR    that process; the descriptor is its end of a pair of sockets

It is the launcher of a store in several processes (segmentstore/host/processes/launcher.py), whose forks are told what
to run by one message of JSON, over their channel, together with the descriptors of their stdout and stderr:

    {"words": [...], "environment": {...}, "directory": "..."}

Invariants:

- A fork runs what `python -m segmentstore.cli` would, from its command line to its exit code, with exactly the
  environment and the working directory that it is given.
- A test waits for the end of a fork itself (pidfd), not for what the launcher says of it.

What a process does before it reads its command line is left to those tests that start one as users do: the modules of
tests/host, the pages (tests/test_pages.py), and every store in several processes, which starts its own launcher.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest

from segmentstore.cli.server_process import ServerProcess
from segmentstore.host.processes.orders import EXIT_CODE_BYTES, FORK_REQUEST, PROCESS_ID_BYTES
from segmentstore.runtime.process import freeze_long_lived_objects, loop_factory

_ROOT = Path(__file__).parents[1]
_MESSAGE_BYTES_MAX = 1 << 20


class PreloadedCommand:
    """The process that has loaded the program, from the first start() to close()."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None

    def _load(self) -> socket.socket:
        requests, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.preloaded_command", str(other.fileno())],
                pass_fds=(other.fileno(),),
                env={**os.environ, "PYTHONPATH": path},
                stdout=subprocess.DEVNULL,
            )
        return requests

    def start(
        self, words: Sequence[str], log: IO[bytes], environment: Mapping[str, str]
    ) -> "ForkedCommand":
        """See StartCommand of segmentstore/cli/server_process.py."""
        if self._requests is None:
            self._requests = self._load()
        own, channel = socket.socketpair()
        report, told = socket.socketpair()
        with own:
            with channel, told:
                socket.send_fds(self._requests, [FORK_REQUEST], [channel.fileno(), told.fileno()])
            content, descriptors, _, _ = socket.recv_fds(report, PROCESS_ID_BYTES, 1)
            assert content, "the process that has loaded the program has ended, or cannot fork"
            read_end, write_end = os.pipe()
            with os.fdopen(write_end, "wb"):
                order = {
                    "words": list(words),
                    "environment": dict(environment),
                    "directory": str(Path.cwd()),
                }
                message = json.dumps(order).encode()
                sent = socket.send_fds(own, [message], [write_end, log.fileno()])
                own.sendall(message[sent:])
        return ForkedCommand(
            int.from_bytes(content, "big"), descriptors[0], report, os.fdopen(read_end, "r")
        )

    def close(self) -> None:
        """Idempotent. Forks go on."""
        if self._requests is not None:
            self._requests.close()
            self._requests = None
        if self._process is not None:
            self._process.wait()
            self._process = None


class ForkedCommand:
    """A RunningCommand of segmentstore/cli/server_process.py."""

    def __init__(
        self, process_id: int, process: int, report: socket.socket, stdout: IO[str]
    ) -> None:
        """`process`: a descriptor of it. `report`: where its exit code is told. wait() closes both."""
        self._process_id = process_id
        self._process = process
        self._report = report
        self._stdout = stdout
        self._exit_code: int | None = None

    @property
    def pid(self) -> int:
        return self._process_id

    @property
    def stdout(self) -> IO[str] | None:
        return self._stdout

    def send_signal(self, sig: int) -> None:
        """Nothing happens if it has ended."""
        if self._exit_code is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """How it ended: an exit code, or less than 0 for a signal. Raises subprocess.TimeoutExpired."""
        if self._exit_code is None:
            ended = select.poll()
            ended.register(self._process, select.POLLIN)
            if not ended.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired("segmentstore", timeout or 0.0)
            with self._report:
                content = self._report.recv(EXIT_CODE_BYTES)
            os.close(self._process)
            assert content, "the process that has loaded the program has ended"
            self._exit_code = int.from_bytes(content, "big", signed=True)
        return self._exit_code


@pytest.fixture(scope="session")
def preloaded_command() -> Iterator[PreloadedCommand]:
    """One for all tests of a process, and only if they start a server: tests/conftest.py has it."""
    command = PreloadedCommand()
    yield command
    command.close()


@pytest.fixture(scope="module", autouse=True)
def servers_are_forks(preloaded_command: PreloadedCommand) -> Iterator[None]:
    """Every ServerProcess that a module of a folder starts whose conftest.py imports this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServerProcess, "start_command", staticmethod(preloaded_command.start))
        yield


def main(descriptor: int) -> None:
    """Fork on request. In a fork it ends the process when the command has ended."""
    # What interrupts a test run interrupts its servers, but not what is waited for by them.
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Only here: who starts servers need not have loaded what they are.
    from segmentstore.host.processes.launcher import fork_on_request

    load_program()
    freeze_long_lived_objects()
    channel = fork_on_request(socket.socket(fileno=descriptor))
    if channel is not None:
        signal.signal(signal.SIGINT, interrupt)
        run_command(socket.socket(fileno=channel))


def load_program() -> None:
    """All that a standalone store imports, whatever it serves."""
    import segmentstore.host.standalone
    import segmentstore.kafka.server  # noqa: F401

    loop_factory()


def run_command(channel: socket.socket) -> None:
    """What the message says, with what it brings."""
    with channel:
        message, descriptors, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES_MAX, 2)
        while more := channel.recv(_MESSAGE_BYTES_MAX):
            message += more
    order = json.loads(message)
    for descriptor, standard in zip(descriptors, (1, 2), strict=True):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["directory"])
    from segmentstore.cli.main import run

    sys.argv = ["segmentstore", *order["words"]]
    sys.exit(run(order["words"]))


if __name__ == "__main__":
    main(int(sys.argv[1]))
