"""`segmentstore log ...`: Tier 1 as it is on disk, with the service off.

`inspect` reads a log from its files, as recovery would, and changes nothing; `enable` undoes a disable() of the log.
"""

import asyncio
from pathlib import Path

import click

from segmentstore.cli.output import Row, output_option, print_rows
from segmentstore.recovery.log_inspection import LogInspection, enable_log, log_directories


@click.group()
def log() -> None:
    """Look into the durable logs of a data directory."""


@log.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--operations", is_flag=True, help="Every operation, not only the frames.")
@output_option
def inspect(directory: Path, operations: bool, output: str) -> None:
    """List the frames of a log that count, oldest first, and what is in them.

    DIRECTORY is a data directory (all its logs) or the directory of one log. Nothing is locked or changed; the log of
    a running store may move on meanwhile.
    """

    rows: list[Row] = []
    for path in log_directories(directory):
        inspection = LogInspection(path)
        rows += inspection.operation_rows() if operations else inspection.frame_rows()
    print_rows(rows, output)


@log.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
def enable(directory: Path) -> None:
    """Allow a log to be opened again that was disabled after corruption.

    DIRECTORY is the directory of that one log. Look at the evidence first: the container did not stop for nothing.
    """

    asyncio.run(enable_log(directory))
