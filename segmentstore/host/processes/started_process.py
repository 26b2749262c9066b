"""A process that the parent has started: told its orders, listened to, ended, and seen to its end.

Invariants:

- The launcher loads its modules from where the parent has loaded its own.
- What it is given besides its end of the channel is given by its orders: sockets to listen on, and the lock.
- It has a session of its own: what a terminal signals comes to the parent, which ends the others in their order.
- It has ended, for the kernel too, when wait() returns, whatever became of the launcher: its locks are free, apart from
  that of the data directory.
"""

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from segmentstore.host.processes.channel import Channel
from segmentstore.host.processes.orders import (
    EXIT_CODE_BYTES,
    FORK_REQUEST,
    PROCESS_ID_BYTES,
    Message,
    Orders,
    encode,
    orders_message,
)

_MODULE = "segmentstore.host.processes.launcher"
_UNKNOWN_EXIT_CODE = 255
"""Of a process whose launcher has ended before it."""


class Launcher:
    """The process that loads the program once, for all that are forks of it; start(), fork(), close()."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._requests: socket.socket | None = None
        self._starting = asyncio.Lock()

    @property
    def process_id(self) -> int | None:
        """None while none runs, as far as is known."""
        if self._process is None or self._process.returncode is not None:
            return None
        return self._process.pid

    async def start(self) -> None:
        """It begins to load. Nothing happens while one runs. Raises OSError."""
        async with self._starting:
            if self.process_id is None:
                await self.close()
                await self._start()

    async def _start(self) -> None:
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._process = await asyncio.create_subprocess_exec(
                # -P: without it, files in the directory of the start would be taken for modules of ours.
                sys.executable,
                "-P",
                "-m",
                _MODULE,
                str(other.fileno()),
                env={**os.environ, "PYTHONPATH": _module_path()},
                pass_fds=(other.fileno(),),
                stdin=DEVNULL,
                stdout=DEVNULL,
                start_new_session=True,
            )
        except BaseException:
            own.close()
            raise
        finally:
            other.close()
        self._requests = own

    async def fork(self) -> "StartedProcess":
        """One that waits for its orders. Raises OSError."""
        await self.start()
        assert self._requests is not None, "not started"
        own, channel = socket.socketpair()
        report, told = socket.socketpair()
        try:
            socket.send_fds(self._requests, [FORK_REQUEST], [channel.fileno(), told.fileno()])
            channel.close()
            told.close()
            report.setblocking(False)
            await _readable(report)
            content, descriptors, _, _ = socket.recv_fds(report, PROCESS_ID_BYTES, 1)
            if not content:
                raise ChildProcessError("the launcher of processes has ended, or cannot fork")
        except BaseException:
            for each in (own, channel, report, told):
                each.close()
            raise
        return StartedProcess(
            process_id=int.from_bytes(content, "big"),
            process=descriptors[0],
            report=report,
            end=own,
        )

    async def close(self) -> None:
        """It has ended when this returns; its forks have not. Idempotent."""
        if self._requests is not None:
            self._requests.close()
            self._requests = None
        if self._process is not None:
            await self._process.wait()
            self._process = None


class StartedProcess:
    """order(), then receive() until None, then wait()."""

    def __init__(
        self, *, process_id: int, process: int, report: socket.socket, end: socket.socket
    ) -> None:
        """`process`: a descriptor of it. `report`: where the launcher tells its exit code. wait() closes both."""
        self._process_id = process_id
        self._process: int | None = process
        self._report = report
        self._end = end
        self._channel: Channel | None = None
        self._exit_code = _UNKNOWN_EXIT_CODE

    @property
    def pid(self) -> int:
        return self._process_id

    async def order(self, orders: Orders, descriptors: Sequence[int]) -> None:
        """Once. `descriptors`: of sockets to listen on, and of the lock. If it has ended, receive() says so."""
        line = encode(orders_message(orders))
        with suppress(OSError):
            sent = socket.send_fds(self._end, [line], list(descriptors))
            self._end.sendall(line[sent:])
        self._channel = await Channel.over(self._end)

    def send(self, message: Message) -> None:
        """Behind order()."""
        assert self._channel is not None, "it has no orders yet"
        self._channel.send(message)

    async def receive(self) -> Message | None:
        """None at its end."""
        assert self._channel is not None, "it has no orders yet"
        return await self._channel.receive()

    def signal(self, number: int) -> None:
        """Nothing happens if it has ended."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, number)

    async def wait(self) -> int:
        """How it ended: an exit code, or less than 0 for a signal. Its end of the channel is closed then."""
        if self._process is not None:
            # The kernel itself is asked: the descriptor of a process is readable when that has ended.
            await _readable(self._process)
            await self._take_exit_code()
            os.close(self._process)
            self._process = None
            self._close()
        return self._exit_code

    async def _take_exit_code(self) -> None:
        await _readable(self._report)
        with suppress(OSError):
            content = self._report.recv(EXIT_CODE_BYTES)
            if content:
                self._exit_code = int.from_bytes(content, "big", signed=True)

    def _close(self) -> None:
        self._report.close()
        if self._channel is not None:
            self._channel.close()
        else:
            self._end.close()

    async def end_soon(self, *, seconds_max: float) -> int:
        """As wait(), and by SIGKILL if that takes too long."""
        try:
            async with asyncio.timeout(seconds_max):
                return await self.wait()
        except TimeoutError:
            self.signal(signal.SIGKILL)
        return await self.wait()

    async def kill(self) -> None:
        """By SIGKILL; it has ended when this returns."""
        self.signal(signal.SIGKILL)
        await self.wait()


async def _readable(descriptor: int | socket.socket) -> None:
    """By one task at a time."""
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    loop.add_reader(descriptor, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(descriptor)


def _module_path() -> str:
    """What PYTHONPATH has to be for a process that finds modules where this one does."""
    return os.pathsep.join(str(Path(each).absolute()) for each in sys.path)
