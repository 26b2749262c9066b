"""A proxy of loopback between one process and one port of another that can be cut, in one direction or in both.

While it is cut, nothing is lost and nothing gets through: bytes of that direction wait, some here and the rest in the
kernel's buffers, whose sender then waits as well, and go on when it is healed. So TCP does over a network that is cut
for a while. What is sent late arrives late: the proxy gives a bookie an append that its sender has long given up.

A connection that is begun while either direction is cut has no answer until it is healed. Here it looks established to
the one who began it, and silent; over a network it would not be established.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from enum import Flag, auto

_PIECE_BYTES = 1 << 16


class Direction(Flag):
    """What is cut: bytes of the process to the server, or those that come back."""

    FORTH = auto()
    BACK = auto()
    BOTH = FORTH | BACK

    def __str__(self) -> str:
        return (self.name or "none").lower()


class CutProxy:
    """Listens at `port`. Made by `cut_proxy`."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._gates = {Direction.FORTH: asyncio.Event(), Direction.BACK: asyncio.Event()}
        self._connections: dict[asyncio.Task[object], asyncio.StreamWriter] = {}
        self.port = 0
        self.bytes_passed = {Direction.FORTH: 0, Direction.BACK: 0}
        self.heal()

    def cut(self, direction: Direction) -> None:
        for each in direction:
            self._gates[each].clear()

    def heal(self) -> None:
        for gate in self._gates.values():
            gate.set()

    async def close(self) -> None:
        """Ends the connections that are left."""
        left = dict(self._connections)
        for task, writer in left.items():
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of the process, until both sides have ended it or one has broken."""
        task = asyncio.current_task()
        assert task is not None, "a connection is served in a task"
        self._connections[task] = writer
        try:
            for gate in self._gates.values():
                await gate.wait()
            with suppress(OSError):
                await self._pass(reader, writer)
        finally:
            writer.transport.abort()
            del self._connections[task]

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        forth = asyncio.create_task(self._pump(reader, to_server, Direction.FORTH))
        back = asyncio.create_task(self._pump(from_server, writer, Direction.BACK))
        try:
            # An end of one side is passed on; one that breaks breaks the other.
            await asyncio.wait({forth, back}, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            forth.cancel()
            back.cancel()
            await asyncio.gather(forth, back, return_exceptions=True)
            to_server.transport.abort()

    async def _pump(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, direction: Direction
    ) -> None:
        gate = self._gates[direction]
        while True:
            try:
                piece = await source.read(_PIECE_BYTES)
            finally:
                # Also that the connection is broken is news, which waits.
                await gate.wait()
            if not piece:
                break
            target.write(piece)
            self.bytes_passed[direction] += len(piece)
            await target.drain()
        if target.can_write_eof():
            target.write_eof()


@asynccontextmanager
async def cut_proxy(server_port: int) -> AsyncIterator[CutProxy]:
    """Before one port of loopback, until the block ends."""
    proxy = CutProxy(server_port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=_PIECE_BYTES)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
