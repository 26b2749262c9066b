"""What a file or a pipe has, as it comes: nothing is held back until a buffer is full."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import BinaryIO

_READ_BYTES = 1 << 20


async def arriving_pieces(source: BinaryIO, piece_bytes: int) -> AsyncGenerator[bytes, None]:
    """Up to `piece_bytes` at a time, until the end. Hold it in `aclosing`."""
    descriptor = source.fileno()
    is_pollable = True
    while True:
        if is_pollable:
            is_pollable = await _wait_until_readable(descriptor)
        piece = os.read(descriptor, piece_bytes)
        if not piece:
            return
        yield piece


async def arriving_lines(source: BinaryIO) -> AsyncGenerator[bytes, None]:
    """Each line without its end; a last line without an end counts. Hold it in `aclosing`."""
    rest = bytearray()
    async with aclosing(arriving_pieces(source, _READ_BYTES)) as pieces:
        async for piece in pieces:
            rest += piece
            *lines, rest = rest.split(b"\n")
            for line in lines:
                yield bytes(line)
    if rest:
        yield bytes(rest)


async def _wait_until_readable(descriptor: int) -> bool:
    """False for a regular file: it cannot be waited for, and never needs to be."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def announce() -> None:
        # Called again while the bytes are still there; a wake-up kept for later would make the next read block.
        if not readable.done():
            readable.set_result(None)

    try:
        loop.add_reader(descriptor, announce)
    except PermissionError:
        return False
    try:
        await readable
    finally:
        loop.remove_reader(descriptor)
    return True
