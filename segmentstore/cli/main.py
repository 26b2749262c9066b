"""The `segmentstore` command: noun, verb, arguments.

Invariants:

- Results go to stdout, everything else to stderr; an error is one sentence.
- The exit code says what to do (see `exit_codes`).
- `--help` is quick: whatever is heavy is imported by the command that needs it.
"""

import sys

import click

from segmentstore.cli.backup import backup
from segmentstore.cli.bench import bench
from segmentstore.cli.config import config
from segmentstore.cli.exit_codes import ExitCode, exit_code_of
from segmentstore.cli.load import load
from segmentstore.cli.log import log
from segmentstore.cli.reader_group import reader_group
from segmentstore.cli.recover import recover
from segmentstore.cli.scope import scope
from segmentstore.cli.segment import segment
from segmentstore.cli.serve import s3, standalone
from segmentstore.cli.spark import spark
from segmentstore.cli.stream import stream
from segmentstore.cli.table import table
from segmentstore.cli.tier2 import tier2
from segmentstore.cli.txn import txn
from segmentstore.contracts.errors import SegmentStoreError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="segmentstore")
def cli() -> None:
    """A tiered segment store: append-only segments, durable at once, cheap in the long run.

    \b
    Exit codes: 0 ok, 1 error, 2 usage, 3 not found, 4 conflict,
                5 unavailable, 6 full, 7 corrupt, 130 interrupted.
    """


for command in (
    standalone,
    s3,
    segment,
    scope,
    stream,
    reader_group,
    txn,
    table,
    load,
    log,
    tier2,
    recover,
    backup,
    spark,
    bench,
    config,
):
    cli.add_command(command)


def main() -> None:
    """Run the command line and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """The exit code of one command line."""
    try:
        result = cli.main(arguments, prog_name="segmentstore", standalone_mode=False)
    except click.Abort:
        return ExitCode.INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except SegmentStoreError as error:
        click.echo(f"error: {error}", err=True)
        return exit_code_of(error)
    except SystemExit:
        # Only one thing makes click exit here: whoever reads our output has seen enough, as `head` has.
        return ExitCode.OK
    except OSError as error:
        click.echo(f"error: {error}", err=True)
        return ExitCode.ERROR
    return result if isinstance(result, int) else ExitCode.OK
