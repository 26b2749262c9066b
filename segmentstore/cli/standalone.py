"""`segmentstore standalone`: the whole store in this process."""

import sys
from pathlib import Path

import click

from segmentstore.cli.setting_options import resolve, setting_options


@click.command()
@setting_options
def standalone(
    config_file: Path | None, assignments: tuple[str, ...], **short_flags: str | None
) -> None:
    """Serve a store from one process until SIGTERM or SIGINT.

    Prints one line beginning with 'ready' when it takes requests; its log goes to stderr.
    """
    resolved = resolve(config_file, assignments, **short_flags)
    from segmentstore.host.standalone import run_standalone

    def announce(line: str) -> None:
        click.echo(line)
        sys.stdout.flush()

    run_standalone(resolved, announce)
