import asyncio
from collections.abc import Sequence

import pytest
from aiohttp import ClientSession

from segmentstore.contracts.errors import ContainerStoppedError
from segmentstore.contracts.identifiers import INITIALISING
from segmentstore.contracts.segments import AttributeUpdate
from tests.http.memory_segment import State
from tests.http.memory_segments import MemorySegments
from tests.http.node import Node, running_node

TEXT = {"Content-Type": "text/plain"}


async def put(client: ClientSession, url: str, body: str = "", **headers: str) -> int:
    async with client.put(url, data=body, headers={**TEXT, **headers}) as answer:
        return answer.status


async def test_h63_of_concurrent_creates_exactly_one_makes_the_stream(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    answers = await asyncio.gather(*(put(client, node.stream("s"), f"{n}") for n in range(20)))
    assert sorted(answers) == [200] * 19 + [201]
    assert len(segments.content("s")) in {1, 2}


class StoppingSegments(MemorySegments):
    """Its container stops between a create and the first append."""

    stopped = True

    def submit(
        self,
        state: State,
        data: bytes | memoryview,
        offset: int | None,
        updates: Sequence[AttributeUpdate],
        *,
        seal: bool,
    ) -> "asyncio.Future[int]":
        if not self.stopped:
            return super().submit(state, data, offset, updates, seal=seal)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.set_exception(ContainerStoppedError("container stopped container=0"))
        return future


async def test_h73_a_create_that_stopped_half_way_left_nothing_to_see() -> None:
    segments = StoppingSegments()
    async with running_node(segments) as node, ClientSession() as client:
        assert await put(client, node.stream("s"), "first bytes") == 500
        assert INITIALISING in (await segments.info("s")).core_attributes
        async with client.get(node.stream("s")) as answer:
            assert answer.status == 404
        async with client.post(node.stream("s"), data="x", headers=TEXT) as answer:
            assert answer.status == 404
        segments.stopped = False
        assert await put(client, node.stream("s"), "first bytes") == 201
        assert segments.content("s") == b"first bytes"
        assert INITIALISING not in (await segments.info("s")).core_attributes


HALF_CREATED_IS_ABSENT = (
    ("POST", "append", b"x"),
    ("GET", "info", b""),
    ("GET", "read", b""),
    ("GET", "attributes", b""),
    ("PATCH", "attributes", b'{"updates": [{"key": "k", "value": 1}]}'),
    ("POST", "truncate", b'{"offset": 0}'),
    ("POST", "seal", b""),
    ("POST", "flush", b""),
    ("POST", "merge", b'{"source": "other"}'),
)


async def test_what_a_create_has_left_half_created_takes_no_append_that_would_go_with_it() -> None:
    segments = StoppingSegments()
    await segments.create("other")
    async with running_node(segments) as node, ClientSession() as client:
        assert await put(client, node.stream("s"), "first bytes") == 500
        segments.stopped = False
        for method, verb, body in HALF_CREATED_IS_ABSENT:
            async with client.request(method, node.segment(f"s/{verb}"), data=body) as answer:
                assert answer.status == 404, (method, verb)
        async with client.post(node.stream("s"), data="x", headers=TEXT) as answer:
            assert answer.status == 404
        async with client.get(f"{node.url}/v1/segments") as answer:
            assert [each["name"] for each in (await answer.json())["segments"]] == ["other"]
        assert await put(client, node.stream("s"), "first bytes") == 201
        assert segments.content("s") == b"first bytes"


async def test_a_segment_is_made_or_deleted_in_the_place_of_one_that_is_half_created() -> None:
    segments = StoppingSegments()
    async with running_node(segments) as node, ClientSession() as client:
        for name in ("made", "deleted"):
            assert await put(client, node.stream(name), "first bytes") == 500
        segments.stopped = False
        async with client.delete(node.segment("deleted")) as answer:
            assert answer.status == 404
        for status in (201, 409):
            async with client.put(node.segment("made/create")) as answer:
                assert answer.status == status
        async with client.post(node.segment("made/append"), data=b"x") as answer:
            assert (await answer.json())["length"] == 1
        assert segments.names() == ["made"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Stream-TTL": "5", "Stream-Expires-At": "2030-01-01T00:00:00Z"},
        {"Stream-TTL": "05"},
        {"Stream-TTL": "-1"},
        {"Stream-TTL": "٣"},
        {"Stream-Expires-At": "2030-01-01"},
        {"Stream-Expires-At": "2030-01-01T00:00:00"},
        {"Stream-Expires-At": "2030-W01-1T00:00:00Z"},
        {"Stream-Expires-At": "2030-13-01T00:00:00Z"},
        {"Stream-Expires-At": "soon"},
        {"Content-Type": "text"},
        {"Content-Type": "text/plain; x=" + "y" * 300},
        {"Content-Type": "te xt/plain"},
        {"Stream-Fork-Offset": "-1"},
        {"Stream-Forked-From": "/elsewhere/x"},
        {"Stream-Forked-From": "/v1/stream/a", "Stream-Fork-Sub-Offset": "+1"},
    ],
)
async def test_malformed_headers_create_nothing(
    node: Node, client: ClientSession, segments: MemorySegments, headers: dict[str, str]
) -> None:
    async with client.put(node.stream("s"), headers=headers) as answer:
        assert answer.status == 400
    assert segments.names() == []


async def test_a_json_body_that_does_not_parse_creates_nothing(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    assert await put(client, node.stream("s"), "{", **{"Content-Type": "application/json"}) == 400
    assert segments.names() == []


async def test_the_location_is_the_path_as_it_was_sent(node: Node, client: ClientSession) -> None:
    async with client.put(node.stream("a%20b/c"), headers=TEXT) as answer:
        assert answer.headers["Location"] == node.stream("a%20b/c")


async def test_a_fork_keeps_the_tokens_of_its_source_up_to_the_fork_point_only(
    node: Node, client: ClientSession
) -> None:
    await put(client, node.stream("source"), "0123456789")
    async with client.get(node.stream("source")) as answer:
        tail = answer.headers["Stream-Next-Offset"]
    middle = tail[:-2] + "04"
    forked = {"Stream-Forked-From": "/v1/stream/source", "Stream-Fork-Offset": middle}
    assert await put(client, node.stream("fork"), "XY", **forked) == 201
    async with client.get(node.stream("fork")) as answer:
        assert await answer.text() == "0123XY"
    async with client.get(node.stream("fork"), params={"offset": middle}) as answer:
        assert await answer.text() == "XY"
    async with client.get(node.stream("fork"), params={"offset": tail[:-2] + "05"}) as answer:
        assert answer.status == 410


async def test_a_truncated_source_cannot_be_forked(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    await put(client, node.stream("source"), "0123456789")
    await segments.truncate("source", 3)
    forked = {"Stream-Forked-From": "/v1/stream/source"}
    assert await put(client, node.stream("fork"), **forked) == 409
    assert "fork" not in segments.names()


async def test_registries_of_forks_are_gone_with_the_last_fork(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    await put(client, node.stream("source"), "x")
    for name in ("fork/1", "fork/2"):
        forked = {"Stream-Forked-From": "/v1/stream/source"}
        assert await put(client, node.stream(name), **forked) == 201
    for name, status in (("source", 410), ("fork/1", 410), ("fork/2", 404)):
        async with client.delete(node.stream(name)) as answer:
            assert answer.status == 204
        async with client.get(node.stream("source")) as answer:
            assert answer.status == status
    assert segments.names() == []


async def test_a_name_of_the_greatest_length_works_for_every_verb(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    url = node.stream("n" * 512)
    async with client.get(url) as answer:
        assert answer.status == 404
    assert await put(client, url, "x") == 201
    assert await put(client, node.stream("fork"), **{"Stream-Forked-From": url}) == 201
    assert max(len(name) for name in segments.names()) == 512
    async with client.delete(url) as answer:
        assert answer.status == 204
    async with client.get(url) as answer:
        assert answer.status == 410
