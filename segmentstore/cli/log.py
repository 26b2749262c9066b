"""`segmentstore log ...`: Tier 1 as it is on disk or in BookKeeper.

`inspect` reads a log as recovery would, and changes nothing; `enable` undoes a disable() of the log; `set-aside` takes
a log out of the way of a recovery from Tier 2; `sweep` deletes ledgers that no log will ever name.
"""

import asyncio
from pathlib import Path

import click

from segmentstore.cli.config import environment
from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.output import output_option, print_rows
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.recovery.log_inspection import (
    LogInspection,
    LogsSeen,
    enable_log,
    log_directories,
)

place_argument = click.argument("place", metavar="DIRECTORY|URL")
container_option = click.option(
    "--container", metavar="ID", type=click.IntRange(min=0), help="Only the log of this container."
)


@click.group()
def log() -> None:
    """Look into the durable logs of a store.

    They are below a data directory, or in BookKeeper: then DIRECTORY is a data directory that says where, or URL is
    bookkeeper://ZK1,ZK2/LEDGERS, with the root of the records in SEGMENTSTORE_BOOKKEEPER_ROOT.
    """


@log.command()
@place_argument
@container_option
@click.option("--operations", is_flag=True, help="Every operation, not only frames or ledgers.")
@output_option
def inspect(place: str, container: int | None, operations: bool, output: str) -> int:
    """List the frames of a log that count, oldest first, or its ledgers, and what is in them.

    DIRECTORY is a data directory (all its logs) or the directory of one log. Nothing is locked, fenced or changed; the
    log of a running store may move on meanwhile. Ends with 7 if a log is damaged, or a ledger is gone; other logs are
    shown all the same.
    """
    seen = LogsSeen()
    try:
        if not asyncio.run(look_in_cluster(place, container, seen, operations=operations)):
            _look_in_directory(Path(place), container, seen, operations=operations)
    finally:
        _print_seen(seen, output)
    is_damaged = bool(seen.damages) or any(row.get("damage") for row in seen.rows)
    return ExitCode.CORRUPT if is_damaged else ExitCode.OK


@log.command()
@place_argument
@container_option
def enable(place: str, container: int | None) -> None:
    """Allow a log to be opened again that was disabled after corruption.

    DIRECTORY is the directory of that one log, or, with --container, a data directory. Look at the evidence first: the
    container did not stop for nothing.
    """

    async def work() -> None:
        from segmentstore.recovery import cluster_logs  # loads the whole service

        async with cluster_logs.open_cluster_of(place, environment=environment()) as opened:
            if opened is None:
                await enable_log(Path(place), container)
            else:
                await cluster_logs.enable_log(opened, _named(container))

    asyncio.run(work())


@log.command("set-aside")
@place_argument
@container_option
def set_aside(place: str, container: int | None) -> None:
    """Take a log out of its store as lost, so that `recover --from-tier2` makes a new one.

    What was acknowledged and not flushed is in that log alone. Nothing is deleted: in a data directory, whose store
    must not be running, the log's directory gets another name, which is printed. In BookKeeper its ledgers stay, and
    its record gets another name; a process that still writes the log is fenced, as far as its bookies answer.
    """

    async def work() -> str:
        # Both load the whole service.
        from segmentstore.recovery import cluster_logs
        from segmentstore.recovery.rebuilt_logs import set_file_log_aside

        async with cluster_logs.open_cluster_of(place, environment=environment()) as opened:
            if opened is None:
                return await set_file_log_aside(Path(place), _named(container))
            return await cluster_logs.set_log_aside(opened, _named(container))

    click.echo(asyncio.run(work()))


@log.command()
@place_argument
@container_option
@output_option
def sweep(place: str, container: int | None, output: str) -> int:
    """Delete empty ledgers that a process made and did not write into the record of its log before it died.

    The store may be at work: a ledger that its present owner made stays. Each ledger of the cluster is looked at, those
    of other stores too. Ends with 7 if one has entries that no record names: it stays, and is evidence. So it does
    if the record of a log is damaged, and goes on with the others.
    """
    seen = LogsSeen()

    async def work() -> None:
        from segmentstore.recovery import cluster_logs  # loads the whole service

        async with cluster_logs.open_cluster_of(place, environment=environment()) as opened:
            if opened is None:
                raise InvalidRequestError(
                    f"the logs are in the data directory, which has no ledgers path={place}"
                )
            await cluster_logs.see_logs(opened, container, cluster_logs.sweep_ledgers, seen)

    try:
        asyncio.run(work())
    finally:
        _print_seen(seen, output)
    is_found = bool(seen.damages) or any(row["entries"] for row in seen.rows)
    return ExitCode.CORRUPT if is_found else ExitCode.OK


def _print_seen(seen: LogsSeen, output: str) -> None:
    """Also of a look that ends early, because bookies of the next log do not answer: what was deleted is gone."""
    print_rows(seen.rows, output)
    for damage in seen.damages:
        click.echo(f"error: {damage}", err=True)


def _look_in_directory(
    place: Path, container: int | None, seen: LogsSeen, *, operations: bool
) -> None:
    for path in log_directories(place, container):
        with seen.looking_at(path.name):
            inspection = LogInspection(path)
            seen.rows += inspection.operation_rows() if operations else inspection.frame_rows()


async def look_in_cluster(
    place: str, container: int | None, seen: LogsSeen, *, operations: bool
) -> bool:
    """Add what `inspect` shows. False, and nothing, if the logs are in a directory."""
    from segmentstore.recovery import cluster_logs  # loads the whole service

    async with cluster_logs.open_cluster_of(place, environment=environment()) as opened:
        if opened is None:
            return False
        read = cluster_logs.operation_rows if operations else cluster_logs.ledger_rows
        await cluster_logs.see_logs(opened, container, read, seen)
        return True


def _named(container: int | None) -> int:
    if container is None:
        raise InvalidRequestError("name the log with --container")
    return container
