"""`segmentstore reader-group ...`: groups of readers that share streams. A group is named SCOPE/GROUP."""

import click

from segmentstore.cli.options import controller_option, with_store
from segmentstore.cli.output import Row, output_option, print_record, print_rows
from segmentstore.client.reader_group import StartAt
from segmentstore.client.store import Store
from segmentstore.client.stream_segments import StreamCut


@click.group("reader-group")
def reader_group() -> None:
    """Create, list, inspect and delete reader groups (SCOPE/GROUP)."""


@reader_group.command()
@click.argument("name")
@click.argument("streams", nargs=-1, required=True)
@click.option("--from-tail", is_flag=True, help="Read only what is written from now on.")
@click.option("--from", "cuts", multiple=True, metavar="CUT", help="Where to begin in a stream.")
@controller_option
@output_option
def create(
    name: str,
    streams: tuple[str, ...],
    from_tail: bool,
    cuts: tuple[str, ...],
    controller: str,
    output: str,
) -> None:
    """Create a group that reads STREAMS of its scope (or SCOPE/STREAM), from their heads by default."""
    if from_tail and cuts:
        raise click.UsageError("begin at the tail or at cuts, not at both")
    start = StartAt.TAIL if from_tail else [StreamCut.parse(cut) for cut in cuts]
    with_store(controller, lambda store: store.reader_group(name).create(streams, start=start))
    print_record({"reader_group": name, "streams": ",".join(streams)}, output)


@reader_group.command("list")
@click.argument("scope")
@controller_option
@output_option
def list_groups(scope: str, controller: str, output: str) -> None:
    """List the reader groups of a scope in name order."""
    names = with_store(controller, lambda store: store.scope(scope).reader_groups())
    print_rows([{"reader_group": f"{scope}/{name}"} for name in names], output)


@reader_group.command()
@click.argument("name")
@controller_option
@output_option
def info(name: str, controller: str, output: str) -> None:
    """Show who reads what, and the positions that are stored: a line for each reader, then one for each stream."""

    async def work(store: Store) -> list[Row]:
        found = await store.reader_group(name).info()
        rows: list[Row] = [
            {"kind": "reader", "name": reader, "value": " ".join(segments)}
            for reader, segments in found.readers.items()
        ]
        if found.unassigned:
            rows.append({"kind": "unassigned", "name": "", "value": " ".join(found.unassigned)})
        rows += [
            {"kind": "position", "name": stream, "value": str(cut)}
            for stream, cut in found.cuts.items()
        ]
        return rows

    print_rows(with_store(controller, work), output)


@reader_group.command()
@click.argument("name")
@controller_option
def delete(name: str, controller: str) -> None:
    """Forget a group and its positions."""
    with_store(controller, lambda store: store.reader_group(name).delete())
