"""Lines and pieces of a pipe."""

import os
import threading
import time
from contextlib import aclosing
from typing import BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.cli.pipes import LinesOfPieces, arriving_lines


async def _lines_of(source: BinaryIO) -> list[bytes]:
    async with aclosing(arriving_lines(source)) as lines:
        return [line async for line in lines]


@pytest.mark.parametrize("end", [b"", b"\n"])
async def test_a_line_of_many_pieces_is_read_in_a_time_that_grows_with_its_bytes_alone(
    end: bytes,
) -> None:
    # What has come of the line was once looked through again with every piece: 16 MiB took nine seconds.
    line = bytes(16 << 20)
    reading, writing = os.pipe()

    def write() -> None:
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(line + end)

    writer = threading.Thread(target=write)
    writer.start()
    started = time.process_time()
    with os.fdopen(reading, "rb") as source:
        found = await _lines_of(source)
    writer.join()
    assert found == [line]
    assert time.process_time() - started < 1.0


@given(pieces=st.lists(st.binary(max_size=6).map(lambda each: each.replace(b"0", b"\n"))))
def test_lines_are_the_same_however_they_are_cut_into_pieces(pieces: list[bytes]) -> None:
    lines = LinesOfPieces()
    found = [line for piece in pieces for line in lines.complete(piece)]
    *expected, rest = b"".join(pieces).split(b"\n")
    assert found == expected
    assert lines.rest() == ([rest] if rest else [])
