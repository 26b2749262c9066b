import asyncio
import base64
import io
import json
from contextlib import suppress
from dataclasses import dataclass

import pytest
from aiohttp import ClientResponse, ClientSession
from hypothesis import given
from hypothesis import strategies as st

from segmentstore.contracts.errors import (
    ContainerStoppedError,
    SegmentStoreError,
    StorageError,
    TooManyWaitersError,
)
from segmentstore.http.settings import HttpSettings
from segmentstore.http.stream_read import control_event, data_event, whole_characters_length
from tests.http.memory_segments import MemorySegments
from tests.http.node import Node, running_node

TEXT = {"Content-Type": "text/plain"}


@dataclass(frozen=True)
class Event:
    kind: str
    data: str


def parse_events(text: str) -> list[Event]:
    """As the specification of server-sent events reads them."""
    events: list[Event] = []
    kind, lines = "", list[str]()
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        field, _, value = line.partition(":")
        if field == "event":
            kind = value.removeprefix(" ")
        elif field == "data":
            lines.append(value.removeprefix(" "))
        elif not line and (kind or lines):
            events.append(Event(kind, "\n".join(lines)))
            kind, lines = "", []
    return events


async def next_events(answer: ClientResponse, count: int) -> list[Event]:
    text = ""
    async with asyncio.timeout(60):
        while len(parse_events(text)) < count:
            piece = await answer.content.readany()
            assert piece, f"the connection ended early text={text!r}"
            text += piece.decode()
    return parse_events(text)


async def post(client: ClientSession, url: str, body: bytes, **headers: str) -> None:
    async with client.post(url, data=body, headers={**TEXT, **headers}) as answer:
        assert answer.status in {200, 204}


@given(st.binary(max_size=12))
def test_held_back_bytes_never_split_a_character(content: bytes) -> None:
    length = whole_characters_length(content)
    assert len(content) - 3 <= length <= len(content)


@given(st.text(max_size=8))
def test_every_prefix_of_a_text_is_cut_between_characters(text: str) -> None:
    encoded = text.encode()
    for end in range(len(encoded) + 1):
        cut = whole_characters_length(encoded[:end])
        assert text.startswith(encoded[:cut].decode())
        assert encoded[:end].decode(errors="ignore") == encoded[:cut].decode()


@given(st.text(alphabet="ab:\r\n ", max_size=20))
def test_no_payload_can_forge_an_event(payload: str) -> None:
    events = parse_events(data_event(payload))
    assert len(events) == 1
    assert events[0].kind == "data"


@given(st.text(alphabet="ab:\t\r\n ", max_size=20))
def test_an_event_reads_as_its_payload_but_for_the_kind_of_line_ends(payload: str) -> None:
    lines = payload.replace("\r\n", "\n").replace("\r", "\n")
    assert parse_events(data_event(payload)) == [Event("data", lines)]


async def test_the_indentation_of_a_text_arrives(node: Node, client: ClientSession) -> None:
    content = "def f():\n    return 1\n - item\n  - nested\n"
    closed = {**TEXT, "Stream-Closed": "true"}
    async with client.put(node.stream("s"), data=content, headers=closed):
        pass
    async with client.get(node.stream("s"), params={"offset": "-1", "live": "sse"}) as answer:
        events = parse_events((await answer.read()).decode())
    assert [event.data for event in events if event.kind == "data"] == [content]


def test_a_control_event_of_a_closed_end_has_no_cursor() -> None:
    text = control_event(next_offset="o", cursor="5", up_to_date=True, closed=True)
    assert json.loads(parse_events(text)[0].data) == {
        "streamNextOffset": "o",
        "upToDate": True,
        "streamClosed": True,
    }


async def test_a_character_split_between_appends_arrives_whole(
    node: Node, client: ClientSession
) -> None:
    url = node.stream("s")
    async with client.put(url, headers=TEXT):
        pass
    async with client.get(url, params={"offset": "-1", "live": "sse"}) as answer:
        start = json.loads((await next_events(answer, 1))[0].data)["streamNextOffset"]
        await post(client, url, b"a\xe2\x82")
        events = await next_events(answer, 2)
        assert events[0] == Event("data", "a")
        control = json.loads(events[1].data)
        assert control["streamNextOffset"] == start[:-1] + "1"
        await post(client, url, b"\xac!")
        events = await next_events(answer, 2)
        assert events[0] == Event("data", "€!")
        assert json.loads(events[1].data)["streamNextOffset"] == start[:-1] + "5"


async def test_a_line_end_split_between_appends_is_one_line_end(
    node: Node, client: ClientSession
) -> None:
    url = node.stream("s")
    async with client.put(url, headers=TEXT):
        pass
    async with client.get(url, params={"offset": "-1", "live": "sse"}) as answer:
        start = json.loads((await next_events(answer, 1))[0].data)["streamNextOffset"]
        await post(client, url, b"a\r")
        events = await next_events(answer, 2)
        assert events[0] == Event("data", "a")
        assert json.loads(events[1].data)["streamNextOffset"] == start[:-1] + "1"
        await post(client, url, b"\nb")
        events = await next_events(answer, 2)
        assert events[0] == Event("data", "\nb")
        assert json.loads(events[1].data)["streamNextOffset"] == start[:-1] + "4"


@pytest.mark.parametrize(
    "content", [b"a\r\n\r\nb\r\n", b"\r\r\r\nb\r\r", b"\xe2\x82\xac\r\n\xe2\x82\xac"]
)
async def test_a_text_has_the_same_lines_however_many_events_it_takes(content: bytes) -> None:
    lines = content.decode().replace("\r\n", "\n").replace("\r", "\n")
    for window_bytes in (1, 2, 3, 5, len(content)):
        settings = HttpSettings(port=0, window_bytes=window_bytes)
        async with running_node(MemorySegments(), settings) as node, ClientSession() as client:
            closed = {**TEXT, "Stream-Closed": "true"}
            async with client.put(node.stream("s"), data=content, headers=closed):
                pass
            query = {"offset": "-1", "live": "sse"}
            async with client.get(node.stream("s"), params=query) as answer:
                events = parse_events((await answer.read()).decode())
        assert "".join(event.data for event in events if event.kind == "data") == lines


async def test_half_a_character_at_a_closed_end_is_not_held_for_ever(
    node: Node, client: ClientSession
) -> None:
    url = node.stream("s")
    async with client.put(url, headers=TEXT):
        pass
    await post(client, url, b"a\xe2\x82", **{"Stream-Closed": "true"})
    async with client.get(url, params={"offset": "-1", "live": "sse"}) as answer:
        events = parse_events((await answer.read()).decode())
    assert events[0] == Event("data", "a\ufffd")
    assert json.loads(events[1].data)["streamClosed"] is True


async def test_octets_arrive_in_base64_event_by_event(node: Node, client: ClientSession) -> None:
    url = node.stream("s")
    content = bytes(range(256))
    async with client.put(url, data=content, headers={"Content-Type": "image/png"}):
        pass
    async with client.get(url, params={"offset": "-1", "live": "sse"}) as answer:
        assert answer.headers["Stream-SSE-Data-Encoding"] == "base64"
        events = await next_events(answer, 2)
    assert base64.b64decode(events[0].data, validate=True) == content


async def test_a_reader_of_a_deleted_stream_is_let_go(node: Node, client: ClientSession) -> None:
    url = node.stream("s")
    async with client.put(url, headers=TEXT):
        pass
    async with client.get(url, params={"offset": "-1", "live": "sse"}) as answer:
        await next_events(answer, 1)
        async with client.delete(url) as deleted:
            assert deleted.status == 204
        async with asyncio.timeout(60):
            rest = await answer.read()
    assert b"streamClosed" not in rest


async def test_control_events_keep_a_connection_alive_between_data(
    segments: MemorySegments,
) -> None:
    settings = HttpSettings(port=0, sse_seconds=600, long_poll_seconds=0.05)
    async with running_node(segments, settings) as node, ClientSession() as client:
        async with client.put(node.stream("s"), data="abc", headers=TEXT):
            pass
        async with client.get(node.stream("s"), params={"offset": "-1", "live": "sse"}) as answer:
            events = await next_events(answer, 5)
    assert [event.kind for event in events[:5]] == ["data", *["control"] * 4]


async def test_a_connection_ends_after_its_time_at_an_offset_to_go_on_from(
    segments: MemorySegments,
) -> None:
    settings = HttpSettings(port=0, sse_seconds=0.2, long_poll_seconds=0.05)
    async with running_node(segments, settings) as node, ClientSession() as client:
        async with client.put(node.stream("s"), data="abc", headers=TEXT):
            pass
        async with client.get(node.stream("s"), params={"offset": "-1", "live": "sse"}) as answer:
            async with asyncio.timeout(60):
                events = parse_events((await answer.read()).decode())
        assert [event.kind for event in events[:2]] == ["data", "control"]
        assert json.loads(events[-1].data)["streamNextOffset"].endswith("_0000000000000003")


async def test_event_streams_are_bounded(segments: MemorySegments) -> None:
    settings = HttpSettings(port=0, sse_connections_max=1)
    async with running_node(segments, settings) as node, ClientSession() as client:
        async with client.put(node.stream("s"), headers=TEXT):
            pass
        query = {"offset": "-1", "live": "sse"}
        async with client.get(node.stream("s"), params=query) as answer:
            await next_events(answer, 1)
            async with client.get(node.stream("s"), params=query) as second:
                assert second.status == 503


class StoppingSegments(MemorySegments):
    """Its container can stop under a reader that waits."""

    def stop(self, name: str, error: Exception) -> None:
        for waiter in self._segments[name].waiters:
            waiter.set_exception(error)


@pytest.mark.parametrize(
    "error",
    [
        ContainerStoppedError("container stopped container=0"),
        StorageError("tier 2 is away"),
        TooManyWaitersError("too many waiters"),
        ZeroDivisionError("a fault of the server"),
    ],
)
async def test_whatever_ends_an_event_stream_writes_no_second_head_into_it(
    error: Exception,
) -> None:
    segments = StoppingSegments()
    async with running_node(segments) as node, ClientSession() as client:
        async with client.put(node.stream("s"), data="abc", headers=TEXT):
            pass
        host, port = node.server.address
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET /v1/stream/s?offset=-1&live=sse HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b""
        async with asyncio.timeout(60):
            while b"event: control" not in received:
                received += await reader.read(1 << 16)
            while not segments._segments["s"].waiters:
                await asyncio.sleep(0.01)
            segments.stop("s", error)
            if isinstance(error, SegmentStoreError):
                # The whole body ends, and the connection takes the next request.
                received += await reader.readuntil(b"0\r\n\r\n")
                writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            else:
                with suppress(ConnectionError):
                    received += await reader.read()
                assert not received.endswith(b"0\r\n\r\n")
        writer.close()
    assert received.count(b"HTTP/1.1") == 1


@pytest.mark.slow
async def test_h53_a_reader_that_takes_nothing_is_cut_off(segments: MemorySegments) -> None:
    settings = HttpSettings(port=0, write_seconds_max=0.2, window_bytes=64 << 10)
    async with running_node(segments, settings) as node, ClientSession() as client:
        async with client.put(
            node.stream("s"), data=io.BytesIO(b"x" * (8 << 20)), headers=TEXT
        ) as answer:
            assert answer.status == 201
        host, port = node.server.address
        reader, writer = await asyncio.open_connection(host, port, limit=1024)
        received = 0
        try:
            target = "/v1/stream/s?offset=-1&live=sse"
            writer.write(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            await writer.drain()
            async with asyncio.timeout(60):
                while segments.pin_count("s") == 0:
                    await asyncio.sleep(0.01)
                while segments.pin_count("s"):
                    await asyncio.sleep(0.01)
            with suppress(ConnectionError):
                while piece := await reader.read(1 << 20):
                    received += len(piece)
        finally:
            writer.close()
        assert received < 8 << 20
