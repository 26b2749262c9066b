"""`segmentstore tier2 ...`: Tier 2 as it is, with the service off."""

import asyncio
from contextlib import aclosing
from functools import partial

import click

from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.output import (
    Row,
    flush_bytes,
    output_option,
    print_rows,
    progress_bar,
    write_bytes,
)
from segmentstore.contracts.storage import SegmentRecord
from segmentstore.recovery.record_files_verification import (
    RecordFilesReport,
    verify_record_files,
)
from segmentstore.recovery.tier2_access import (
    NoSegmentsError,
    open_tier2,
    verify_containers,
    verify_volumes,
)

place_argument = click.argument("place", metavar="DIR|URL")


@click.group()
def tier2() -> None:
    """List, read and verify Tier 2 without the service.

    DIR|URL is a data directory, a Tier 2 directory, a file:// URL of either, or s3://BUCKET/PREFIX. Nothing is changed.
    """


@tier2.command("ls")
@place_argument
@click.argument("prefix", default="")
@output_option
def list_segments(place: str, prefix: str, output: str) -> int:
    """List the segments in Tier 2 whose name starts with PREFIX, in name order.

    Ends with 7 if those of some container cannot be found, because its manifest is missing or damaged.
    """
    rows, lost = asyncio.run(_segment_rows(place, prefix))
    print_rows(sorted(rows, key=lambda row: str(row["name"])), output)
    for why in lost:
        click.echo(f"error: {why}", err=True)
    return ExitCode.CORRUPT if lost else ExitCode.OK


@tier2.command()
@place_argument
@click.argument("name")
@click.option(
    "--offset", type=click.IntRange(min=0), help="First byte; the first one there is if left out."
)
@click.option(
    "--length", type=click.IntRange(min=0), help="Number of bytes; up to the end if left out."
)
def cat(place: str, name: str, offset: int | None, length: int | None) -> None:
    """Write the bytes of a segment, as far as they are in Tier 2, to stdout."""
    asyncio.run(_write_segment(place, name, offset, length))


@tier2.command()
@place_argument
@click.option("--deep", is_flag=True, help="Read and decompress every block as well.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
@output_option
def verify(place: str, deep: bool, quiet: bool, output: str) -> int:
    """Prove runs, layouts, catalog and references, and that every object is there; 7 if anything is damaged.

    So are the manifests that backups keep, which may need objects that the newest ones no longer name.

    So are the files of topics' records: each that is registered is there, they follow one another without a gap, and
    the batches follow them. Objects that look like such files and that nothing refers to are counted, and no damage.

    With --deep every chunk and every such file is read too, and every record of the volumes below, if there are any.
    Volumes that hold no segments (those of `segmentstore s3`) are verified by themselves. Nothing is repaired: that is
    for the store itself, which may still have the bytes (see the settings of its scrubber). But volumes that no service
    has open are opened as it would open them: after a kill their index is brought up to date, or made anew
    if it is damaged, and a torn write that was never answered is cut off. Orphans (objects
    that no manifest names, left by a crash) are shown and are no damage: the owner sweeps them.
    """
    foreign: NoSegmentsError | None = None
    try:
        rows, damages, files = asyncio.run(_verify(place, deep=deep, quiet=quiet))
    except NoSegmentsError as error:
        rows, damages, files, foreign = [], [], None, error
    volumes = asyncio.run(verify_volumes(place, deep=deep))
    if foreign is not None and volumes is None:
        raise foreign
    if volumes is not None:
        damages += volumes.problems
        click.echo(
            f"volumes: {volumes.volumes} with {volumes.bytes_of_volumes} bytes, {volumes.objects} objects,"
            f" {len(volumes.problems)} problems",
            err=True,
        )
    if files is not None and (files.files or files.unregistered_count or files.damage_count):
        damages += files.damages
        click.echo(
            f"files of records: {files.files} with {files.byte_count} bytes, {files.damage_count} problems,"
            f" {files.unregistered_count} objects that nothing refers to",
            err=True,
        )
    print_rows(rows, output)
    for damage in damages:
        click.echo(f"error: {damage}", err=True)
    return ExitCode.CORRUPT if damages else ExitCode.OK


async def _segment_rows(place: str, prefix: str) -> tuple[list[Row], list[str]]:
    """And why those of other containers cannot be found."""
    rows: list[Row] = []
    async with open_tier2(place, go_on=True) as opened:
        for container in opened.containers:
            async with aclosing(container.list_segments(prefix, "")) as records:
                rows += [_row(container.container_id, record) async for record in records]
        return rows, [each.why for each in opened.lost]


def _row(container_id: int, record: SegmentRecord) -> Row:
    return {
        "name": record.name,
        "start_offset": record.start_offset,
        "length": record.length,
        "sealed": record.sealed,
        "container": container_id,
        "segment_id": record.segment_id,
    }


async def _write_segment(place: str, name: str, offset: int | None, length: int | None) -> None:
    async with open_tier2(place, go_on=True) as opened:
        container = await opened.container_of(name)
        end = None
        if length is not None:
            record = await container.find(name)
            start = offset if offset is not None else record.start_offset if record else 0
            end = min(start + length, record.length if record else 0)
        async with aclosing(container.cat(name, start=offset, end=end)) as pieces:
            async for piece in pieces:
                write_bytes(piece)
    flush_bytes()


async def _verify(
    place: str, *, deep: bool, quiet: bool
) -> tuple[list[Row], list[str], RecordFilesReport]:
    rows: list[Row] = []
    damages: list[str] = []
    async with open_tier2(place, go_on=True) as opened:
        damages += [each.why for each in opened.lost]
        bar = partial(progress_bar, unit="B", quiet=quiet)
        for container_id, report in (await verify_containers(opened, deep=deep, bar=bar)).items():
            damages += report.damages
            rows.append(
                {
                    "container": container_id,
                    "root_version": report.root_version,
                    "segments": report.segments,
                    "segment_bytes": report.bytes_of_segments,
                    "runs": report.runs,
                    "chunks": report.chunks,
                    "garbage": report.garbage,
                    "backups": report.backups,
                    "orphans": report.orphan_count,
                    "damages": report.damage_count,
                }
            )
        with bar("files of records") as progress:
            files = await verify_record_files(opened, deep=deep, progress=progress)
    return rows, damages, files
