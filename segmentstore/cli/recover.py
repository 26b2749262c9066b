"""`segmentstore recover`: a store from what is left of it."""

import asyncio
from pathlib import Path

import click

from segmentstore.cli.exit_codes import exit_code_of_kind
from segmentstore.cli.output import output_option, print_rows

_IN_PLACE = ""


@click.command()
@click.option(
    "--from-tier2",
    "place",
    is_flag=False,
    flag_value=_IN_PLACE,
    required=True,
    metavar="[PLACE]",
    help="Where Tier 2 is: s3://BUCKET/PREFIX, a data directory or its `tier2`; left out: in DATA itself.",
)
@click.option(
    "--data",
    "data_directory",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Data directory to make usable; made if it is not there.",
)
@click.option(
    "--tier1",
    default="",
    metavar="file|bookkeeper://ZK1,ZK2/LEDGERS",
    help="Where the logs are, or shall be.  [default: where DATA says, else file]",
)
@click.option("--copy", is_flag=True, help="Copy Tier 2 into DATA instead of using it where it is.")
@click.option("--dry-run", is_flag=True, help="Say what is there and what would be done.")
@click.option(
    "--with-damage",
    is_flag=True,
    help="Go on although Tier 2 itself has lost something: see the report of a dry run first.",
)
@click.option(
    "--begin-anew",
    metavar="ID",
    type=click.IntRange(min=0),
    multiple=True,
    help="A container without a sound manifest begins empty; what is left of it is deleted later. Repeatable.",
)
@click.option("--no-repair", is_flag=True, help="Leave streams as they are; see above.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
@output_option
def recover(
    *,
    place: str,
    data_directory: Path,
    tier1: str,
    copy: bool,
    dry_run: bool,
    with_damage: bool,
    begin_anew: tuple[int, ...],
    no_repair: bool,
    quiet: bool,
    output: str,
) -> int:
    """Make a store usable again whose Tier 1 (or everything but Tier 2) was lost.

    Everything in Tier 2 is there afterwards; what was acknowledged in the last seconds and not yet flushed is lost with
    Tier 1. A Tier 2 in another directory is used where it is, through a link from DATA, unless it is copied; a bucket
    stays where it is. In the end streams are made to agree with their segments: what is missing is created empty and
    reported, nothing is deleted; transactions that are open are aborted. Running it again does what is left to do.

    If Tier 2 has lost something itself (objects that layouts name, manifests), that is told, the exit code is 7, and
    nothing is done without --with-damage. With it the rest is recovered: reading what is lost is an error, and a
    container without a sound manifest is refused by the store, with everything that is left of it untouched, until its
    manifest is brought back or it is told to --begin-anew.
    """
    # Both load the whole service.
    from segmentstore.recovery.recover import RecoveryOptions, recover_store
    from segmentstore.recovery.report import COLUMNS

    result = asyncio.run(
        recover_store(
            RecoveryOptions(
                place=place,
                data=data_directory,
                copy=copy,
                dry=dry_run,
                repair=not no_repair,
                with_damage=with_damage,
                begin_anew=tuple(sorted(set(begin_anew))),
                quiet=quiet,
                tier1=tier1,
            )
        )
    )
    print_rows(result.rows, output, COLUMNS)
    for remark in result.remarks:
        click.echo(remark, err=True)
    return exit_code_of_kind(result.failure)
