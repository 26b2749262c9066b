"""`segmentstore config ...`: what the settings are, and where each value comes from."""

from pathlib import Path

import click

from segmentstore.cli.exit_codes import ExitCode
from segmentstore.cli.output import output_option, print_rows
from segmentstore.cli.setting_options import resolve, setting_options
from segmentstore.host.settings import SettingsError


@click.group()
def config() -> None:
    """Show and check settings. Flags win over the environment, that over the file, that over defaults."""


@config.command()
@setting_options
@click.option("--sources", is_flag=True, help="Also say which source gave each value.")
@click.option("--explain", is_flag=True, help="Also say what each setting is for.")
@output_option
def show(
    sources: bool,
    explain: bool,
    output: str,
    config_file: Path | None,
    assignments: tuple[str, ...],
    **short_flags: str | None,
) -> None:
    """Show the value of every setting as a server started with the same options would have it."""
    resolved = resolve(config_file, assignments, **short_flags)
    rows = []
    for each in resolved.each:
        row = {"setting": each.definition.full_name, "value": each.shown}
        if sources:
            row["source"] = each.source
        if explain:
            row["environment"] = each.definition.environment_name
            row["meaning"] = each.definition.rule.sentence
        rows.append(row)
    print_rows(rows, output)


@config.command()
@setting_options
def check(config_file: Path | None, assignments: tuple[str, ...], **short_flags: str | None) -> int:
    """Check all sources: silent and 0 if they are sound, else one line a problem and 2."""
    try:
        resolve(config_file, assignments, **short_flags)
    except SettingsError as error:
        for problem in error.problems:
            click.echo(f"error: {problem}", err=True)
        return ExitCode.USAGE
    return ExitCode.OK
