"""`segmentstore load`: files and trees into segments, resumable."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from segmentstore.cli.load_plan import plan_load
from segmentstore.cli.output import output_option, print_rows
from segmentstore.cli.quantity_types import BYTES, SECONDS
from segmentstore.cli.session import server_option, with_client

if TYPE_CHECKING:
    from segmentstore.cli.http_client import HttpClient
    from segmentstore.cli.loader import LoadedSegment


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--prefix", help="Name prefix; by default the tree's own name and a slash.")
@click.option("--by-package", is_flag=True, help="One segment for each name at the top of a tree.")
@click.option(
    "--include", multiple=True, metavar="PATTERN", help="Only such file names, as '*.py'."
)
@click.option("--seal", is_flag=True, help="Seal each segment when it is complete.")
@click.option(
    "--jobs", type=click.IntRange(1, 64), default=4, show_default=True, help="Segments at once."
)
@click.option(
    "--piece", "piece_bytes", type=BYTES, default="1MiB", show_default=True, help="Bytes an append."
)
@click.option(
    "--retry",
    "retry_seconds",
    type=SECONDS,
    default="10s",
    show_default=True,
    help="How long an unavailable server is tried again.",
)
@click.option("--quiet", is_flag=True, help="No progress bar, no summary.")
@server_option
@output_option
def load(
    paths: tuple[Path, ...],
    prefix: str | None,
    by_package: bool,
    include: tuple[str, ...],
    seal: bool,
    jobs: int,
    piece_bytes: int,
    retry_seconds: float,
    quiet: bool,
    server: str,
    output: str,
) -> None:
    """Load files and trees, each file into a segment of its own.

    A file's segment is called like the file; the files of a tree are called TREE/path/in/tree. Run it again after an
    interruption: bytes that are there are compared with the files, and the rest is added, nothing twice.
    """
    from tqdm import tqdm

    from segmentstore.cli.loader import Loader

    plans = plan_load(paths, prefix=prefix, by_package=by_package, include=include)
    total = sum(plan.length for plan in plans)
    with tqdm(
        total=total,
        unit="B",
        unit_scale=True,
        desc=f"{len(plans)} segments",
        file=sys.stderr,
        disable=quiet,
    ) as bar:

        async def work(client: "HttpClient") -> "list[LoadedSegment]":
            loader = Loader(
                client=client,
                piece_bytes=piece_bytes,
                segments_at_once=jobs,
                seal=seal,
                give_up_seconds=retry_seconds,
                progress=bar.update,
            )
            return await loader.load(plans)

        loaded = with_client(server, work)
    if not quiet or output == "json":
        print_rows([asdict(each) for each in loaded], output)
