"""The client of the command line beside a server that breaks off."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import pytest

from segmentstore.cli.http_client import HttpClient, SegmentStatus, ServerError
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
    found = b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n" + b'{"ready": true}'
    async with (
        breaking_server(lambda number: b"" if number == 1 else found) as (address, requests),
        HttpClient(address) as client,
    ):
        assert await client.health() == {"ready": True}
        assert len(requests) == 2


ANSWERS_OF_OTHERS = {
    "page": b"<html><title>Welcome to nginx!</title></html>",
    "list": b"[1, 2]",
    "object": b'{"status": "ok"}',
    "wrong kinds": b'{"length": "many", "segments": {}, "next": 3, "backups": [1], "pinned": "all"}',
    "not text": b"\xff\xfe\x00",
    "nothing": b"",
}


@pytest.mark.parametrize("answer", ANSWERS_OF_OTHERS.values(), ids=list(ANSWERS_OF_OTHERS))
@pytest.mark.parametrize(
    "verb",
    [
        "create",
        "info",
        "append",
        "seal",
        "truncate",
        "merge",
        "delete",
        "flush",
        "flush_all",
        "list",
        "read",
        "follow",
        "make_backup",
        "drop_backup",
        "list_backups",
    ],
)
async def test_an_answer_of_another_web_server_is_told_to_be_one(verb: str, answer: bytes) -> None:
    """Whatever it answers with: a proxy's page, or JSON of its own."""
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(answer), answer)
    async with breaking_server(lambda _: whole) as (address, _), HttpClient(address) as client:
        info = SegmentStatus("a", 1, 0, 0, 5, 0, sealed=False, last_modified_ms=0)
        calls: Mapping[str, Callable[[], Awaitable[object]]] = {
            "create": lambda: client.create("a"),
            "info": lambda: client.info("a"),
            "append": lambda: client.append("a", b"x"),
            "seal": lambda: client.seal("a"),
            "merge": lambda: client.merge("a", "b"),
            "truncate": lambda: client.truncate("a", 1),
            "delete": lambda: client.delete("a"),
            "flush": lambda: client.flush("a"),
            "flush_all": client.flush_all,
            "drop_backup": lambda: client.drop_backup("monday"),
            "list": lambda: client.list_page("", "", 9),
            "read": lambda: client.read("a", 0, 5),
            "follow": lambda: anext(client.follow(info, 0)),
            "make_backup": lambda: client.make_backup("monday"),
            "list_backups": client.list_backups,
        }
        with pytest.raises(ServerError, match=f"{address} answers, but not as a segmentstore"):
            await calls[verb]()


@pytest.mark.parametrize("answer", ["page", "list"])
async def test_a_health_of_another_web_server_is_told_to_be_one(answer: str) -> None:
    content = ANSWERS_OF_OTHERS[answer]
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(content), content)
    async with breaking_server(lambda _: whole) as (address, _), HttpClient(address) as client:
        with pytest.raises(ServerError, match="answers, but not as a segmentstore"):
            await client.health()


@pytest.mark.parametrize("greeting", [b"SSH-2.0-OpenSSH_9.6\r\n", b"\x00\x00\x12\x04" + bytes(23)])
async def test_a_server_that_does_not_speak_http_is_told_to_be_one(greeting: bytes) -> None:
    """Such as the port of the controller, which is next to that of HTTP."""
    async with breaking_server(lambda _: greeting) as (address, _), HttpClient(address) as client:
        with pytest.raises(ServerError, match=r"not as a segmentstore.*is no HTTP") as error:
            await client.info("a")
        assert error.value.kind is ErrorKind.INVALID
