"""Events as lines: with an optional key in front when they are written, as text or JSON when they are read."""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, BinaryIO, Protocol

import click

from segmentstore.cli.input_lines import arriving_lines
from segmentstore.cli.output import flush_bytes, print_record, write_bytes

if TYPE_CHECKING:
    from segmentstore.client.event import Event

key_separator_option = click.option(
    "--key-separator",
    metavar="TEXT",
    help="What stands before it in a line is the routing key (\\t is a tab); without it events have no key.",
)


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
