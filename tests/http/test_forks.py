"""Forks beside everything that creates, renames, merges and removes streams.

Whatever happens at once, every request is answered; and once all streams are gone, every name is free again and no
count of forks is left.
"""

import asyncio
import json
from collections.abc import Sequence
from random import Random

import pytest
from aiohttp import ClientSession
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.test_utils import make_mocked_request

from segmentstore.contracts.identifiers import INITIALISING
from segmentstore.contracts.segments import ReadOnlySegment, read_available
from segmentstore.http import stream_create
from segmentstore.http.health_and_metrics import NodeHealth
from segmentstore.http.requests import is_reserved
from segmentstore.http.server import HttpServer, build_server
from segmentstore.http.settings import HttpSettings
from tests.http.memory_segments import MemorySegments
from tests.http.node import START_MS, Node, TurnableClock, healthy_container, running_node
from tests.reference.loop_turns import work_of_turns

TEXT = {"Content-Type": "text/plain"}
NAMES = ("a", "b", "c")
SOON = "2027-01-15T08:00:00.300Z"
"""0.3 seconds behind START_MS."""
FORK_TEXT = "x" * 40


def forked_from(name: str) -> dict[str, str]:
    return {**TEXT, "Stream-Forked-From": f"/v1/stream/{name}"}


async def answer_of(
    client: ClientSession, method: str, url: str, headers: dict[str, str], data: str = ""
) -> int:
    async with asyncio.timeout(60), client.request(method, url, headers=headers, data=data) as got:
        return got.status


async def test_a_stream_is_not_forked_from_itself(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    for _ in range(2):
        assert await answer_of(client, "PUT", node.stream("x"), forked_from("x")) == 400
        assert await answer_of(client, "PUT", node.stream("x"), TEXT) in {200, 201}
    assert segments.names() == ["x"]


async def test_two_streams_that_are_forked_from_one_another_are_both_answered(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    statuses = await asyncio.gather(
        answer_of(client, "PUT", node.stream("p"), forked_from("q")),
        answer_of(client, "PUT", node.stream("q"), forked_from("p")),
    )
    assert sorted(statuses) == [404, 404]
    assert segments.names() == []


async def test_a_fork_whose_source_is_gone_is_still_there_when_it_is_asked_for_again(
    node: Node, client: ClientSession
) -> None:
    assert await answer_of(client, "PUT", node.stream("a"), TEXT, "x") == 201
    assert await answer_of(client, "PUT", node.stream("b"), forked_from("a")) == 201
    assert await answer_of(client, "DELETE", node.stream("a"), {}) == 204
    assert await answer_of(client, "PUT", node.stream("b"), forked_from("a")) == 200
    assert await answer_of(client, "PUT", node.stream("c"), forked_from("a")) == 409


@pytest.mark.parametrize("place", ["now", "-1", f"{0:016d}_{0:016d}", None])
async def test_a_fork_that_is_asked_for_again_is_the_same_wherever_it_begins(
    node: Node, client: ClientSession, place: str | None
) -> None:
    asked = forked_from("a") if place is None else {**forked_from("a"), "Stream-Fork-Offset": place}
    assert await answer_of(client, "PUT", node.stream("a"), TEXT, "x") == 201
    for status in (201, 200):
        assert await answer_of(client, "PUT", node.stream("b"), asked) == status
        assert await answer_of(client, "POST", node.stream("a"), TEXT, "y") == 204


async def test_others_are_served_while_a_place_is_looked_for_behind_very_many_messages(
    segments: MemorySegments, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = HttpSettings(port=0, window_bytes=1_000)
    headers = {"Content-Type": "application/json"}
    messages = json.dumps([0] * 100_000)
    async with running_node(segments, settings) as node, ClientSession() as client:
        assert await answer_of(client, "PUT", node.stream("a"), headers, messages) == 201
        async with work_of_turns() as looks:

            async def counted(segment: ReadOnlySegment, offset: int, length_max: int) -> bytes:
                looks.note()
                return await read_available(segment, offset, length_max)

            monkeypatch.setattr(stream_create, "read_available", counted)
            forked = {**forked_from("a"), **headers, "Stream-Fork-Offset": "-1"}
            asked = {**forked, "Stream-Fork-Sub-Offset": "999999999"}
            assert await answer_of(client, "PUT", node.stream("b"), asked) == 400
    assert looks.total > 200
    assert max(looks.each_turn) < 20


async def test_a_name_that_forks_keep_is_not_free_for_a_segment_either(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    assert await answer_of(client, "PUT", node.stream("a"), TEXT, "x") == 201
    assert await answer_of(client, "PUT", node.stream("b"), forked_from("a")) == 201
    # It is there: that it has a fork makes no difference.
    assert await answer_of(client, "PUT", node.segment("a/create"), {}) == 409
    assert await answer_of(client, "DELETE", node.stream("a"), {}) == 204
    assert await answer_of(client, "PUT", node.segment("a/create"), {}) == 409
    assert await answer_of(client, "GET", node.stream("a"), {}) == 410
    assert await answer_of(client, "DELETE", node.stream("b"), {}) == 204
    assert await answer_of(client, "PUT", node.segment("a/create"), {}) == 201
    assert segments.names() == ["a"]


async def test_a_fork_that_is_merged_away_gives_its_sources_name_free(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    assert await answer_of(client, "PUT", node.stream("a"), TEXT, "x") == 201
    assert await answer_of(client, "PUT", node.stream("b"), forked_from("a")) == 201
    closed = {"Stream-Closed": "true"}
    assert await answer_of(client, "POST", node.stream("b"), closed) == 204
    assert await answer_of(client, "DELETE", node.stream("a"), {}) == 204
    assert await answer_of(client, "GET", node.stream("a"), {}) == 410
    assert await answer_of(client, "PUT", node.segment("c/create"), {}) == 201
    async with client.post(node.segment("c/merge"), json={"source": "b"}) as merged:
        assert merged.status == 200
    assert await answer_of(client, "GET", node.stream("a"), {}) == 404
    assert await answer_of(client, "PUT", node.stream("a"), TEXT) == 201
    assert segments.names() == ["a", "c"]


async def test_a_source_that_is_merged_away_keeps_its_name_for_its_forks(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    closed = {**TEXT, "Stream-Closed": "true"}
    assert await answer_of(client, "PUT", node.stream("a"), closed, "x") == 201
    open_fork = {**forked_from("a"), "Stream-Closed": "false"}
    assert await answer_of(client, "PUT", node.stream("b"), open_fork) == 201
    assert await answer_of(client, "PUT", node.segment("c/create"), {}) == 201
    async with client.post(node.segment("c/merge"), json={"source": "a"}) as merged:
        assert merged.status == 200
    assert await answer_of(client, "GET", node.stream("a"), {}) == 410
    assert await answer_of(client, "DELETE", node.stream("b"), {}) == 204
    assert await answer_of(client, "GET", node.stream("a"), {}) == 404
    assert segments.names() == ["c"]


async def test_a_json_stream_is_not_forked_inside_a_message(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    json_type = {"Content-Type": "application/json"}
    body = '[{"aaaa":1},{"b":2}]'
    async with client.put(node.stream("a"), data=body, headers=json_type) as made:
        end = made.headers["Stream-Next-Offset"]
    boundary = len('{"aaaa":1}\n')
    for offset in range(int(end[-16:]) + 1):
        forked = {
            **json_type,
            "Stream-Forked-From": "/v1/stream/a",
            "Stream-Fork-Offset": f"{end[:-16]}{offset:016d}",
        }
        status = await answer_of(client, "PUT", node.stream("b"), forked)
        if offset not in {0, boundary, int(end[-16:])}:
            assert status == 400
            assert segments.names() == ["a"]
            continue
        assert status == 201
        async with client.get(node.stream("b"), params={"offset": "-1"}) as read:
            assert len(await read.json()) == segments.content("a")[:offset].count(b"\n")
        assert await answer_of(client, "DELETE", node.stream("b"), {}) == 204


async def one_client(node: Node, client: ClientSession, random: Random, count: int) -> None:
    for _ in range(count):
        name, other = random.choice(NAMES), random.choice(NAMES)
        stream = node.stream(name)
        match random.randrange(8):
            case 0:
                await answer_of(client, "PUT", stream, TEXT, FORK_TEXT)
            case 1:
                await answer_of(client, "PUT", stream, {**TEXT, "Stream-Expires-At": SOON})
            case 2 | 3 | 4:
                await answer_of(client, "PUT", stream, forked_from(other))
            case 5:
                await answer_of(client, "DELETE", stream, {})
            case 6:
                await answer_of(client, "POST", stream, {"Stream-Closed": "true"})
            case 7:
                async with (
                    asyncio.timeout(60),
                    client.post(node.segment(f"{name}/merge"), json={"source": other}),
                ):
                    pass


async def remove_all(node: Node, client: ClientSession) -> None:
    for name in NAMES:
        await answer_of(client, "DELETE", node.stream(name), {})


@pytest.mark.parametrize("seed", range(20))
async def test_any_mixture_of_requests_is_answered_and_leaves_every_name_free(seed: int) -> None:
    random = Random(seed)
    segments = MemorySegments()
    settings = HttpSettings(port=0, tick_seconds=0.02, sweep_interval_seconds=0.05)
    async with running_node(segments, settings) as node, ClientSession() as client:
        await asyncio.gather(
            *(one_client(node, client, Random(random.random()), 20) for _ in range(6))
        )
        await remove_all(node, client)
        assert segments.names() == []


# --- clients that leave --------------------------------------------------------------------------


def server_over(segments: MemorySegments) -> HttpServer:
    return build_server(
        segments=segments,
        health=lambda: NodeHealth(containers=[healthy_container()], containers_expected=1),
        metrics=dict,
        wall_clock=TurnableClock(START_MS),
        random=Random(1),
        settings=HttpSettings(port=0, read_bytes_max=8),
    )


async def ask(
    server: HttpServer, method: str, path: str, headers: dict[str, str] | None = None
) -> int:
    request = make_mocked_request(method, path, headers=headers or {}, payload=EMPTY_PAYLOAD)
    return (await server.router.handle(request)).status


async def ask_and_leave(work: "asyncio.Task[int]", turns: int) -> bool:
    """Whether the request had not ended when its client left, after so many turns of the loop."""
    for _ in range(turns):
        await asyncio.sleep(0)
    left = not work.done()
    work.cancel()
    await asyncio.wait([work])
    return left


async def settle() -> None:
    """What goes on behind a client that left has ended."""
    for _ in range(300):
        await asyncio.sleep(0)


async def visible(segments: MemorySegments) -> list[str]:
    return [
        name
        for name in segments.names()
        if not is_reserved(name) and INITIALISING not in (await segments.info(name)).core_attributes
    ]


LEAVING: Sequence[tuple[str, str, dict[str, str]]] = (
    ("PUT", "/v1/stream/b", forked_from("a")),
    ("DELETE", "/v1/stream/a", {}),
    ("DELETE", "/v1/stream/f", {}),
    ("DELETE", "/v1/segments/f", {}),
)


@pytest.mark.parametrize(("method", "path", "headers"), LEAVING)
async def test_a_client_that_leaves_at_any_moment_leaves_no_name_taken(
    method: str, path: str, headers: dict[str, str]
) -> None:
    turns = 0
    left = True
    while left:
        segments = MemorySegments()
        server = server_over(segments)
        await segments.create("a")
        async with segments.open_segment("a") as source:
            await source.append(FORK_TEXT.encode())
        octets = {"Stream-Forked-From": "/v1/stream/a"}
        assert await ask(server, "PUT", "/v1/stream/f", octets) == 201
        given = {name: value for name, value in headers.items() if name != "Content-Type"}
        task = asyncio.ensure_future(ask(server, method, path, given))
        left = await ask_and_leave(task, turns)
        await settle()
        for name in await visible(segments):
            assert segments.content(name) == FORK_TEXT.encode(), f"a part of it turns={turns}"
            assert await ask(server, "DELETE", f"/v1/stream/{name}") == 204
        for name in ("a", "b", "f"):
            status = await ask(server, "GET", f"/v1/stream/{name}")
            assert status == 404, f"name={name} turns={turns} names={segments.names()}"
        turns += 1
    assert turns > 5
