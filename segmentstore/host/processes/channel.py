"""One end of the pair of sockets between the parent and a process that it started.

Invariants:

- Messages arrive in the order in which they were sent, or the end of the other process does.
- send() never waits: what is told is little, and the other side reads at once, or has ended.
"""

import asyncio
import socket
from asyncio import StreamReader, StreamWriter

from segmentstore.host.processes.orders import MESSAGE_BYTES_MAX, Message, decode, encode


class Channel:
    """send(), receive() by one task, close()."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> "Channel":
        """Takes the socket."""
        reader, writer = await asyncio.open_unix_connection(sock=end, limit=MESSAGE_BYTES_MAX)
        return cls(reader, writer)

    def send(self, message: Message) -> None:
        """Lost if the other process has ended; receive() tells."""
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    async def receive(self) -> Message | None:
        """None when the other process has ended, or has closed its end."""
        try:
            line = await self._reader.readline()
        except OSError:
            return None
        return decode(line) if line.endswith(b"\n") else None

    def close(self) -> None:
        """Idempotent."""
        self._writer.close()
