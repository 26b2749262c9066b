import asyncio
import json
from contextlib import suppress

import pytest
from aiohttp import ClientSession
from multidict import CIMultiDictProxy

from segmentstore.http.offsets import offset_token
from segmentstore.http.settings import HttpSettings
from tests.http.memory_segments import MemorySegments
from tests.http.node import Node, running_node, until

TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}
WAIT_SECONDS = 120.0
"""Longer than anything else takes: what ends a wait is not its time."""


async def put(client: ClientSession, url: str, body: str = "", **headers: str) -> int:
    async with client.put(url, data=body, headers=headers or TEXT) as answer:
        return answer.status


async def get(
    client: ClientSession, url: str, headers: dict[str, str] | None = None, **query: str
) -> tuple[int, CIMultiDictProxy[str], bytes]:
    async with client.get(url, params=query, headers=headers or {}) as answer:
        return answer.status, answer.headers, await answer.read()


@pytest.mark.slow
@pytest.mark.parametrize("live", [False, True])
async def test_h53_an_answer_that_is_not_taken_is_held_for_a_while_and_not_for_ever(
    segments: MemorySegments, live: bool
) -> None:
    size = 16 << 20
    settings = HttpSettings(
        port=0, write_seconds_max=0.2, window_bytes=size, read_bytes_max=size, tick_seconds=0.05
    )
    await segments.create("s")
    async with segments.open_segment("s") as segment:
        for _ in range(2):
            await segment.append(bytes(size // 2))
    async with running_node(segments, settings) as node:
        reader, writer = await asyncio.open_connection(*node.server.address, limit=1024)
        target = "/v1/stream/s?offset=-1" + ("&live=long-poll" if live else "")
        writer.write(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        try:
            received = len(await reader.readuntil(b"\r\n\r\n"))
            runner = node.server._runner
            assert runner is not None
            assert runner.server is not None
            server = runner.server
            await until(lambda: not server.connections)
            with suppress(ConnectionError):
                while piece := await reader.read(1 << 20):
                    received += len(piece)
        finally:
            writer.close()
    assert received < size


async def test_an_etag_differs_for_a_recreated_stream_of_equal_length(
    node: Node, client: ClientSession
) -> None:
    url = node.stream("s")
    await put(client, url, "one")
    _, before, _ = await get(client, url)
    async with client.delete(url) as answer:
        assert answer.status == 204
    await put(client, url, "two")
    status, after, body = await get(client, url, {"If-None-Match": before["ETag"]})
    assert (status, body) == (200, b"two")
    status, _, body = await get(client, url, {"If-None-Match": f'W/"x", {after["ETag"]}'})
    assert (status, body) == (304, b"")


async def test_an_etag_changes_when_the_stream_is_closed_without_new_bytes(
    node: Node, client: ClientSession
) -> None:
    url = node.stream("s")
    await put(client, url, "x")
    _, before, _ = await get(client, url)
    async with client.post(url, headers={"Stream-Closed": "true"}) as answer:
        assert answer.status == 204
    status, after, _ = await get(client, url, {"If-None-Match": before["ETag"]})
    assert (status, after["Stream-Closed"]) == (200, "true")


async def test_an_offset_of_a_deleted_stream_does_not_fit_its_successor(
    node: Node, client: ClientSession
) -> None:
    url = node.stream("s")
    await put(client, url, "old bytes")
    _, headers, _ = await get(client, url)
    async with client.delete(url):
        pass
    await put(client, url, "new bytes, and more")
    status, _, _ = await get(client, url, offset=headers["Stream-Next-Offset"])
    assert status == 410


async def test_truncated_bytes_are_gone_and_the_start_is_what_is_left(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    url = node.stream("s")
    await put(client, url, "0123456789")
    segment_id = (await segments.info("s")).segment_id
    await segments.truncate("s", 4)
    status, _, body = await get(client, url, offset=offset_token(segment_id, 3))
    assert status == 410
    assert json.loads(body)["kind"] == "gone"
    status, headers, body = await get(client, url, offset="-1")
    assert (status, body) == (200, b"456789")
    assert headers["Stream-Next-Offset"] == offset_token(segment_id, 10)


async def test_an_offset_past_the_end_is_refused(node: Node, client: ClientSession) -> None:
    await put(client, node.stream("s"), "abc")
    status, _, _ = await get(client, node.stream("s"), offset=offset_token(1, 4))
    assert status == 400


async def test_bytes_resume_at_any_offset_and_messages_only_between_them(
    node: Node, client: ClientSession
) -> None:
    await put(client, node.stream("bytes"), "abcdef")
    status, _, body = await get(client, node.stream("bytes"), offset=offset_token(1, 2))
    assert (status, body) == (200, b"cdef")
    await put(client, node.stream("json"), "[10,20]", **JSON)
    status, _, body = await get(client, node.stream("json"), offset=offset_token(2, 3))
    assert (status, body) == (200, b"[20]")
    for live in ("no", "long-poll", "sse"):
        url = node.stream("json")
        status, _, _ = await get(client, url, offset=offset_token(2, 1), live=live)
        assert status == 400


async def test_h53_pages_are_bounded_and_join_to_the_whole(segments: MemorySegments) -> None:
    settings = HttpSettings(port=0, read_bytes_max=1000)
    async with running_node(segments, settings) as node, ClientSession() as client:
        content = bytes(range(256)) * 40
        async with client.put(node.stream("s"), data=content):
            pass
        seen, offset, pages = b"", "-1", 0
        while True:
            _, headers, body = await get(client, node.stream("s"), offset=offset)
            assert len(body) <= 1000
            seen, offset, pages = seen + body, headers["Stream-Next-Offset"], pages + 1
            assert ("Stream-Up-To-Date" in headers) == (len(seen) == len(content))
            if "Stream-Up-To-Date" in headers:
                break
        assert seen == content
        assert pages == 11


async def test_json_pages_hold_whole_messages_even_those_longer_than_a_page(
    segments: MemorySegments,
) -> None:
    settings = HttpSettings(port=0, read_bytes_max=64)
    async with running_node(segments, settings) as node, ClientSession() as client:
        messages = ["a" * 10, "b" * 500, "c", "d" * 63, *range(50)]
        await put(client, node.stream("s"), json.dumps(messages), **JSON)
        seen: list[object] = []
        offset = "-1"
        for _ in range(100):
            _, headers, body = await get(client, node.stream("s"), offset=offset)
            seen += json.loads(body)
            offset = headers["Stream-Next-Offset"]
            if "Stream-Up-To-Date" in headers:
                break
        assert seen == messages


async def test_only_answers_that_never_change_may_be_cached(segments: MemorySegments) -> None:
    settings = HttpSettings(port=0, read_bytes_max=4)
    async with running_node(segments, settings) as node, ClientSession() as client:
        await put(client, node.stream("s"), "12345678")
        _, headers, _ = await get(client, node.stream("s"), offset=offset_token(1, 1))
        assert headers["Cache-Control"].startswith("public")
        _, headers, _ = await get(client, node.stream("s"), offset="-1")
        assert headers["Cache-Control"] == "no-cache"
        _, headers, _ = await get(client, node.stream("s"), offset=offset_token(1, 6))
        assert headers["Cache-Control"] == "no-cache"
        _, headers, _ = await get(client, node.stream("s"), offset="now")
        assert headers["Cache-Control"] == "no-store"
        assert "ETag" not in headers


async def test_a_cached_answer_that_reached_the_end_is_not_confirmed_when_there_is_more(
    segments: MemorySegments,
) -> None:
    settings = HttpSettings(port=0, read_bytes_max=4)
    async with running_node(segments, settings) as node, ClientSession() as client:
        url = node.stream("s")
        await put(client, url, "1234")
        _, headers, _ = await get(client, url, offset="-1")
        assert headers["Stream-Up-To-Date"] == "true"
        cached = {"If-None-Match": headers["ETag"]}
        async with client.get(url, params={"offset": "-1"}, headers=cached) as answer:
            assert answer.status == 304
        async with client.post(url, data="5", headers=TEXT):
            pass
        async with client.get(url, params={"offset": "-1"}, headers=cached) as answer:
            assert answer.status == 200
            assert "Stream-Up-To-Date" not in answer.headers


async def test_browsers_of_configured_origins_may_read_every_header_of_the_protocol(
    segments: MemorySegments,
) -> None:
    settings = HttpSettings(port=0, cors_origins=("*",))
    async with running_node(segments, settings) as node, ClientSession() as client:
        await check_headers_for_other_origins(node, client)


async def check_headers_for_other_origins(node: Node, client: ClientSession) -> None:
    await put(client, node.stream("s"), "x")
    _, headers, _ = await get(client, node.stream("s"))
    exposed = {name.strip() for name in headers["Access-Control-Expose-Headers"].split(",")}
    assert {
        "Stream-Next-Offset", "Stream-Cursor", "Stream-Up-To-Date", "Stream-Closed", "ETag", "Location",
        "Stream-TTL", "Stream-Expires-At", "Stream-SSE-Data-Encoding", "Producer-Epoch", "Producer-Seq",
        "Producer-Expected-Seq", "Producer-Received-Seq",
    } <= exposed  # fmt: skip
    origin = {**TEXT, "Origin": "http://elsewhere"}
    async with client.post(node.stream("s"), data="x", headers=origin) as answer:
        assert answer.headers["Access-Control-Allow-Origin"] == "*"
    async with client.post(node.stream("none"), data="x", headers=origin) as answer:
        assert answer.status == 404
        assert answer.headers["Access-Control-Allow-Origin"] == "*"


async def test_stored_html_cannot_run_in_this_origin(node: Node, client: ClientSession) -> None:
    await put(client, node.stream("s"), "<script>", **{"Content-Type": "text/html"})
    _, headers, _ = await get(client, node.stream("s"))
    assert headers["Content-Type"] == "text/html"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in headers["Content-Security-Policy"]


async def test_a_long_poll_returns_as_soon_as_bytes_come(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    url = node.stream("s")
    await put(client, url)
    poll = asyncio.ensure_future(get(client, url, offset="now", live="long-poll"))
    await until(lambda: segments.waiter_count("s") == 1)
    async with client.post(url, data="news", headers=TEXT):
        pass
    status, headers, body = await poll
    assert (status, body) == (200, b"news")
    assert headers["Stream-Cursor"].isdigit()


async def test_a_long_poll_of_a_deleted_stream_ends_with_404(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    url = node.stream("s")
    await put(client, url)
    poll = asyncio.ensure_future(get(client, url, offset="-1", live="long-poll"))
    await until(lambda: segments.waiter_count("s") == 1)
    async with client.delete(url):
        pass
    assert (await poll)[0] == 404


async def test_h58_waiting_readers_are_bounded_and_a_place_is_free_again(
    segments: MemorySegments,
) -> None:
    settings = HttpSettings(port=0, waiters_max=2, long_poll_seconds=WAIT_SECONDS)
    async with running_node(segments, settings) as node, ClientSession() as client:
        await put(client, node.stream("s"))
        url = node.stream("s")
        polls = [
            asyncio.ensure_future(get(client, url, offset="-1", live="long-poll")) for _ in range(2)
        ]
        await until(lambda: len(node.server._waiters) == 2)
        status, headers, _ = await get(client, url, offset="-1", live="long-poll")
        assert (status, headers["Retry-After"]) == (503, "1")
        async with client.post(url, data="x", headers=TEXT):
            pass
        assert [(await poll)[0] for poll in polls] == [200, 200]
        status, _, body = await get(client, url, offset="-1", live="long-poll")
        assert (status, body) == (200, b"x")


async def test_h58_a_reader_that_disconnects_frees_its_place(segments: MemorySegments) -> None:
    settings = HttpSettings(port=0, waiters_max=1, long_poll_seconds=WAIT_SECONDS)
    async with running_node(segments, settings) as node, ClientSession() as client:
        await put(client, node.stream("s"))
        url = node.stream("s")
        poll = asyncio.ensure_future(get(client, url, offset="-1", live="long-poll"))
        await until(lambda: len(node.server._waiters) == 1)
        poll.cancel()
        await asyncio.gather(poll, return_exceptions=True)
        await until(lambda: len(node.server._waiters) == 0)
        second = asyncio.ensure_future(get(client, url, offset="-1", live="long-poll"))
        await until(lambda: len(node.server._waiters) == 1)
        async with client.post(url, data="x", headers=TEXT):
            pass
        assert (await second)[0] == 200
        assert segments.pin_count("s") <= 1


async def test_h58_closing_the_server_ends_every_wait(segments: MemorySegments) -> None:
    settings = HttpSettings(port=0, long_poll_seconds=WAIT_SECONDS, sse_seconds=WAIT_SECONDS)
    async with ClientSession() as client, running_node(segments, settings) as node:
        await put(client, node.stream("s"))
        polls = [
            asyncio.ensure_future(get(client, node.stream("s"), offset="-1", live=live))
            for live in ("long-poll", "sse")
        ]
        await until(lambda: len(node.server._waiters) == 2)
        async with asyncio.timeout(WAIT_SECONDS / 2):
            await node.server.close()
            answers = await asyncio.gather(*polls)
    assert [status for status, _, _ in answers] == [204, 200]
    assert b"event: control" in answers[1][2]
    assert segments.pin_count("s") == 0


async def test_head_says_how_long_a_stream_lives(node: Node, client: ClientSession) -> None:
    await put(client, node.stream("s"), "abc", **TEXT, **{"Stream-TTL": "60"})
    async with client.head(node.stream("s")) as answer:
        assert answer.headers["Stream-TTL"] == "60"
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Stream-Next-Offset"] == offset_token(1, 3)


@pytest.mark.parametrize("method", ["PATCH", "TRACE", "PROPFIND"])
async def test_other_methods_are_refused(node: Node, client: ClientSession, method: str) -> None:
    async with client.request(method, node.stream("s")) as answer:
        assert answer.status == 405
        assert "PUT" in answer.headers["Allow"]
