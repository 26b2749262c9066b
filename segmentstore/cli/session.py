"""One command against a server: the server option, a client for the command's time, a loop to run it on."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:  # the client brings aiohttp along, which `--help` must not wait for
    from segmentstore.cli.http_client import HttpClient

DEFAULT_SERVER = "http://127.0.0.1:9091"

_Result = TypeVar("_Result")

server_option = click.option(
    "--server",
    envvar="SEGMENTSTORE_SERVER",
    default=DEFAULT_SERVER,
    show_default=True,
    help="Address of the store.  [env: SEGMENTSTORE_SERVER]",
)


def with_client(
    server: str, work: Callable[["HttpClient"], Coroutine[None, None, _Result]]
) -> _Result:
    """Run the work with an open client. Raises what the work raises."""
    from segmentstore.cli.http_client import HttpClient

    async def run() -> _Result:
        async with HttpClient(server) as client:
            return await work(client)

    return asyncio.run(run())
