"""`segmentstore bench`: how fast a server takes and gives bytes, seen from an HTTP client."""

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from segmentstore.cli.output import Row, output_option, print_rows
from segmentstore.cli.quantity_types import BYTES, SECONDS
from segmentstore.cli.session import with_client

if TYPE_CHECKING:
    from segmentstore.cli.http_client import HttpClient


@click.command()
@click.option(
    "--server",
    envvar="SEGMENTSTORE_SERVER",
    help="Address of the store; one of its own in a temporary directory if left out.",
)
@click.option("--seconds", type=SECONDS, default="3s", show_default=True, help="Time for each row.")
@click.option(
    "--writers",
    type=click.IntRange(1, 1000),
    default=16,
    show_default=True,
    help="Appenders at once.",
)
@click.option(
    "--size",
    "sizes",
    type=BYTES,
    multiple=True,
    default=("100B", "10KB", "1MiB"),
    show_default=True,
    help="Bytes an append. Repeatable.",
)
@output_option
def bench(
    server: str | None, seconds: float, writers: int, sizes: tuple[int, ...], output: str
) -> None:
    """Measure durable appends and reads over HTTP.

    Every writer waits for the acknowledgement of an append before it sends the next, so one row is `writers` appends in
    flight. The segments it makes are deleted again.
    """
    from segmentstore.cli.bench_run import BenchRun
    from segmentstore.cli.server_process import ServerProcess

    with ExitStack() as stack:
        if server is None:
            directory = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="segmentstore-"))
            )
            server = stack.enter_context(ServerProcess(directory / "data")).address

        async def work(client: "HttpClient") -> list[Row]:
            rows: list[Row] = []
            for size in sizes:
                rows += await BenchRun(client, size=size, writers=writers, seconds=seconds).run()
            return rows

        print_rows(with_client(server, work), output)
