"""Processes of this machine that outlive the one that starts them: started, found again by another, ended.

Invariants:

- A process is known by its pid together with the time at which the kernel started it: a pid alone may be another's.
- Ports are not among those that the kernel gives to clients: one that looks for its dead server there finds itself.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LOOPBACK: Final = "127.0.0.1"
_FIRST_PORT: Final = 20_000
_PORT_COUNT: Final = 10_000
_PORTS_OF_A_PROCESS: Final = 97
"""Processes that start beside one another have pids beside one another, and none binds what it chose at once."""
_LOOK_SECONDS: Final = 0.05
_LOG_LINES_SHOWN: Final = 15
_EXITING: Final = 4
"""PF_EXITING, of the flags in /proc/PID/stat."""


@dataclass(frozen=True, slots=True)
class LocalProcess:
    """`started` is what the kernel says of its start, in ticks since the machine's. pid 0: there is none; `started` 0:
    it had ended when it was looked at first."""

    pid: int = 0
    started: int = 0

    @property
    def runs(self) -> bool:
        """Also while it is stopped by a signal."""
        return self.pid > 0 and self.started > 0 and start_time(self.pid) == self.started

    @property
    def is_ending(self) -> bool:
        """It does nothing any more, but some of its threads still hold what it had. So from SIGKILL on."""
        status = _status(self.pid) if self.pid > 0 else None
        return status is not None and status.started == self.started and status.is_ending

    def send(self, number: int) -> None:
        """A signal, if it runs."""
        if self.runs:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def wait_until_ended(self) -> None:
        """However long that takes."""
        while self.runs:  # noqa: ASYNC110  # the kernel sets no event
            await asyncio.sleep(_LOOK_SECONDS)

    async def end(self, number: int = signal.SIGTERM, *, seconds_max: float) -> None:
        """By the signal, and by SIGKILL if that takes too long; it has ended when this returns."""
        self.send(number)
        try:
            async with asyncio.timeout(seconds_max):
                await self.wait_until_ended()
        except TimeoutError:
            self.send(signal.SIGKILL)
            await self.wait_until_ended()


def start_process(
    command: Sequence[str], *, log: Path, environment: Mapping[str, str], is_detached: bool
) -> LocalProcess:
    """Its output goes to the end of the log. `is_detached`: it outlives the terminal. Raises OSError."""
    # Not subprocess: its processes belong to the one that started them, these may outlive it.
    pid = os.posix_spawnp(
        command[0],
        list(command),
        environment,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=is_detached,
    )
    return LocalProcess(pid, start_time(pid))


def end_of_log(log: Path) -> str:
    """The last lines of what a process has said, for an error about it."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join([f"the end of its log {log}:", *lines[-_LOG_LINES_SHOWN:]])


def start_time(pid: int) -> int:
    """When the kernel started it; 0 if it has ended."""
    status = _status(pid)
    return 0 if status is None else status.started


@dataclass(frozen=True, slots=True)
class _Status:
    started: int
    is_ending: bool
    """SIGKILL waits for it, or its first thread is gone: that of a JVM may be a zombie while others still hold its
    port."""


def _status(pid: int) -> _Status | None:
    """None if it has ended."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # one of ours is not to stay as a zombie
    try:
        # In this order: what waits no more has been met, and what has been met shows in its flags.
        pending = int(_field_of(pid, "SigPnd:"), 16)
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, flags, thread_count, started = (
        fields[0],
        int(fields[6]),
        int(fields[17]),
        int(fields[19]),
    )
    if state in "ZX" and thread_count <= 1:
        return None
    is_killed = bool(pending >> (signal.SIGKILL - 1) & 1)
    return _Status(started, is_killed or bool(flags & _EXITING))


def _field_of(pid: int, name: str) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line for line in lines if line.startswith(name)).split()[1]


def is_listening(port: int) -> bool:
    """Whether a process takes connections there, on loopback."""
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0


def free_ports(count: int) -> list[int]:
    """Different ones on loopback. Raises OSError if there are too few."""
    ports: list[int] = []
    first = os.getpid() * _PORTS_OF_A_PROCESS % _PORT_COUNT
    for place in range(_PORT_COUNT):
        if len(ports) == count:
            break
        port = _FIRST_PORT + (first + place) % _PORT_COUNT
        with socket.socket() as probe, suppress(OSError):
            probe.bind((LOOPBACK, port))
            ports.append(port)
    if len(ports) < count:
        raise OSError(f"no {count} ports are free from {_FIRST_PORT} on")
    return ports
