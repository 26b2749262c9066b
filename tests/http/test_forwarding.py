"""Requests at a node that has not got the container: passed on once, and told for what they are when that fails."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from io import BytesIO

import pytest
from aiohttp import ClientPayloadError, ClientSession

from segmentstore.contracts.cluster import ClusterNode
from segmentstore.contracts.containers import HostId
from segmentstore.contracts.errors import ContainerNotFoundError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.http.settings import HttpSettings
from tests.http.node import until
from tests.http.nodes_in_cluster import (
    PATIENT,
    SETTINGS,
    ClusterMember,
    TwoNodes,
    name_in,
    running_member,
    two_nodes,
)

TEXT = {"Content-Type": "text/plain"}
FAR, NEAR = ContainerId(1), ContainerId(0)
NAME = name_in(FAR)


@pytest.fixture
async def nodes() -> AsyncIterator[TwoNodes]:
    async with two_nodes(PATIENT) as running:
        yield running


@pytest.fixture
async def impatient() -> AsyncIterator[TwoNodes]:
    """For requests that find no owner."""
    async with two_nodes() as running:
        yield running


@pytest.fixture
async def client() -> AsyncIterator[ClientSession]:
    async with ClientSession() as session:
        yield session


async def test_a_stream_is_used_whole_at_a_node_that_has_not_got_it(
    nodes: TwoNodes, client: ClientSession
) -> None:
    url = nodes.near.node.stream(NAME)
    async with client.put(url, headers=TEXT) as answer:
        assert answer.status == 201
        assert answer.headers["Location"] == url
    token = ""
    for text in ("a", "b", "c"):
        async with client.post(url, data=text, headers=TEXT) as answer:
            assert answer.status == 204
            token = answer.headers["Stream-Next-Offset"]
            assert "Segment-Forwarded-By" not in answer.headers
    assert nodes.far.segments.content(NAME) == b"abc"
    assert nodes.near.segments.names() == []
    async with client.get(url) as answer:
        assert (answer.status, await answer.read()) == (200, b"abc")
        assert answer.headers["Stream-Next-Offset"] == token
        etag = answer.headers["ETag"]
    async with client.get(url, headers={"If-None-Match": etag}) as answer:
        assert answer.status == 304
    async with client.head(url) as answer:
        assert (answer.status, answer.headers["Stream-Next-Offset"]) == (200, token)
        assert answer.headers["Content-Type"] == "text/plain"
    async with client.get(nodes.near.node.segment(f"{NAME}/info")) as answer:
        assert (await answer.json())["length"] == 3
    async with client.delete(url) as answer:
        assert answer.status == 204
    async with client.get(url) as answer:
        assert answer.status == 404


async def test_names_and_queries_go_through_as_they_were_sent(
    nodes: TwoNodes, client: ClientSession
) -> None:
    name = name_in(FAR, "ä b%/")
    await nodes.far.segments.create(name)
    async with client.post(
        nodes.near.node.segment(f"{name.replace('%', '%25')}/append?offset=0"), data=b"x"
    ) as answer:
        assert (answer.status, await answer.json()) == (200, {"length": 1, "offset": 0})


async def test_long_bodies_are_passed_on_both_ways(nodes: TwoNodes, client: ClientSession) -> None:
    body = bytes(range(256)) * 4096 * 3
    await nodes.far.segments.create(NAME)

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 100_000):
            yield body[start : start + 100_000]

    async with client.post(nodes.near.node.segment(f"{NAME}/append"), data=pieces()) as answer:
        assert answer.status == 200
    async with client.post(nodes.near.node.segment(f"{NAME}/append"), data=BytesIO(body)) as answer:
        assert answer.status == 200
    async with client.get(nodes.near.node.segment(f"{NAME}/read")) as answer:
        assert await answer.read() == body * 2


async def test_a_body_that_the_owner_finds_too_large_is_refused_before_it_is_sent(
    nodes: TwoNodes, client: ClientSession
) -> None:
    await nodes.far.segments.create(NAME)
    async with asyncio.timeout(60):
        async with client.post(
            nodes.near.node.segment(f"{NAME}/append"),
            data=BytesIO(b"x" * (9 << 20)),
            expect100=True,
        ) as answer:
            assert answer.status == 413
        async with client.post(
            nodes.near.node.segment(f"{NAME}/append"), data=b"y" * 100_000, expect100=True
        ) as answer:
            assert answer.status == 200


async def test_a_reader_that_waits_at_another_node_is_woken_by_an_append(
    nodes: TwoNodes, client: ClientSession
) -> None:
    url = nodes.near.node.stream(NAME)
    async with client.put(url, headers=TEXT):
        pass
    poll = asyncio.ensure_future(client.get(url, params={"live": "long-poll", "offset": "now"}))
    async with client.get(url, params={"live": "sse", "offset": "-1"}) as events:
        assert events.headers["Content-Type"] == "text/event-stream"
        assert b"upToDate" in await events.content.readuntil(b"\n\n")
        await until(lambda: waiting_readers(nodes.far) == 2)
        async with client.post(nodes.far.node.stream(NAME), data="x", headers=TEXT):
            pass
        async with await poll as answer:
            assert (answer.status, await answer.read()) == (200, b"x")
        assert await events.content.readuntil(b"\n\n") == b"event: data\ndata:x\n\n"


async def test_a_client_that_leaves_ends_its_wait_at_the_other_node_too(nodes: TwoNodes) -> None:
    async with ClientSession() as client:
        url = nodes.near.node.stream(NAME)
        async with client.put(url, headers=TEXT):
            pass
        poll = asyncio.ensure_future(client.get(url, params={"live": "long-poll", "offset": "now"}))
        await until(lambda: waiting_readers(nodes.far) == 1)
        poll.cancel()
        await until(lambda: waiting_readers(nodes.far) == 0)


async def test_a_node_that_stops_ends_the_waits_of_its_readers_at_other_nodes(
    client: ClientSession,
) -> None:
    async with two_nodes() as nodes:
        url = nodes.near.node.stream(NAME)
        async with client.put(url, headers=TEXT):
            pass
        poll = asyncio.ensure_future(client.get(url, params={"live": "long-poll", "offset": "now"}))
        async with client.get(url, params={"live": "sse", "offset": "-1"}) as events:
            await events.content.readuntil(b"\n\n")
            await until(lambda: waiting_readers(nodes.far) == 2)
            async with asyncio.timeout(SETTINGS.long_poll_seconds / 2):
                await nodes.near.node.server.close()
            async with await poll as answer:
                assert answer.status == 503


def waiting_readers(member: ClusterMember) -> int:
    return len(member.node.server._waiters)


async def test_pages_of_other_origins_are_judged_where_they_ask(client: ClientSession) -> None:
    settings = replace(SETTINGS, cors_origins=("https://example.org",))
    async with two_nodes(settings) as nodes:
        url = nodes.near.node.stream(NAME)
        origin = {"Origin": "https://example.org"}
        async with client.put(url, headers={**TEXT, **origin}) as answer:
            assert answer.headers["Access-Control-Allow-Origin"] == "https://example.org"
        async with client.get(url, headers=origin) as answer:
            assert answer.headers.getall("Access-Control-Allow-Origin") == ["https://example.org"]
        async with client.get(url, headers={"Origin": "https://evil.example"}) as answer:
            assert answer.status == 403


# --- moves ----------------------------------------------------------------------------------------


async def test_a_request_waits_for_a_container_that_is_on_its_way(
    nodes: TwoNodes, client: ClientSession
) -> None:
    await nodes.far.segments.create(NAME)
    await nodes.near.segments.create(NAME)
    for target in (nodes.far, nodes.near):
        nodes.move(FAR, None)
        request = asyncio.ensure_future(
            client.post(nodes.near.node.segment(f"{NAME}/append"), data=b"x")
        )
        await asyncio.sleep(0.1)
        assert not request.done()
        nodes.move(FAR, target)
        async with await request as answer:
            assert answer.status == 200
        assert target.segments.content(NAME) == b"x"


async def test_h86_a_node_without_the_container_says_so_and_the_request_finds_the_right_one(
    nodes: TwoNodes, client: ClientSession
) -> None:
    """The first node believes the old place; the body was read for the first try."""
    await nodes.near.segments.create(NAME)
    nodes.move(FAR, nodes.near)
    nodes.near.locations.owners[FAR] = nodes.far.node_id
    nodes.near.served.discard(FAR)

    async def arrives() -> None:
        await until(lambda: nodes.near.locations.refreshes >= 2)
        nodes.near.served.add(FAR)

    arrival = asyncio.ensure_future(arrives())
    async with client.post(nodes.near.node.segment(f"{NAME}/append"), data=b"x") as answer:
        assert answer.status == 200
    await arrival
    assert nodes.near.segments.content(NAME) == b"x"


async def test_h86_nothing_is_passed_on_twice(impatient: TwoNodes, client: ClientSession) -> None:
    """Each believes that the other has it."""
    impatient.far.locations.owners[FAR] = impatient.near.node_id
    impatient.far.served.discard(FAR)
    async with asyncio.timeout(60):
        async with client.post(impatient.near.node.segment(f"{NAME}/append"), data=b"x") as answer:
            assert answer.status == 503
            assert answer.headers["Retry-After"] == "1"
            assert "Segment-Wrong-Node" not in answer.headers


async def test_h83_a_node_whose_lease_is_over_answers_for_none_of_its_containers(
    impatient: TwoNodes, client: ClientSession
) -> None:
    name = name_in(NEAR)
    await impatient.near.segments.create(name)
    impatient.near.lease_valid[0] = False
    async with client.get(impatient.near.node.segment(f"{name}/info")) as answer:
        assert answer.status == 503
    await impatient.far.segments.create(NAME)
    async with client.get(impatient.near.node.segment(f"{NAME}/info")) as answer:
        assert answer.status == 200


async def test_so_many_requests_wait_and_no_more(client: ClientSession) -> None:
    settings = replace(SETTINGS, forwarded_requests_max=1, owner_wait_seconds=60)
    async with two_nodes(settings) as nodes:
        nodes.move(FAR, None)
        url = nodes.near.node.segment(f"{NAME}/info")
        requests = [asyncio.ensure_future(client.get(url)) for _ in range(2)]
        (refused,), (waiting,) = await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
        async with await refused as answer:
            assert answer.status == 503
            assert "too many" in (await answer.json())["error"]
        nodes.move(FAR, nodes.near)
        async with await waiting as answer:
            assert answer.status == 404


# --- an owner that fails --------------------------------------------------------------------------

Behaviour = Callable[[StreamReader, StreamWriter], Awaitable[None]]


class ScriptedOwner:
    """Takes connections, and does with each request what it is told."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.requests = 0
        self._behaviour = behaviour
        self._tasks: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ClusterNode]:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        try:
            yield ClusterNode(HostId("far"), f"127.0.0.1:{port}", "127.0.0.1:1", 0, "test")
        finally:
            self._server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.append(task)
        try:
            await reader.readuntil(b"\r\n\r\n")
            self.requests += 1
            await self._behaviour(reader, writer)
        finally:
            writer.close()


async def closes(_reader: StreamReader, _writer: StreamWriter) -> None:
    """Before it answers."""


async def closes_in_the_body(reader: StreamReader, _writer: StreamWriter) -> None:
    await reader.read(10)


async def answers_half_a_head(_reader: StreamReader, writer: StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-")
    await writer.drain()


async def answers_half_a_body(_reader: StreamReader, writer: StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
    await writer.drain()


async def says_nothing(reader: StreamReader, _writer: StreamWriter) -> None:
    await reader.read()


async def is_no_http(_reader: StreamReader, writer: StreamWriter) -> None:
    writer.write(b"what?\r\n\r\n")
    await writer.drain()


@asynccontextmanager
async def node_beside(
    behaviour: Behaviour, settings: HttpSettings = SETTINGS
) -> AsyncIterator[tuple[ClusterMember, ScriptedOwner]]:
    owner = ScriptedOwner(behaviour)
    async with running_member("near", settings) as near, owner.running() as registration:
        near.locations.registered = {registration.node_id: registration}
        near.locations.owners = {FAR: registration.node_id}
        yield near, owner


@pytest.mark.parametrize(
    "behaviour", [closes, closes_in_the_body, answers_half_a_head, answers_half_a_body, is_no_http]
)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_h86_a_change_whose_answer_is_lost_is_sent_once_and_answered_with_502(
    client: ClientSession, behaviour: Behaviour, method: str
) -> None:
    if method == "DELETE" and behaviour is closes_in_the_body:
        pytest.skip("it has none")
    async with node_beside(behaviour) as (near, owner):
        body = None if method == "DELETE" else b"x" * 200_000
        async with client.request(
            method, near.node.stream(NAME), data=body, headers=TEXT
        ) as answer:
            assert answer.status == 502
            assert (await answer.json())["kind"] == "unavailable"
        assert owner.requests == 1


@pytest.mark.parametrize("behaviour", [closes, answers_half_a_head, answers_half_a_body])
async def test_a_read_whose_answer_is_lost_is_tried_again(
    client: ClientSession, behaviour: Behaviour
) -> None:
    async def at_first(reader: StreamReader, writer: StreamWriter) -> None:
        if owner.requests == 1:
            await behaviour(reader, writer)
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfound")

    async with node_beside(at_first, PATIENT) as (near, owner):
        async with client.get(near.node.stream(NAME)) as answer:
            assert (answer.status, await answer.read()) == (200, b"found")
        assert owner.requests == 2


async def test_a_read_whose_answers_are_all_lost_ends_with_503(client: ClientSession) -> None:
    async with (
        node_beside(closes) as (near, _),
        client.get(near.node.stream(NAME)) as answer,
    ):
        assert answer.status == 503


async def test_h86_an_owner_that_nothing_listens_for_is_503_for_a_change(
    client: ClientSession,
) -> None:
    async with node_beside(closes) as (near, owner):
        dead = replace(near.locations.registered[HostId("far")], http="127.0.0.1:1")
        near.locations.registered[dead.node_id] = dead
        for body in (b"x", b"x" * 200_000):
            async with client.post(near.node.stream(NAME), data=body, headers=TEXT) as answer:
                assert answer.status == 503
        assert owner.requests == 0


async def test_h86_an_owner_that_stands_still_is_waited_for_until_its_registration_is_gone(
    client: ClientSession,
) -> None:
    async with node_beside(says_nothing) as (near, owner):
        request = asyncio.ensure_future(
            client.post(near.node.stream(NAME), data=b"x", headers=TEXT)
        )
        await until(lambda: owner.requests == 1)
        await asyncio.sleep(0.3)
        assert not request.done()
        near.locations.registered.clear()
        async with asyncio.timeout(60), await request as answer:
            assert answer.status == 504


async def test_an_answer_that_arrives_behind_the_word_that_its_node_is_gone_is_passed_on(
    client: ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_found_gone = asyncio.Event()

    async def answers_last(_reader: StreamReader, writer: StreamWriter) -> None:
        await is_found_gone.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")

    async with node_beside(answers_last) as (near, owner):
        url = near.node.segment(f"{NAME}/append")
        request = asyncio.ensure_future(client.post(url, data=b"x"))
        await until(lambda: owner.requests == 1)

        def none_is_registered() -> Sequence[ClusterNode]:
            is_found_gone.set()
            return []

        monkeypatch.setattr(near.locations, "nodes", none_is_registered)
        async with asyncio.timeout(60), await request as answer:
            assert answer.status == 200


@pytest.mark.parametrize("asked", ["near", "far"])
async def test_a_container_that_leaves_behind_the_look_at_it_costs_a_wait_and_no_refusal(
    nodes: TwoNodes, client: ClientSession, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """The container is at `near`, takes the request, and is at `far` when its work begins."""
    name = name_in(NEAR)
    await nodes.far.segments.create(name)
    was_met = 0

    def leaves(_name: str) -> object:
        nonlocal was_met
        was_met += 1
        nodes.move(NEAR, nodes.far)
        raise ContainerNotFoundError(NEAR, "it is stopping")

    monkeypatch.setattr(nodes.near.segments, "open_segment", leaves)
    server = (nodes.near if asked == "near" else nodes.far).node
    async with client.post(server.segment(f"{name}/append"), data=b"abc") as answer:
        assert answer.status == 200
    nodes.move(NEAR, nodes.near)
    async with client.get(server.segment(f"{name}/read")) as answer:
        assert (answer.status, await answer.read()) == (200, b"abc")
    assert was_met == 2
    assert nodes.near.segments.names() == []


async def test_a_long_body_whose_container_leaves_is_refused_as_not_done(
    nodes: TwoNodes, client: ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leaves(_name: str) -> object:
        nodes.move(NEAR, nodes.far)
        raise ContainerNotFoundError(NEAR, "it is stopping")

    monkeypatch.setattr(nodes.near.segments, "open_segment", leaves)
    body = bytes(SETTINGS.forward_kept_bytes_max + 1)
    url = nodes.near.node.segment(f"{name_in(NEAR)}/append")
    async with client.post(url, data=body) as answer:
        assert answer.status == 503


async def test_an_answer_that_breaks_off_half_way_is_no_whole_one(client: ClientSession) -> None:
    async def half(_reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 100_000)
        await writer.drain()

    async with (
        node_beside(half) as (near, _),
        client.get(near.node.segment(f"{NAME}/read")) as answer,
    ):
        assert answer.status == 200
        with pytest.raises(ClientPayloadError):
            await answer.read()


async def test_a_body_that_breaks_off_is_no_whole_one_for_the_owner(nodes: TwoNodes) -> None:
    await nodes.far.segments.create(NAME)
    host, port = nodes.near.node.server.address
    _, writer = await asyncio.open_connection(host, port)
    writer.write(
        f"POST /v1/segments/{NAME}/append HTTP/1.1\r\nHost: localhost\r\n"
        "Content-Length: 200000\r\n\r\n".encode()
        + b"x" * 100_000
    )
    await writer.drain()
    await asyncio.sleep(0.1)
    writer.close()
    await asyncio.sleep(0.1)
    assert nodes.far.segments.content(NAME) == b""
    assert nodes.near.node.server.router is not None
