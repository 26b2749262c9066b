"""`segmentstore segment ...`: the verbs of a segment, one command each."""

from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

import click

from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.http_client import HttpClient, SegmentStatus
from segmentstore.cli.options import APPEND_BYTES, server_option, with_client
from segmentstore.cli.output import (
    flush_bytes,
    output_option,
    print_record,
    print_rows,
    write_bytes,
)
from segmentstore.cli.pipes import arriving_pieces
from segmentstore.contracts.errors import BadOffsetError
from segmentstore.recovery.record_file_inspection import RecordFileInspection

_READ_BYTES = 1 << 20
_OFFSET = click.IntRange(min=0)
_LIST_COLUMNS = ("name", "start_offset", "length", "storage_length", "sealed", "container")


@click.group()
def segment() -> None:
    """Create, append to, read and administer segments."""


@segment.command()
@click.argument("name")
@click.option("--exists-ok", is_flag=True, help="Succeed if the segment exists already.")
@server_option
@output_option
def create(name: str, exists_ok: bool, server: str, output: str) -> None:
    """Create an empty segment."""

    async def work(client: HttpClient) -> SegmentStatus:
        return await (client.ensure(name) if exists_ok else client.create(name))

    print_record(asdict(with_client(server, work)), output)


@segment.command()
@click.argument("name")
@click.argument("source", type=click.File("rb"), default="-")
@click.option("--offset", type=_OFFSET, help="Append only if the segment has this length.")
@click.option(
    "--piece",
    "piece_bytes",
    type=APPEND_BYTES,
    default="1MiB",
    show_default=True,
    help="Largest append; longer input becomes several, each of them whole or absent.",
)
@server_option
@output_option
def append(
    name: str, source: BinaryIO, offset: int | None, piece_bytes: int, server: str, output: str
) -> None:
    """Append a file, or stdin, to a segment.

    Input that trickles in is appended as it comes. When the command fails, the length of the segment tells how much
    arrived.
    """

    async def work(client: HttpClient) -> int:
        length: int | None = None
        async with aclosing(arriving_pieces(source, piece_bytes)) as pieces:
            async for piece in pieces:
                # With --offset every piece is conditional on the end of the one before it.
                expected = offset if length is None or offset is None else length
                length = await client.append(name, piece, offset=expected)
        if length is None:
            # Nothing came, so no append has met the segment.
            length = (await client.info(name)).length
            if offset is not None and offset != length:
                raise BadOffsetError(name, expected=length, given=offset)
        return length

    print_record({"name": name, "length": with_client(server, work)}, output)


@segment.command()
@click.argument("name")
@click.option("--offset", type=_OFFSET, help="First byte; the start of the segment if left out.")
@click.option(
    "--length", type=click.IntRange(min=0), help="Number of bytes; up to the end if left out."
)
@server_option
def read(name: str, offset: int | None, length: int | None, server: str) -> None:
    """Write a stretch of a segment to stdout."""

    async def work(client: HttpClient) -> None:
        info = await client.info(name)
        position = info.start_offset if offset is None else offset
        if position > info.length:
            # Silence would look like a segment that ends there.
            raise BadOffsetError(name, expected=info.length, given=position)
        end = info.length if length is None else min(position + length, info.length)
        while position < end:
            piece = await client.read(name, position, min(_READ_BYTES, end - position))
            write_bytes(piece.content)
            position = piece.end_offset
        flush_bytes()

    with_client(server, work)


@segment.command()
@click.argument("name")
@click.option("--offset", type=_OFFSET, help="First byte; the present end if left out.")
@click.option("--from-start", is_flag=True, help="Begin at the first byte there is.")
@server_option
def tail(name: str, offset: int | None, from_start: bool, server: str) -> None:
    """Follow a segment to stdout until it is sealed or the command is interrupted."""
    if offset is not None and from_start:
        raise click.UsageError("begin at an --offset or --from-start, not at both")

    async def work(client: HttpClient) -> None:
        info = await client.info(name)
        position = offset if offset is not None else info.length
        if from_start:
            position = info.start_offset
        async with aclosing(client.follow(info, position)) as pieces:
            async for piece in pieces:
                write_bytes(piece.content)
                flush_bytes()

    with_client(server, work)


@segment.command()
@click.argument("name")
@server_option
@output_option
def info(name: str, server: str, output: str) -> None:
    """Show offsets, lengths and state."""
    print_record(asdict(with_client(server, lambda client: client.info(name))), output)


@segment.command("list")
@click.argument("prefix", default="")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many.")
@server_option
@output_option
def list_segments(prefix: str, limit: int | None, server: str, output: str) -> None:
    """List segments in name order, those whose name starts with PREFIX."""

    async def work(client: HttpClient) -> list[SegmentStatus]:
        found = []
        async with aclosing(client.list_all(prefix)) as segments:
            async for each in segments:
                found.append(each)
                if len(found) == limit:
                    break
        return found

    print_rows([asdict(each) for each in with_client(server, work)], output, _LIST_COLUMNS)


@segment.command()
@click.argument("name")
@server_option
@output_option
def seal(name: str, server: str, output: str) -> None:
    """Allow no more appends. Sealing twice is fine."""
    length = with_client(server, lambda client: client.seal(name))
    print_record({"name": name, "length": length, "sealed": True}, output)


@segment.command()
@click.argument("name")
@click.argument("offset", type=_OFFSET)
@server_option
@output_option
def truncate(name: str, offset: int, server: str, output: str) -> None:
    """Drop the bytes below OFFSET; offsets of the rest stay as they are."""

    async def work(client: HttpClient) -> SegmentStatus:
        await client.truncate(name, offset)
        return await client.info(name)

    print_record(asdict(with_client(server, work)), output)


@segment.command()
@click.argument("target")
@click.argument("source")
@server_option
@output_option
def merge(target: str, source: str, server: str, output: str) -> None:
    """Append the sealed SOURCE to TARGET and remove it, as one step.

    Both live in one container if the source is named TARGET#transaction.<32 hex digits>.
    """
    length = with_client(server, lambda client: client.merge(target, source))
    print_record({"name": target, "length": length}, output)


@segment.command()
@click.argument("names", nargs=-1, required=True)
@server_option
def delete(names: tuple[str, ...], server: str) -> None:
    """Remove segments for good."""

    async def work(client: HttpClient) -> None:
        for name in names:
            await client.delete(name)

    with_client(server, work)


@segment.command()
@click.argument("name", required=False)
@server_option
def flush(name: str | None, server: str) -> None:
    """Wait until what was acknowledged so far is in Tier 2: of NAME's container, or of all.

    Of all means everything: deletions, streams and tables as well.
    """

    async def work(client: HttpClient) -> None:
        if name is None:
            await client.flush_all()
        else:
            await client.flush(name)

    with_client(server, work)


@segment.command()
@click.argument("file", metavar="FILE.seg", type=click.Path(path_type=Path))
@click.option("--records", is_flag=True, help="Every record, not only blocks.")
@output_option
def inspect(file: Path, records: bool, output: str) -> int:
    """Prove a file of a topic's records and list its blocks. It needs no store.

    The format is docs/segment-files.md. Ends with 7 if anything in the file is damaged; what is sound is listed.
    """
    found = RecordFileInspection(file)
    if not records:
        print_rows(found.header_rows(), output)
        if output == "table":
            click.echo()
    print_rows(list(found.record_rows() if records else found.block_rows()), output)
    for damage in found.damages:
        click.echo(f"damaged: {damage}", err=True)
    return ExitCode.CORRUPT if found.damages else ExitCode.OK
