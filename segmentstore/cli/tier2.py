"""`segmentstore tier2 ...`: Tier 2 as it is, with the service off."""

import click


@click.group()
def tier2() -> None:
    """List, read and verify Tier 2 without the service."""
