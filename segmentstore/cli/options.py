"""Arguments that many commands take, and a client for the time of one command.

Sizes (`BYTES`) and durations (`SECONDS`) carry units. `with_client` runs a command's work against a server over HTTP
(`--server`), `with_store` against a controller through the asyncio client (`--controller`), `with_topics` against a
server of Kafka's protocol (`--kafka`). Each runs a loop of its own and imports its client only when it is called: no
command needs two.
"""

import asyncio
import errno
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, TypeVar

import click

from segmentstore.codec.quantities import format_bytes, parse_bytes, parse_seconds

if TYPE_CHECKING:
    # One brings aiohttp along, the other gRPC.
    from segmentstore.cli.http_client import HttpClient
    from segmentstore.client.store import Store
    from segmentstore.client.topics import Topics

DEFAULT_SERVER = "http://127.0.0.1:9091"
DEFAULT_CONTROLLER = "tcp://127.0.0.1:9090"
DEFAULT_KAFKA = "127.0.0.1:9092"
_CONNECT_SECONDS = 5.0

_Result = TypeVar("_Result")


class BytesType(click.ParamType[int]):
    """`64MiB`, `1MB`, `100`; within bounds, both included."""

    name = "size"

    def __init__(self, *, least: int = 0, most: int | None = None) -> None:
        self._least = least
        self._most = most

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        try:
            size = parse_bytes(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if size < self._least:
            self.fail(f"{value!r} is less than {format_bytes(self._least)}", param, ctx)
        if self._most is not None and size > self._most:
            self.fail(f"{value!r} is more than {format_bytes(self._most)}", param, ctx)
        return size


class SecondsType(click.ParamType[float]):
    """`10s`, `250ms`, `2`."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        try:
            return parse_seconds(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


BYTES = BytesType()
SOME_BYTES = BytesType(least=1)
"""Of what would never get on in steps of nothing."""
APPEND_BYTES = BytesType(least=1, most=64 << 20)
"""Of one append over HTTP: no server takes one that is longer, whatever its settings."""
SECONDS = SecondsType()

server_option = click.option(
    "--server",
    envvar="SEGMENTSTORE_SERVER",
    default=DEFAULT_SERVER,
    show_default=True,
    help="Address of the store.  [env: SEGMENTSTORE_SERVER]",
)


controller_option = click.option(
    "--controller",
    envvar="SEGMENTSTORE_CONTROLLER",
    default=DEFAULT_CONTROLLER,
    show_default=True,
    help="Address of the controller.  [env: SEGMENTSTORE_CONTROLLER]",
)

kafka_option = click.option(
    "--kafka",
    envvar="SEGMENTSTORE_KAFKA",
    default=DEFAULT_KAFKA,
    show_default=True,
    help="Where Kafka's protocol is spoken, as HOST:PORT,HOST:PORT.  [env: SEGMENTSTORE_KAFKA]",
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


def with_store(
    controller: str, work: Callable[["Store"], Coroutine[None, None, _Result]]
) -> _Result:
    """Run the work with an open client. Raises what the work raises."""
    from segmentstore.client.store import connect, controller_addresses

    addresses = [(each.host, each.port) for each in controller_addresses(controller)]

    async def refuse_without_controller() -> None:
        # The client waits for one that is started again: for half a minute, and in silence.
        await _refuse_without_server(
            addresses,
            f"no controller answers at {controller}: start one with 'segmentstore standalone', or name another with "
            "--controller",
        )

    async def run() -> _Result:
        async with connect(controller, before_first_call=refuse_without_controller) as store:
            return await work(store)

    return asyncio.run(run())


def with_topics(kafka: str, work: Callable[["Topics"], Coroutine[None, None, _Result]]) -> _Result:
    """Run the work with an open client. Raises what the work raises."""
    from segmentstore.client.kafka_servers import parse_addresses
    from segmentstore.client.topics import connected_topics

    async def run() -> _Result:
        await _refuse_without_server(
            parse_addresses(kafka),
            f"no server of Kafka's protocol answers at {kafka}: start one with 'segmentstore standalone --kafka "
            "HOST:PORT', or name another with --kafka",
        )
        async with connected_topics(kafka) as topics:
            return await work(topics)

    return asyncio.run(run())


async def _refuse_without_server(addresses: Sequence[tuple[str, int]], sentence: str) -> None:
    """Raises ServiceUnavailableError if none of them has a server. Every other trouble is the client's to tell."""
    from segmentstore.client.errors import ServiceUnavailableError

    loop = asyncio.get_running_loop()
    for host, port in addresses:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                # One by one: asyncio says of the addresses of one name only that there were several errors.
                places = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                for *_, place in places:
                    if not await _is_refused(str(place[0]), port):
                        return
        except socket.gaierror:
            continue
        except (OSError, ValueError):  # ValueError: of a name that no host can have
            return
    raise ServiceUnavailableError(sentence)


async def _is_refused(address: str, port: int) -> bool:
    """Whether there is no server at an IP address. Raises OSError where that cannot be told."""
    try:
        _, writer = await asyncio.open_connection(address, port)
    except ConnectionRefusedError:
        return True
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            # One of IPv6, as `localhost` has, on a machine without.
            return True
        raise
    writer.close()
    return False
