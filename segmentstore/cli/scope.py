"""`segmentstore scope ...`: name spaces of streams."""

import click

from segmentstore.cli.options import controller_option, with_store
from segmentstore.cli.output import output_option, print_record, print_rows


@click.group()
def scope() -> None:
    """Create, list and delete scopes."""


@scope.command()
@click.argument("name")
@controller_option
@output_option
def create(name: str, controller: str, output: str) -> None:
    """Create an empty scope."""
    with_store(controller, lambda store: store.scope(name).create())
    print_record({"scope": name}, output)


@scope.command("list")
@controller_option
@output_option
def list_scopes(controller: str, output: str) -> None:
    """List all scopes."""
    names = with_store(controller, lambda store: store.scopes())
    print_rows([{"scope": name} for name in names], output)


@scope.command()
@click.argument("name")
@controller_option
def delete(name: str, controller: str) -> None:
    """Remove an empty scope."""
    with_store(controller, lambda store: store.scope(name).delete())
