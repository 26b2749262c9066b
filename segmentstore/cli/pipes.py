"""Bytes and lines of a file or a pipe as they come: nothing is held back until a buffer is full.

A line is an event, with an optional routing key in front when it is written; an event is printed as text or as JSON.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, BinaryIO, Protocol

import click

from segmentstore.cli.output import flush_bytes, print_record, write_bytes

if TYPE_CHECKING:
    # `segment` reads pipes as well and talks HTTP: it does not load the asyncio client.
    from segmentstore.client.event import Event

_READ_BYTES = 1 << 20


def _not_empty(_ctx: click.Context, _param: click.Parameter, given: str | None) -> str | None:
    if given == "":
        # Nothing stands before nothing; taken for no separator, it would give events no key, without a word.
        raise click.BadParameter("a separator is not empty")
    return given


key_separator_option = click.option(
    "--key-separator",
    metavar="TEXT",
    callback=_not_empty,
    help="What stands before it in a line is the routing key (\\t is a tab); without it events have no key.",
)


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
    lines = LinesOfPieces()
    async with aclosing(arriving_pieces(source, _READ_BYTES)) as pieces:
        async for piece in pieces:
            for line in lines.complete(piece):
                yield line
    for line in lines.rest():
        yield line


class LinesOfPieces:
    """Cuts pieces into lines. O(bytes), however many pieces one line comes in: each is looked through once."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []
        """What there is of a line whose end has not come."""

    def complete(self, piece: bytes) -> list[bytes]:
        """The lines that end in the piece, without their ends."""
        first, *others = piece.split(b"\n")
        self._begun.append(first)
        if not others:
            return []
        first = b"".join(self._begun)
        self._begun = [others.pop()]
        return [first, *others]

    def rest(self) -> list[bytes]:
        """Behind the last piece: the line without an end, if there is one."""
        line = b"".join(self._begun)
        return [line] if line else []


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


class _Writer(Protocol):
    async def write(self, event: bytes, *, key: str | None = None) -> None: ...


async def write_lines(
    writer: _Writer,
    source: BinaryIO,
    key_separator: str | None,
    flush: Callable[[], Awaitable[None]],
) -> int:
    """Write each line as an event; how many. Raises UsageError for a line without the separator."""
    count = 0
    separator = key_separator.replace("\\t", "\t").encode() if key_separator else None
    async with aclosing(arriving_lines(source)) as lines:
        async for line in lines:
            key: str | None = None
            if separator is not None:
                head, found, line = line.partition(separator)  # the key is cut off
                if not found:
                    await flush()
                    raise click.UsageError(
                        f"line {count + 1} has no {key_separator!r} behind a key"
                    )
                key = head.decode(errors="surrogateescape")
            await writer.write(line, key=key)
            count += 1
    return count


def print_event(event: "Event", output: str) -> None:
    """One line of text, or one JSON object."""
    if output != "json":
        write_bytes(event.data + b"\n")
        return
    try:
        data = {"data": event.data.decode()}
    except UnicodeDecodeError:
        data = {"data_hex": event.data.hex()}
    flush_bytes()
    print_record(
        {
            "stream": event.stream,
            "segment": event.segment_id,
            "offset": event.offset,
            "next_offset": event.next_offset,
            **data,
        },
        output,
    )
