"""Appends that ask for nothing but to be stored: answered in one piece, and like every other."""

import asyncio
from email.utils import parsedate_to_datetime

import pytest
from aiohttp import ClientSession

from segmentstore.contracts.errors import ContainerStoppedError
from segmentstore.http.settings import HttpSettings
from tests.http.memory_segments import MemorySegments
from tests.http.node import Node, running_node
from tests.http.raw_http import exchange, post

TEXT = {"Content-Type": "text/plain"}


def lines_of(head: bytes) -> dict[str, str]:
    """The header lines of an answer; none of them may come twice."""
    pairs = [line.partition(": ")[::2] for line in head.decode().strip().split("\r\n")[1:]]
    assert len({name.lower() for name, _ in pairs}) == len(pairs), f"a header twice: {pairs}"
    return dict(pairs)


async def pinned(client: ClientSession, node: Node) -> None:
    """A stream whose segment is open already, as it is from the second append on."""
    async with client.put(node.stream("s"), headers=TEXT) as answer:
        assert answer.status == 201
    async with client.post(node.stream("s"), data="a", headers=TEXT) as answer:
        assert answer.status == 204


async def test_a_plain_append_is_answered_with_the_headers_of_a_judged_one(
    node: Node, client: ClientSession
) -> None:
    await pinned(client, node)
    async with client.post(node.stream("s"), data="b", headers=TEXT) as answer:
        plain = answer.headers
    async with client.post(node.stream("s"), data="c", headers={**TEXT, "Stream-Seq": "1"}) as one:
        judged = one.headers
    assert set(plain) - {"Date"} == set(judged) - {"Date", "Content-Length"}
    assert plain["Stream-Next-Offset"] < judged["Stream-Next-Offset"]
    same = set(plain) - {"Date", "Stream-Next-Offset"}
    assert {name: plain[name] for name in same} == {name: judged[name] for name in same}


async def test_its_date_is_the_wall_clocks(segments: MemorySegments) -> None:
    async with running_node(segments) as node, ClientSession() as client:
        await pinned(client, node)
        for jump_seconds in (0, 3600):
            node.clock.jump_seconds = jump_seconds
            before = node.clock.now_ms() // 1000
            async with client.post(node.stream("s"), data="b", headers=TEXT) as answer:
                seconds = parsedate_to_datetime(answer.headers["Date"]).timestamp()
            assert before <= seconds <= node.clock.now_ms() // 1000


@pytest.mark.parametrize("origins", [("*",), ("https://example.org",)])
async def test_other_origins_may_read_the_answer_if_they_are_configured(
    segments: MemorySegments, origins: tuple[str, ...]
) -> None:
    settings = HttpSettings(port=0, cors_origins=origins)
    async with running_node(segments, settings) as node, ClientSession() as client:
        await pinned(client, node)
        headers = {**TEXT, "Origin": "https://example.org"}
        async with client.post(node.stream("s"), data="b", headers=headers) as answer:
            assert answer.status == 204
            assert answer.headers["Access-Control-Allow-Origin"] == origins[0]


async def test_the_connection_ends_when_the_client_says_so(
    node: Node, client: ClientSession
) -> None:
    await pinned(client, node)
    host, port = node.server.address
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(post("/v1/stream/s", b"b", Content_Type="text/plain", Connection="close"))
    async with asyncio.timeout(60):
        head = await reader.read()
    writer.close()
    assert head.startswith(b"HTTP/1.1 204 ")
    assert lines_of(head)["Connection"] == "close"


async def test_an_old_client_is_answered_in_its_version(node: Node, client: ClientSession) -> None:
    await pinned(client, node)
    old = post("/v1/stream/s", b"b", Content_Type="text/plain").replace(b"HTTP/1.1", b"HTTP/1.0")
    status, head = await exchange(node.url, old)
    assert status == 204
    assert head.startswith(b"HTTP/1.0 204 ")
    kept = old.replace(b"Host:", b"Connection: keep-alive\r\nHost:")
    _, head = await exchange(node.url, kept)
    assert lines_of(head)["Connection"] == "keep-alive"


async def test_requests_sent_ahead_are_answered_in_order(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    await pinned(client, node)
    host, port = node.server.address
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(
        b"".join(post("/v1/stream/s", b"%d" % n, Content_Type="text/plain") for n in range(5))
    )
    offsets = []
    async with asyncio.timeout(60):
        for _ in range(5):
            head = await reader.readuntil(b"\r\n\r\n")
            offsets.append(lines_of(head)["Stream-Next-Offset"])
    writer.close()
    assert offsets == sorted(set(offsets))
    assert segments.content("s") == b"a01234"


async def test_a_stream_that_was_closed_meanwhile_refuses_with_its_end(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    await pinned(client, node)
    async with segments.open_segment("s") as segment:
        await segment.append(b"", seal=True)
    async with client.post(node.stream("s"), data="b", headers=TEXT) as answer:
        assert answer.status == 409
        assert answer.headers["Stream-Closed"] == "true"
    assert segments.content("s") == b"a"


async def test_a_stream_that_was_made_anew_meanwhile_takes_the_bytes(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    await pinned(client, node)
    await segments.delete("s")
    await segments.create("s")
    headers = {"Content-Type": "application/octet-stream"}
    async with client.post(node.stream("s"), data="b", headers=headers) as answer:
        assert answer.status == 204
    assert segments.content("s") == b"b"


async def test_an_append_whose_container_stopped_is_not_said_to_be_undone(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    await pinned(client, node)
    count = segments.append_count
    segments.hold()
    request = asyncio.ensure_future(client.post(node.stream("s"), data="b", headers=TEXT))
    async with asyncio.timeout(60):
        while segments.append_count == count:
            await asyncio.sleep(0.001)
    segments.fail(ContainerStoppedError("the container stopped"))
    async with await request as answer:
        # Its outcome is unknown, which 503 would deny.
        assert answer.status == 500
        assert "Retry-After" in answer.headers
