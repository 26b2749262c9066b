"""A client that says exactly what a test wants, frame by frame, over a real socket."""

import asyncio
from collections import deque
from contextlib import suppress
from typing import TypeVar

from segmentstore.codec.wire_protocol.appends import AppendBlockEnd, AppendSetup, SetupAppend
from segmentstore.codec.wire_protocol.command import Command, Hello
from segmentstore.codec.wire_protocol.frames import FrameSplitter

Reply = TypeVar("Reply", bound=Command)

OUR_HELLO = Hello(16, 5)

PATIENCE_SECONDS = 60.0
"""Decides nothing: only so that a missing reply fails by its name."""


def event(payload: bytes) -> bytes:
    """As it stands in a segment."""
    return bytes(4) + len(payload).to_bytes(4, "big") + payload


class ProtocolClient:
    """One connection. `next_request` numbers requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._splitter = FrameSplitter()
        self._received: deque[Command] = deque()
        self._request_id = 1 << 32

    @classmethod
    async def connect(
        cls, address: tuple[str, int], *, hello: Hello | None = OUR_HELLO
    ) -> "ProtocolClient":
        reader, writer = await asyncio.open_connection(*address)
        client = cls(reader, writer)
        if hello is not None:
            client.send(hello)
            await client.expect(Hello)
        return client

    def next_request(self) -> int:
        self._request_id += 1
        return self._request_id

    def send(self, *commands: Command) -> None:
        self.send_bytes(b"".join(command.encode() for command in commands))

    def send_bytes(self, content: bytes) -> None:
        self.writer.write(content)

    async def receive(self) -> Command:
        """The next frame. Raises EOFError when the server has closed."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.receive_whenever()

    async def receive_whenever(self) -> Command:
        """The same, for a client that may have nothing to wait for."""
        while not self._received:
            try:
                piece = await self._reader.read(1 << 20)
            except ConnectionError:
                piece = b""
            if not piece:
                raise EOFError("the server closed the connection")
            self._received += self._splitter.feed_commands(piece)
        return self._received.popleft()

    async def expect(self, kind: type[Reply]) -> Reply:
        reply = await self.receive()
        assert isinstance(reply, kind), f"expected {kind.__name__}, got {reply!r:.300}"
        return reply

    async def ask(self, command: Command, kind: type[Reply]) -> Reply:
        self.send(command)
        return await self.expect(kind)

    async def expect_close(self) -> list[Command]:
        """What is said before the server closes."""
        rest: list[Command] = []
        while True:
            try:
                rest.append(await self.receive())
            except EOFError:
                await self.close()
                return rest

    async def set_up(self, writer_id: bytes, segment: str) -> AppendSetup:
        return await self.ask(SetupAppend(self.next_request(), writer_id, segment, ""), AppendSetup)

    def append(
        self, writer_id: bytes, data: bytes, number: int, *, events: int = 1, request_id: int = 7
    ) -> None:
        self.send(AppendBlockEnd(writer_id, len(data), data, events, number, request_id))

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()

    def abort(self) -> None:
        self.writer.transport.abort()
