"""A process that the parent has started: told its orders, listened to, ended, and seen to its end.

Invariants:

- What it is given besides its end of the channel is given by its orders: sockets to listen on, and the lock.
- It has a session of its own: what a terminal signals comes to the parent, which ends the others in their order.
- It has ended, for the kernel too, when wait() returns: its locks are free, apart from that of the data directory.
"""

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Sequence
from contextlib import suppress

from segmentstore.host.processes.channel import Channel
from segmentstore.host.processes.orders import Message, Orders, encode, orders_message

_MODULE = "segmentstore.host.processes.child"


class StartedProcess:
    """start(), order(), then receive() until None, then wait()."""

    def __init__(self, process: Process, end: socket.socket) -> None:
        self._process = process
        self._end = end
        self._channel: Channel | None = None

    @classmethod
    async def start(cls) -> "StartedProcess":
        """It loads the program, and waits for its orders. Raises OSError."""
        own, other = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                _MODULE,
                str(other.fileno()),
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
        return cls(process, own)

    @property
    def runs(self) -> bool:
        """As far as is known."""
        return self._process.returncode is None

    @property
    def pid(self) -> int:
        return self._process.pid

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
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    async def wait(self) -> int:
        """How it ended: an exit code, or less than 0 for a signal. Its end of the channel is closed then."""
        code = await self._process.wait()
        self.close()
        return code

    def close(self) -> None:
        """Of a process that has ended: what is left here. Idempotent."""
        if self._channel is not None:
            self._channel.close()
        else:
            self._end.close()

    async def end_soon(self, *, seconds_max: float) -> int:
        """As wait(), and by SIGKILL if that takes too long."""
        try:
            async with asyncio.timeout(seconds_max):
                await self._process.wait()
        except TimeoutError:
            self.signal(signal.SIGKILL)
        return await self.wait()

    async def kill(self) -> None:
        """By SIGKILL; it has ended when this returns."""
        self.signal(signal.SIGKILL)
        await self.wait()
