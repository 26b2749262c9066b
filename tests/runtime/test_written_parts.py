"""A client that takes nothing pauses what writes to it, in whatever parts the bytes come."""

import asyncio
import socket

from segmentstore.runtime.process import loop_factory
from segmentstore.runtime.written_parts import write_parts

PARTS = [bytes([number]) * (1 << 20) for number in range(16)]


class _Pausable(asyncio.Protocol):
    def __init__(self) -> None:
        self.is_paused = False
        self.resumed = asyncio.Event()

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        self.resumed.set()


async def _paused_and_resumed() -> None:
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.setblocking(False)
        transport, protocol = await loop.create_connection(_Pausable, sock=ours)
        write_parts(transport, PARTS)
        assert protocol.is_paused
        taken = bytearray()
        while len(taken) < sum(map(len, PARTS)):
            taken += await loop.sock_recv(theirs, 1 << 20)
        assert taken == b"".join(PARTS)
        await protocol.resumed.wait()
        transport.close()


def test_parts_that_a_client_does_not_take_pause_their_writer_on_asyncios_own_loop() -> None:
    asyncio.run(_paused_and_resumed())


def test_and_on_the_loop_that_serving_processes_have() -> None:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_paused_and_resumed())
