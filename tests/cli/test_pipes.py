"""Lines and pieces of a pipe."""

import os
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.cli.pipes import LinesOfPieces, arriving_lines, arriving_pieces


async def _lines_of(source: BinaryIO) -> list[bytes]:
    async with aclosing(arriving_lines(source)) as lines:
        return [line async for line in lines]


async def _pieces_of(source: BinaryIO) -> list[bytes]:
    async with aclosing(arriving_pieces(source, 1 << 20)) as pieces:
        return [piece async for piece in pieces]


async def _cost_of(
    read: Callable[[BinaryIO], Awaitable[list[bytes]]], content: bytes
) -> tuple[float, list[bytes]]:
    """Of reading it from a pipe: processor seconds of this thread, and what came of it."""
    reading, writing = os.pipe()

    def write() -> None:
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(content)

    writer = threading.Thread(target=write)
    writer.start()
    started = time.thread_time()
    with os.fdopen(reading, "rb") as source:
        found = await read(source)
    seconds = time.thread_time() - started
    writer.join()
    return seconds, found


@pytest.mark.parametrize("end", [b"", b"\n"])
async def test_a_line_of_many_pieces_is_read_in_a_time_that_grows_with_its_bytes_alone(
    end: bytes,
) -> None:
    # What has come of the line was once looked through again with every piece: 16 MiB took nine seconds.
    line = bytes(16 << 20)
    plainly, pieces = await _cost_of(_pieces_of, line + end)
    seconds, found = await _cost_of(_lines_of, line + end)
    assert b"".join(pieces) == line + end
    assert found == [line]
    # A machine that is slow is slow for both.
    assert seconds < max(1.0, 30 * plainly), f"{seconds=} {plainly=}"


@given(pieces=st.lists(st.binary(max_size=6).map(lambda each: each.replace(b"0", b"\n"))))
def test_lines_are_the_same_however_they_are_cut_into_pieces(pieces: list[bytes]) -> None:
    lines = LinesOfPieces()
    found = [line for piece in pieces for line in lines.complete(piece)]
    *expected, rest = b"".join(pieces).split(b"\n")
    assert found == expected
    assert lines.rest() == ([rest] if rest else [])
