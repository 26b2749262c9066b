"""What a node remembers of streams while their containers come and go."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from aiohttp import ClientSession

from segmentstore.contracts.identifiers import ContainerId
from segmentstore.http.stream_attributes import StreamConfiguration
from tests.http.node import until
from tests.http.nodes_in_cluster import CONTAINERS, SETTINGS, TwoNodes, name_in, two_nodes

FAR, NEAR, NEAR_TOO = ContainerId(1), ContainerId(0), ContainerId(2)
TEXT = {"Content-Type": "text/plain"}


@pytest.fixture
async def nodes() -> AsyncIterator[TwoNodes]:
    async with two_nodes(replace(SETTINGS, sweep_interval_seconds=0.05)) as running:
        yield running


@pytest.fixture
async def client() -> AsyncIterator[ClientSession]:
    async with ClientSession() as session:
        yield session


async def test_each_node_removes_the_streams_that_are_over_in_its_containers(
    nodes: TwoNodes, client: ClientSession
) -> None:
    for container in range(CONTAINERS):
        headers = {**TEXT, "Stream-Expires-At": "2027-01-15T09:00:00Z"}
        async with client.put(
            nodes.near.node.stream(name_in(container)), headers=headers
        ) as answer:
            assert answer.status == 201
    for member in (nodes.near, nodes.far):
        assert len(member.segments.names()) == 2
    for member in (nodes.near, nodes.far):
        member.node.clock.jump_seconds = 7200
        async with client.post(f"{member.node.url}/v1/clocks/settle") as answer:
            assert answer.status == 200
    await until(lambda: not nodes.near.segments.names() and not nodes.far.segments.names())


async def test_a_stream_that_comes_back_counts_as_accessed_then(nodes: TwoNodes) -> None:
    """Meanwhile it was read at the other node, which this one cannot know."""
    name = name_in(NEAR)
    await nodes.near.segments.create(name)
    properties = await nodes.near.segments.info(name)
    expiry = nodes.near.node.server._directory.expiry
    at_once = StreamConfiguration(time_to_live_seconds=0)
    expiry.touch(properties, at_once)
    assert expiry.has_expired(properties, at_once)
    nodes.near.node.server.forget_container(
        ContainerId(properties.container_id), container_count=CONTAINERS
    )
    assert not expiry.has_expired(properties, at_once)


async def test_what_is_open_of_a_container_is_let_go_of_with_it(
    nodes: TwoNodes, client: ClientSession
) -> None:
    name = name_in(NEAR)
    async with client.put(nodes.near.node.stream(name), headers=TEXT):
        pass
    async with client.post(nodes.near.node.stream(name), data="x", headers=TEXT):
        pass
    assert nodes.near.segments.pin_count(name) == 1
    nodes.near.node.server.forget_container(NEAR, container_count=CONTAINERS)
    await until(lambda: nodes.near.segments.pin_count(name) == 0)


async def test_a_stream_is_forked_within_a_node_and_not_across_nodes(
    nodes: TwoNodes, client: ClientSession
) -> None:
    source = name_in(NEAR)
    async with client.put(nodes.near.node.stream(source), data="abc", headers=TEXT):
        pass
    forked_from = {**TEXT, "Stream-Forked-From": f"/v1/stream/{source}"}
    for container, status in ((NEAR_TOO, 201), (FAR, 501)):
        url = nodes.far.node.stream(name_in(container, "fork"))
        async with client.put(url, headers=forked_from) as answer:
            assert answer.status == status
    async with client.get(nodes.far.node.stream(name_in(NEAR_TOO, "fork"))) as answer:
        assert await answer.read() == b"abc"
    # The source's name stays taken while it has a fork, by a record in the source's container.
    async with client.delete(nodes.far.node.stream(source)) as answer:
        assert answer.status == 204
    async with client.get(nodes.far.node.stream(source)) as answer:
        assert answer.status == 410
    async with client.delete(nodes.far.node.stream(name_in(NEAR_TOO, "fork"))) as answer:
        assert answer.status == 204
    async with client.get(nodes.far.node.stream(source)) as answer:
        assert answer.status == 404
    assert nodes.near.segments.names() == []
