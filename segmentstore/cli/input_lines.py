"""Lines of a file or a pipe as they come: a line is handed on when its end is there, not when a buffer is full."""

import asyncio
import os
from collections.abc import AsyncGenerator
from typing import BinaryIO

_READ_BYTES = 1 << 20


async def arriving_lines(source: BinaryIO) -> AsyncGenerator[bytes, None]:
    """Each line without its end; a last line without an end counts. Hold it in `aclosing`."""
    rest = bytearray()
    loop = asyncio.get_running_loop()
    descriptor = source.fileno()
    readable = asyncio.Event()
    try:
        loop.add_reader(descriptor, readable.set)
        is_pollable = True
    except PermissionError:
        # A regular file: it cannot be waited for, and never needs to be.
        is_pollable = False
    try:
        while True:
            if is_pollable:
                await readable.wait()
                readable.clear()
            piece = os.read(descriptor, _READ_BYTES)
            if not piece:
                break
            rest += piece
            *lines, last = rest.split(b"\n")
            rest = last
            for line in lines:
                yield bytes(line)
    finally:
        if is_pollable:
            loop.remove_reader(descriptor)
    if rest:
        yield bytes(rest)
