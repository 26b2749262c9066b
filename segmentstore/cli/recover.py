"""`segmentstore recover`: a store from what is left of it."""

import asyncio
from dataclasses import asdict
from pathlib import Path

import click

from segmentstore.cli.output import output_option, print_rows


@click.command()
@click.option(
    "--from-tier2",
    is_flag=True,
    required=True,
    help="Tier 1 is lost: begin new logs above everything that Tier 2 holds.",
)
@click.option(
    "--data",
    "data_directory",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Data directory that holds `tier2`.",
)
@output_option
def recover(*, from_tier2: bool, data_directory: Path, output: str) -> None:
    """Make a data directory usable again whose Tier 1 (or identity) was lost.

    Everything in Tier 2 is there afterwards; what was acknowledged in the last seconds and not yet flushed is lost with
    Tier 1. Start the store as usual then.
    """
    assert from_tier2, "the option is required: it is the only way so far, and has to be said"
    from segmentstore.cli.tier2_recovery import Tier2Recovery

    logs = asyncio.run(Tier2Recovery(data_directory).run())
    print_rows([asdict(each) for each in logs], output)
