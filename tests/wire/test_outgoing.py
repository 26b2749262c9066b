"""Replies made of memory that others will use again at once."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from segmentstore.codec.wire_protocol.command import KeepAlive
from segmentstore.runtime.process import loop_factory
from segmentstore.wire.replies import SendBuffer
from segmentstore.wire.settings import WireSettings
from segmentstore.wire.statistics import WireCounters
from tests.wire.node import memory_bound

LOOPS = {"asyncio": None, "the server's": loop_factory()}
LARGE = 3 << 20
"""More than a socket takes at once."""


class Ending(asyncio.Protocol):
    """Tells when its connection is gone."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()


@asynccontextmanager
async def conversation() -> AsyncIterator[tuple[SendBuffer, socket.socket, asyncio.Transport]]:
    """What is said, where it is heard, and what carries it."""
    ours, theirs = socket.socketpair()
    transport, ending = await asyncio.get_running_loop().create_connection(Ending, sock=ours)
    theirs.setblocking(False)
    outgoing = SendBuffer(
        transport=transport,
        settings=WireSettings(),
        counters=WireCounters(),
        memory=memory_bound(),
        on_room=lambda: None,
    )
    yield outgoing, theirs, transport
    transport.close()
    await ending.ended.wait()
    theirs.close()


async def heard(theirs: socket.socket, length: int) -> bytes:
    """The next so many bytes, fewer at the end."""
    content = b""
    while len(content) < length:
        piece = await asyncio.get_running_loop().sock_recv(theirs, length - len(content))
        if not piece:
            break
        content += piece
    return content


def pattern(length: int, seed: int) -> bytes:
    return (bytes((seed + number) % 251 for number in range(251)) * (length // 251 + 1))[:length]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("length", [100, 20_000, LARGE])
def test_h53_borrowed_memory_may_be_used_again_as_soon_as_it_was_sent(
    loop: str, length: int
) -> None:
    async def run() -> None:
        async with conversation() as (outgoing, theirs, _):
            memory = bytearray(length)
            said = b""
            for seed in range(4):
                content = pattern(length, seed)
                memory[:] = content
                view = memoryview(memory)
                outgoing.send_borrowed(b"header", view[: length // 3], view[length // 3 :], b"end")
                memory[:] = bytes(length)
                outgoing.reply(KeepAlive())
                said += b"header" + content + b"end" + KeepAlive().encode()
            assert await heard(theirs, len(said)) == said

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(run())


async def test_borrowed_memory_is_not_sent_before_what_was_said_before() -> None:
    async with conversation() as (outgoing, theirs, _):
        earlier, later = pattern(LARGE, 7), pattern(50_000, 9)
        outgoing.send(earlier)
        begin = theirs.recv(
            100_000
        )  # There is room in the socket again, and the transport does not know of it.
        outgoing.send_borrowed(later)
        rest = len(earlier) + len(later) - len(begin)
        assert begin + await heard(theirs, rest) == earlier + later


async def test_nothing_is_written_to_a_socket_that_is_being_closed() -> None:
    async with conversation() as (outgoing, theirs, transport):
        transport.close()
        outgoing.send_borrowed(pattern(50_000, 1))
        assert await heard(theirs, 1) == b""
