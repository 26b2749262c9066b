"""The client of the command line beside a server that breaks off."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import pytest

from segmentstore.cli.http_client import HttpClient, ServerError
from segmentstore.contracts.errors import ErrorKind
from segmentstore.runtime.local_processes import LOOPBACK


@asynccontextmanager
async def breaking_server(
    answers: Callable[[int], bytes],
) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Its address, and the first line of each request; it answers by their number, and ends the connection."""
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        requests.append(head.partition(b"\r\n")[0])
        writer.write(answers(len(requests)))
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, LOOPBACK, 0)
    async with server:
        _, port = server.sockets[0].getsockname()
        yield f"http://{LOOPBACK}:{port}", requests


@pytest.mark.parametrize("verb", ["create", "delete", "append"])
async def test_a_change_whose_connection_breaks_is_sent_once(verb: str) -> None:
    async with breaking_server(lambda _: b"") as (address, requests), HttpClient(address) as client:
        calls: Mapping[str, Callable[[], Awaitable[object]]] = {
            "create": lambda: client.create("a"),
            "delete": lambda: client.delete("a"),
            "append": lambda: client.append("a", b"x"),
        }
        with pytest.raises(ServerError, match="it may have done what was asked") as error:
            await calls[verb]()
        assert error.value.kind is ErrorKind.UNAVAILABLE
        assert len(requests) == 1


async def test_a_read_whose_connection_breaks_is_sent_again() -> None:
    found = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: application/json\r\n\r\n{}"
    async with (
        breaking_server(lambda number: b"" if number == 1 else found) as (address, requests),
        HttpClient(address) as client,
    ):
        assert await client.health() == {}
        assert len(requests) == 2
