"""Results on stdout: a table for people, JSON for programs. The progress of long work on stderr."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import click

from segmentstore.contracts.identifiers import BufferView

Field: TypeAlias = str | int | float | bool | None
Row: TypeAlias = Mapping[str, Field]
Progress: TypeAlias = Callable[[int, int], None]
"""Called with what is done and all that there is."""

output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="How results are written to stdout.",
)


def print_rows(rows: Sequence[Row], output: str, columns: Sequence[str] | None = None) -> None:
    """Many results: an aligned table with a heading, or one JSON object a line."""
    if output == "json":
        for row in rows:
            click.echo(json.dumps(dict(row), ensure_ascii=False))
        return
    if not rows:
        return
    names = list(columns or rows[0])
    table = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(names))]
    numeric = [
        all(
            isinstance(row.get(name), (int, float)) and not isinstance(row.get(name), bool)
            for row in rows
        )
        for name in names
    ]
    for line in table:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def print_record(record: Row, output: str) -> None:
    """One result: a line for each field, or one JSON object."""
    if output == "json":
        click.echo(json.dumps(dict(record), ensure_ascii=False))
        return
    width = max(len(name) for name in record)
    for name, value in record.items():
        click.echo(f"{name.ljust(width)}  {_cell(value)}")


def write_bytes(content: BufferView) -> None:
    """Segment bytes to stdout, as they are."""
    sys.stdout.buffer.write(content)


def flush_bytes() -> None:
    """Hand over what was written: a follower wants it now."""
    sys.stdout.buffer.flush()


def _cell(value: Field) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return str(value)


@contextmanager
def progress_bar(label: str, unit: str, *, quiet: bool) -> Iterator[Progress]:
    """On stderr, with its rate and the time that is left; nothing where that is no terminal."""
    from tqdm import tqdm

    with tqdm(
        unit=unit, unit_scale=True, desc=label, file=sys.stderr, disable=quiet or None
    ) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield progress
