"""`segmentstore backup ...`: points in time of a whole store, kept in its Tier 2.

A backup costs nothing when it is made; from then on Tier 2 keeps what it names. It protects from deletions and
mistakes, not from the loss of Tier 2: `restore` copies it elsewhere.
"""

import asyncio
from pathlib import Path

import click

from segmentstore.cli.exit_codes import ExitCode, exit_code_of_kind
from segmentstore.cli.options import with_client
from segmentstore.cli.output import Row, output_option, print_rows
from segmentstore.recovery import tier2_access
from segmentstore.recovery.survey import shown_time

data_option = click.option(
    "--data",
    "data_directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Data directory of a store that is not running.",
)
server_option = click.option(
    "--server", default="", metavar="URL", help="Address of a store that is running."
)
tier2_option = click.option(
    "--tier2", "tier2_place", default="", metavar="s3://...", help="If Tier 2 is in a bucket."
)


@click.group()
def backup() -> None:
    """Keep the store as it is now, and get it back as it was.

    Each container keeps the version of its manifest: objects that it names are not deleted until the backup is dropped.
    """


@backup.command()
@click.argument("name")
@server_option
@data_option
@tier2_option
@output_option
def pin(name: str, server: str, data_directory: Path | None, tier2_place: str, output: str) -> None:
    """Flush everything and keep it as NAME. Pinning a complete one again changes nothing.

    With --server the store goes on serving; with --data it must not be running.
    """
    directory = _directory_unless_online(server, data_directory, tier2_place)
    if directory is None:
        pinned = with_client(server, lambda client: client.make_backup(name))
        print_rows([_shown(row) for row in pinned], output)
    else:
        from segmentstore.recovery.offline_store import make_backup  # loads the whole service

        kept = asyncio.run(make_backup(name, directory, tier2_place=tier2_place))
        rows: list[Row] = [
            {
                "backup": pinned.name,
                "container": container_id,
                "epoch": pinned.epoch,
                "root_version": pinned.version,
                "made": shown_time(pinned.created_ms),
            }
            for container_id, pinned in kept.items()
        ]
        print_rows(rows, output)


@backup.command("list")
@click.argument("place", metavar="DIR|URL", default="")
@server_option
@output_option
def list_backups(place: str, server: str, output: str) -> None:
    """Show the backups in a Tier 2, running or not, or those of the store at --server.

    One that is not proved was not made to its end, or is being made: it cannot be restored. Make it again, or drop it.
    """
    if bool(place) == bool(server):
        raise click.UsageError("name a Tier 2 or --server, one of them")
    if server:
        found = with_client(server, lambda client: client.list_backups())
        print_rows([_shown(row) for row in found], output)
    else:
        rows: list[Row] = [
            {
                "backup": each.name,
                "made": shown_time(each.made_ms),
                "containers": each.containers,
                "proved": each.is_proved,
                "complete": each.is_complete,
            }
            for each in asyncio.run(tier2_access.list_backups(place))
        ]
        print_rows(rows, output)


@backup.command()
@click.argument("name")
@server_option
@data_option
@tier2_option
def drop(name: str, server: str, data_directory: Path | None, tier2_place: str) -> int:
    """Keep NAME no longer; what only it named is deleted after a while."""
    directory = _directory_unless_online(server, data_directory, tier2_place)
    if directory is None:
        dropped = with_client(server, lambda client: client.drop_backup(name))
    else:
        from segmentstore.recovery.offline_store import drop_backups  # loads the whole service

        dropped = asyncio.run(drop_backups([name], directory, tier2_place=tier2_place))
    if not dropped:
        click.echo(f"error: there is no backup of that name name={name!r}", err=True)
    return ExitCode.OK if dropped else ExitCode.NOT_FOUND


@backup.command()
@click.argument("name")
@click.option(
    "--from", "place", required=True, metavar="DIR|URL", help="The Tier 2 that has the backup."
)
@click.option(
    "--data",
    "data_directory",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="New data directory.",
)
@click.option(
    "--with-damage", is_flag=True, help="Go on although objects that the backup needs are gone."
)
@click.option("--quiet", is_flag=True, help="No progress bar.")
@output_option
def restore(
    name: str, place: str, data_directory: Path, with_damage: bool, quiet: bool, output: str
) -> int:
    """Copy the store as it was at NAME into a new data directory; the store that it is copied from goes on.

    The copy is a store of its own, in volumes. Streams are made to agree with their segments, as after `recover`. If it
    was cut off, run it again. A backup is found also if manifests of its store are damaged or gone.
    """
    from segmentstore.recovery.restore import restore_backup  # loads the whole service

    result = asyncio.run(
        restore_backup(name, place, data_directory, with_damage=with_damage, quiet=quiet)
    )
    print_rows(result.rows, output)
    for remark in result.remarks:
        click.echo(remark, err=True)
    return exit_code_of_kind(result.failure)


def _directory_unless_online(
    server: str, data_directory: Path | None, tier2_place: str
) -> Path | None:
    """The directory to open, or None where a server does it. Raises UsageError unless one of them is named."""
    if bool(server) == (data_directory is not None):
        raise click.UsageError("name --server, if the store is running, or --data, if it is not")
    if server and tier2_place:
        raise click.UsageError("a running store knows its Tier 2: --tier2 goes with --data")
    return data_directory


def _shown(answer: Row) -> Row:
    """A row of the server, with its date as a person reads it."""
    kept = {key: value for key, value in answer.items() if key != "made_ms"}
    return {**kept, "made": shown_time(int(answer["made_ms"] or 0))}
