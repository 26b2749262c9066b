"""`segmentstore table ...`: key-value tables. A table is named SCOPE/TABLE.

Keys are text of a fixed number of bytes; shorter ones are filled up with zero bytes, which results leave out
again.
"""

from contextlib import aclosing

import click

from segmentstore.cli.options import controller_option, with_store
from segmentstore.cli.output import Row, output_option, print_record, print_rows
from segmentstore.client.errors import NotFoundError
from segmentstore.client.store import Store
from segmentstore.client.table import Table
from segmentstore.contracts.tables import TableEntry


@click.group()
def table() -> None:
    """Create, fill, read and delete key-value tables (SCOPE/TABLE)."""


@table.command()
@click.argument("name")
@click.option(
    "--key-length",
    type=click.IntRange(1, 8192),
    default=32,
    show_default=True,
    help="Bytes of a key; shorter ones are filled up with zeros.",
)
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Segments that share its entries.",
)
@controller_option
@output_option
def create(name: str, key_length: int, partitions: int, controller: str, output: str) -> None:
    """Create an empty table."""
    with_store(
        controller,
        lambda store: store.table(name).create(key_length=key_length, partitions=partitions),
    )
    print_record({"table": name, "key_length": key_length, "partitions": partitions}, output)


@table.command()
@click.argument("name")
@click.argument("key")
@click.argument("value")
@click.option(
    "--version",
    type=click.IntRange(min=-1),
    help="Only if the entry has this version; -1: if it is new.",
)
@controller_option
@output_option
def put(name: str, key: str, value: str, version: int | None, controller: str, output: str) -> None:
    """Set an entry and print its new version."""

    async def work(store: Store) -> int:
        found = store.table(name)
        filled = await _filled(found, key)
        if version is None:
            return await found.put(filled, value.encode())
        return await found.replace(filled, value.encode(), version=version)

    print_record({"key": key, "version": with_store(controller, work)}, output)


@table.command()
@click.argument("name")
@click.argument("key")
@controller_option
@output_option
def get(name: str, key: str, controller: str, output: str) -> None:
    """Print an entry."""

    async def work(store: Store) -> Row:
        found = store.table(name)
        entry = await found.get(await _filled(found, key))
        if entry is None:
            raise NotFoundError("table key", key)
        return _row(entry)

    print_record(with_store(controller, work), output)


@table.command()
@click.argument("name")
@click.argument("key")
@click.option("--version", type=click.IntRange(min=0), help="Only if the entry has this version.")
@controller_option
def remove(name: str, key: str, version: int | None, controller: str) -> None:
    """Remove an entry; without --version a missing one is fine."""

    async def work(store: Store) -> None:
        found = store.table(name)
        await found.remove(await _filled(found, key), version=version)

    with_store(controller, work)


@table.command()
@click.argument("name")
@click.option("--first", help="First key.")
@click.option("--last", help="Last key, included.")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many.")
@controller_option
@output_option
def entries(
    name: str,
    first: str | None,
    last: str | None,
    limit: int | None,
    controller: str,
    output: str,
) -> None:
    """Print entries in key order."""

    async def work(store: Store) -> list[Row]:
        found = store.table(name)
        begin = await _filled(found, first) if first is not None else None
        end = await _filled(found, last) if last is not None else None
        rows: list[Row] = []
        async with aclosing(found.entries(begin, end)) as all_entries:
            async for entry in all_entries:
                rows.append(_row(entry))
                if len(rows) == limit:
                    break
        return rows

    print_rows(with_store(controller, work), output, ("key", "value", "version"))


@table.command("list")
@click.argument("scope")
@controller_option
@output_option
def list_tables(scope: str, controller: str, output: str) -> None:
    """List the tables of a scope in name order."""
    names = with_store(controller, lambda store: store.scope(scope).tables())
    print_rows([{"table": f"{scope}/{name}"} for name in names], output)


@table.command()
@click.argument("name")
@controller_option
def delete(name: str, controller: str) -> None:
    """Remove a table and all its entries."""
    with_store(controller, lambda store: store.table(name).delete())


async def _filled(found: Table, key: str) -> bytes:
    """The key at the table's length; one that is too long is refused by the table."""
    return key.encode().ljust((await found.config()).key_length, b"\0")


def _row(entry: TableEntry) -> Row:
    return {
        "key": entry.key.rstrip(b"\0").decode(errors="backslashreplace"),
        "value": entry.value.decode(errors="backslashreplace"),
        "version": entry.version,
    }
