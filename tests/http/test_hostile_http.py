"""Requests that no decent client sends. Each gets a clear refusal, stores nothing, and the server goes on."""

import asyncio
import re
from contextlib import suppress
from dataclasses import replace

import pytest

from segmentstore.http.settings import HttpSettings
from tests.http.memory_segments import MemorySegments
from tests.http.node import Node, running_node
from tests.http.raw_http import error_of, exchange, get, post
from tests.silent_connections import check_that_more_are_refused

LIMIT = 10_000
SETTINGS = HttpSettings(
    port=0, append_bytes_max=LIMIT, body_seconds_max=60, body_bytes_in_flight_max=25_000
)
OCTETS = {"Content_Type": "application/octet-stream"}


async def still_serves(node: Node, segments: MemorySegments, content: bytes = b"") -> None:
    """Nothing was stored, and an honest request works."""
    assert segments.content("s") == content
    status, _ = await exchange(node.url, post("/v1/stream/s", b"ok", **OCTETS))
    assert status == 204
    assert segments.content("s") == content + b"ok"


@pytest.mark.parametrize("path", ["/v1/stream/s", "/v1/segments/s/append"])
async def test_an_oversized_body_is_refused_before_it_is_sent(
    segments: MemorySegments, path: str
) -> None:
    await segments.create("s")
    async with running_node(segments, SETTINGS) as node:
        request = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
            f"Content-Length: 99999999999\r\n\r\n"
        )
        status, answer = await exchange(node.url, request.encode())
        assert status == 413
        assert error_of(answer)["error"].endswith(f"bytes=99999999999 bytes_max={LIMIT}")
        await still_serves(node, segments)


async def test_an_oversized_body_is_refused_instead_of_a_continue(
    segments: MemorySegments,
) -> None:
    await segments.create("s")
    async with running_node(segments, SETTINGS) as node:
        headers = {**OCTETS, "Expect": "100-continue"}
        request = post("/v1/stream/s", b"x" * (LIMIT + 1), **headers)
        head = request.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
        status, _ = await exchange(node.url, head)
        assert status == 413
        small = post("/v1/stream/s", b"ok", **headers).partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
        status, _ = await exchange(node.url, small)
        assert status == 100
        await still_serves(node, segments)


async def test_a_refusal_instead_of_a_continue_ends_the_connection(
    segments: MemorySegments,
) -> None:
    await segments.create("s")
    async with running_node(segments, SETTINGS) as node:
        host, port = node.server.address
        headers = {**OCTETS, "Expect": "100-continue"}
        for path, size in (
            ("/v1/stream/s", LIMIT + 1),
            ("/v1/stream/missing", 10),
            ("/v1/segments/s/nothing", 10),
            ("/v1/segments/s/seal", 10),
        ):
            request = post(path, b"x" * size, **headers)
            head = request.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(head)
            async with asyncio.timeout(60):
                answer = await reader.readuntil(b"\r\n\r\n")
                if b"100 Continue" in answer:
                    writer.write(request[len(head) :])
                    answer = await reader.readuntil(b"\r\n\r\n")
                else:
                    assert b"connection: close" in answer.lower(), answer
            writer.close()
        await segments.delete("s")
        await segments.create("s")
        await still_serves(node, segments)


def chunked(body: bytes, size: int, *, end: bool = True) -> bytes:
    request = (
        b"POST /v1/stream/s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )
    for start in range(0, len(body), size):
        piece = body[start : start + size]
        request += f"{len(piece):x}\r\n".encode() + piece + b"\r\n"
    return request + (b"0\r\n\r\n" if end else b"")


async def test_a_chunked_upload_is_stored_whole(segments: MemorySegments) -> None:
    await segments.create("s")
    async with running_node(segments, SETTINGS) as node:
        body = bytes(range(256)) * 30
        status, _ = await exchange(node.url, chunked(body, 777))
        assert status == 204
        await still_serves(node, segments, body)


async def test_a_chunked_upload_past_the_limit_stores_nothing(segments: MemorySegments) -> None:
    await segments.create("s")
    async with running_node(segments, SETTINGS) as node:
        status, _ = await exchange(node.url, chunked(b"x" * (LIMIT + 1), 1000))
        assert status == 413
        await still_serves(node, segments)


async def test_a_malformed_chunk_stores_nothing(segments: MemorySegments) -> None:
    await segments.create("s")
    async with running_node(segments, SETTINGS) as node:
        request = chunked(b"x" * 10, 10, end=False) + b"zz\r\nxx\r\n"
        status, _ = await exchange(node.url, request)
        assert status == 400
        await still_serves(node, segments)


@pytest.mark.parametrize("request_bytes", [post("/v1/stream/s", b"x" * 100, **OCTETS)[:-50],
                                           chunked(b"x" * 100, 10, end=False)])  # fmt: skip
async def test_a_body_that_breaks_off_stores_nothing(
    segments: MemorySegments, request_bytes: bytes
) -> None:
    await segments.create("s")
    async with running_node(segments, SETTINGS) as node:
        host, port = node.server.address
        _, writer = await asyncio.open_connection(host, port)
        writer.write(request_bytes)
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()
        await writer.wait_closed()
        await still_serves(node, segments)


@pytest.mark.slow
async def test_a_body_that_trickles_is_given_up_with_408(segments: MemorySegments) -> None:
    await segments.create("s")
    async with running_node(segments, replace(SETTINGS, body_seconds_max=0.3)) as node:
        status, _ = await exchange(node.url, post("/v1/stream/s", b"x" * 100, **OCTETS)[:-50])
        assert status == 408
    async with running_node(segments, SETTINGS) as node:
        await still_serves(node, segments)


async def test_bodies_that_are_announced_and_not_sent_keep_no_others_out(
    segments: MemorySegments,
) -> None:
    await segments.create("s")
    async with running_node(segments, SETTINGS) as node:
        connections = [await asyncio.open_connection(*node.server.address) for _ in range(3)]
        for _, writer in connections:
            writer.write(post("/v1/stream/s", b"x" * 8000, **OCTETS)[:-7999])
        begun = 0
        while begun < len(connections):
            _, metrics = await exchange(node.url, get("/metrics"))
            found = re.search(rb"body_received_bytes_total (\d+)", metrics)
            assert found is not None
            begun = int(found[1])
        status, _ = await exchange(node.url, post("/v1/stream/s", b"x" * 8000, **OCTETS))
        assert status == 204
        for _, writer in connections:
            writer.close()
            await writer.wait_closed()


@pytest.mark.slow
async def test_a_body_of_which_nothing_arrives_is_given_up_with_408(
    segments: MemorySegments,
) -> None:
    await segments.create("s")
    async with running_node(segments, replace(SETTINGS, body_silence_seconds_max=0.3)) as node:
        status, _ = await exchange(node.url, post("/v1/stream/s", b"x" * 100, **OCTETS)[:-50])
        assert status == 408
        await still_serves(node, segments)


async def test_bodies_under_way_are_bounded_together(segments: MemorySegments) -> None:
    await segments.create("s")
    async with running_node(segments, SETTINGS) as node:
        connections = [await asyncio.open_connection(*node.server.address) for _ in range(4)]
        for _, writer in connections:
            writer.write(post("/v1/stream/s", b"x" * 8000, **OCTETS)[:-1])
        # Three fit; whichever comes last is refused, and none of the others is answered.
        heads = [asyncio.ensure_future(reader.readuntil(b"\r\n\r\n")) for reader, _ in connections]
        (refused,), held = await asyncio.wait(heads, return_when=asyncio.FIRST_COMPLETED)
        assert (await refused).startswith(b"HTTP/1.1 503")
        assert b"Retry-After" in await refused
        for head in held:
            head.cancel()
        for _, writer in connections:
            writer.close()
            await writer.wait_closed()
        status = 503
        while status == 503:
            status, _ = await exchange(node.url, post("/v1/stream/s", b"x" * 8000, **OCTETS))
        assert status == 204


async def test_an_encoded_body_is_refused_and_not_unpacked(segments: MemorySegments) -> None:
    await segments.create("s")
    async with running_node(segments, SETTINGS) as node:
        status, _ = await exchange(
            node.url, post("/v1/stream/s", b"\x1f\x8b", Content_Encoding="gzip", **OCTETS)
        )
        assert status == 415
        await still_serves(node, segments)


@pytest.mark.parametrize(
    "target",
    [
        "/v1/stream/",
        "/v1/stream/a//b",
        "/v1/stream//a",
        "/v1/stream/a/",
        "/v1/stream/a/../s",
        "/v1/stream/%2e%2e/s",
        "/v1/stream/a%2F%2Fb",
        "/v1/stream/a%00b",
        "/v1/stream/a%0D%0Ab",
        "/v1/stream/%ff",
        "/v1/stream/%",
        "/v1/stream/" + "x" * 513,
        "/v1/segments/../s/append",
    ],
)
async def test_names_that_could_mislead_are_refused(segments: MemorySegments, target: str) -> None:
    await segments.create("s")
    async with running_node(segments, SETTINGS) as node:
        status, answer = await exchange(node.url, post(target, b"x", **OCTETS))
        assert status == 400
        assert error_of(answer)["kind"] == "invalid"
        assert b"nosniff" in answer
        await still_serves(node, segments)


@pytest.mark.parametrize("target", ["/v1/stream/__ds", "/v1/stream/__ds/subscriptions/x",
                                    "/v1/stream/%5F_ds/x"])  # fmt: skip
async def test_the_reserved_prefix_is_not_a_stream(segments: MemorySegments, target: str) -> None:
    await segments.create("s")
    async with running_node(segments, SETTINGS) as node:
        status, _ = await exchange(node.url, post(target, b"x", **OCTETS))
        assert status == 501
        await still_serves(node, segments)


async def test_a_name_is_decoded_once_on_its_way_in(segments: MemorySegments) -> None:
    await segments.create("a%2Fb")
    await segments.create("a/b")
    async with running_node(segments, SETTINGS) as node:
        assert (await exchange(node.url, post("/v1/stream/a%252Fb", b"1", **OCTETS)))[0] == 204
        assert (await exchange(node.url, post("/v1/stream/a%2Fb", b"22", **OCTETS)))[0] == 204
    assert segments.content("a%2Fb") == b"1"
    assert segments.content("a/b") == b"22"


async def test_an_absolute_target_names_the_same_stream(segments: MemorySegments) -> None:
    await segments.create("s")
    async with running_node(segments, SETTINGS) as node:
        status, _ = await exchange(node.url, post(f"{node.url}/v1/stream/s", b"x", **OCTETS))
        assert status == 204


async def test_thousands_of_headers_are_refused(segments: MemorySegments) -> None:
    await segments.create("s")
    async with running_node(segments, SETTINGS) as node:
        many = {f"X-{number}": "y" for number in range(5000)}
        status, _ = await exchange(node.url, post("/v1/stream/s", b"x", **OCTETS, **many))
        assert status in {400, 431}
        await still_serves(node, segments)


async def test_a_huge_header_is_refused(segments: MemorySegments) -> None:
    await segments.create("s")
    async with running_node(segments, SETTINGS) as node:
        status, _ = await exchange(node.url, post("/v1/stream/s", b"x", X="y" * 100_000, **OCTETS))
        assert status in {400, 431}
        await still_serves(node, segments)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00garbage\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/stream/s HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/stream/s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        b"POST /v1/stream/s HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/stream/s HTTP/1.1\r\nHost: localhost\r\nBad Header\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_refused(segments: MemorySegments, request_bytes: bytes) -> None:
    await segments.create("s")
    async with running_node(segments, SETTINGS) as node:
        status, _ = await exchange(node.url, request_bytes)
        assert status == 400
        await still_serves(node, segments)


@pytest.mark.parametrize(
    "query", ["offset=", "offset=1", "offset=-1&offset=-1", "live=sse", "live=long-poll",
              "offset=%00", "offset=9999999999999999_9999999999999999", "offset=../x"],
)  # fmt: skip
async def test_bad_positions_are_refused(segments: MemorySegments, query: str) -> None:
    await segments.create("s")
    async with running_node(segments, SETTINGS) as node:
        status, _ = await exchange(node.url, get(f"/v1/stream/s?{query}"))
        assert status in {400, 410}


async def test_a_stream_of_another_type_takes_no_body(segments: MemorySegments) -> None:
    await segments.create("s")
    async with running_node(segments, SETTINGS) as node:
        assert (await exchange(node.url, post("/v1/stream/s")))[0] == 400
        status, _ = await exchange(node.url, post("/v1/stream/s", Content_Type="text/html"))
        assert status == 409
        await still_serves(node, segments)


async def test_unknown_paths_are_404_and_carry_the_security_headers(
    segments: MemorySegments,
) -> None:
    await segments.create("s")
    async with running_node(segments, SETTINGS) as node:
        for target in ("/", "/v1", "/v1/stream", "/favicon.ico", "/v2/stream/s", "/health/x"):
            status, answer = await exchange(node.url, get(target))
            assert status == 404
            assert b"nosniff" in answer
        await still_serves(node, segments)


async def test_connections_that_say_nothing_are_bounded(segments: MemorySegments) -> None:
    await segments.create("s")
    async with running_node(segments, replace(SETTINGS, connections_max=3)) as node:
        await check_that_more_are_refused(*node.server.address, connections_max=3)
        status = 0
        while status != 204:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                status, _ = await exchange(node.url, post("/v1/stream/s", b"ok", **OCTETS))
