"""What the protocol remembers, after the whole store was closed and recovered from its log."""

from pathlib import Path

import pytest
from aiohttp import ClientSession

from tests.http.node import running_node
from tests.integration.durable_streams.stores import containers

pytestmark = pytest.mark.integration

TEXT = {"Content-Type": "text/plain"}


def producer(sequence: int) -> dict[str, str]:
    return {**TEXT, "Producer-Id": "p", "Producer-Epoch": "2", "Producer-Seq": str(sequence)}


async def test_h73_a_recovered_store_knows_its_producers_and_closers(tmp_path: Path) -> None:
    async with (
        containers(tmp_path) as segments,
        running_node(segments) as node,
        ClientSession() as client,
    ):
        for name in ("open", "closed"):
            async with client.put(node.stream(name), headers={**TEXT, "Stream-TTL": "600"}):
                pass
            async with client.post(node.stream(name), data="a", headers=producer(0)) as answer:
                assert answer.status == 200
        closing = {**producer(1), "Stream-Closed": "true"}
        async with client.post(node.stream("closed"), data="z", headers=closing) as answer:
            assert answer.status == 200
        async with client.get(node.stream("open")) as answer:
            token, etag = answer.headers["Stream-Next-Offset"], answer.headers["ETag"]
    async with (
        containers(tmp_path) as segments,
        running_node(segments) as node,
        ClientSession() as client,
    ):
        async with client.post(node.stream("open"), data="a", headers=producer(0)) as answer:
            assert (answer.status, answer.headers["Producer-Seq"]) == (204, "0")
        async with client.post(node.stream("open"), data="b", headers=producer(2)) as answer:
            assert (answer.status, answer.headers["Producer-Expected-Seq"]) == (409, "1")
        async with client.post(node.stream("closed"), data="z", headers=closing) as answer:
            assert (answer.status, answer.headers["Stream-Closed"]) == (204, "true")
        async with client.get(node.stream("closed")) as answer:
            assert await answer.text() == "az"
            assert answer.headers["Stream-Closed"] == "true"
        async with client.head(node.stream("open")) as answer:
            assert answer.headers["Stream-TTL"] == "600"
            assert answer.headers["Stream-Next-Offset"] == token
        async with client.get(node.stream("open"), headers={"If-None-Match": etag}) as answer:
            assert answer.status == 304
