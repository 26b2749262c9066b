"""A client that takes nothing pauses what writes to it, in whatever parts the bytes come."""

import asyncio
import socket
from collections.abc import Iterable

import pytest

from segmentstore.runtime import written_parts
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


class _Transport(asyncio.WriteTransport):
    """Says what it was asked to do."""

    def __init__(self, *, is_closing: bool = False) -> None:
        super().__init__()
        self.asked: list[tuple[str, list[bytes]]] = []
        self._is_closing = is_closing

    def is_closing(self) -> bool:
        return self._is_closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.asked.append(("write", [bytes(data)]))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.asked.append(("writelines", [bytes(each) for each in list_of_data]))

    def get_write_buffer_size(self) -> int:
        return 1

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return 3, 7

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.asked.append((f"limits {low} {high}", []))


SMALL, LARGE = [b"a" * 8] * 3, [b"a" * 10_000, b"b"]


@pytest.mark.parametrize(
    ("parts", "is_closing", "asked"),
    [
        (SMALL, False, [("write", [b"a" * 24])]),
        (LARGE, False, [("writelines", LARGE), ("limits 3 7", [])]),
        (LARGE, True, [("write", [b"a" * 10_000 + b"b"])]),
    ],
)
def test_small_parts_and_those_for_a_client_that_has_gone_are_joined_where_python_keeps_parts(
    monkeypatch: pytest.MonkeyPatch,
    parts: list[bytes],
    is_closing: bool,
    asked: list[tuple[str, list[bytes]]],
) -> None:
    monkeypatch.setattr(written_parts, "_KEEPS_PARTS", True)
    monkeypatch.setattr(written_parts, "_FORGETS_TO_PAUSE", True)
    transport = _Transport(is_closing=is_closing)
    write_parts(transport, parts)
    assert transport.asked == asked


def test_parts_are_left_to_a_python_that_joins_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written_parts, "_KEEPS_PARTS", False)
    monkeypatch.setattr(written_parts, "_FORGETS_TO_PAUSE", False)
    transport = _Transport(is_closing=True)
    write_parts(transport, SMALL)
    assert transport.asked == [("writelines", SMALL)]
