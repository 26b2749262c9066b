"""One command against a controller: the option, a client for the command's time, a loop to run it on."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:  # the client brings gRPC along, which `--help` must not wait for
    from segmentstore.client.store import Store

DEFAULT_CONTROLLER = "tcp://127.0.0.1:9090"

_Result = TypeVar("_Result")

controller_option = click.option(
    "--controller",
    envvar="SEGMENTSTORE_CONTROLLER",
    default=DEFAULT_CONTROLLER,
    show_default=True,
    help="Address of the controller.  [env: SEGMENTSTORE_CONTROLLER]",
)


def with_store(
    controller: str, work: Callable[["Store"], Coroutine[None, None, _Result]]
) -> _Result:
    """Run the work with an open client. Raises what the work raises."""
    from segmentstore.client.store import connect

    async def run() -> _Result:
        async with connect(controller) as store:
            return await work(store)

    return asyncio.run(run())
