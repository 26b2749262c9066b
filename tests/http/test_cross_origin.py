"""Which pages and names may reach the server: by default no page but its own, and no name but its own."""

import socket

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import make_mocked_request

from segmentstore.http.cross_origin import CrossOrigin
from segmentstore.http.responses import Refusal
from segmentstore.http.settings import HttpSettings
from tests.http.memory_segments import MemorySegments
from tests.http.node import Node, running_node
from tests.http.raw_http import exchange

TEXT = {"Content-Type": "text/plain"}
EVIL = "https://evil.example"


def refusal_of(rules: CrossOrigin, **headers: str) -> int:
    """The status of the refusal; 0 if there is none."""
    try:
        rules.check(make_mocked_request("GET", "/", headers=headers))
    except Refusal as refusal:
        return refusal.status
    return 0


@pytest.mark.parametrize(
    ("listened", "accepted", "refused"),
    [
        (
            "127.0.0.1",
            ["127.0.0.1", "127.0.0.1:9091", "localhost:1", "LOCALHOST.", "a.localhost", "[::1]:9"],
            ["evil.example", "evil.example:9091", "10.0.0.1", "localhost.evil.example", "", "::2"],
        ),
        ("localhost", ["127.0.0.1:9091", "localhost", "[::1]"], ["evil.example", "10.0.0.1"]),
        ("::1", ["[::1]:9091", "localhost"], ["evil.example", "[::2]:9091"]),
        ("10.0.0.1", ["10.0.0.1", "10.0.0.1:9091"], ["10.0.0.2", "localhost", "evil.example"]),
        (
            "0.0.0.0",
            ["10.0.0.1:9091", "127.0.0.1", "localhost", "[fe80::1]:9", socket.gethostname()],
            ["evil.example", "evil.example:80"],
        ),
        ("::", ["10.0.0.1:9091", "[::1]"], ["evil.example"]),
        ("store.example", ["store.example:9091", "10.0.0.1"], ["localhost", "evil.example"]),
    ],
)
def test_a_host_has_to_be_one_that_is_listened_on(
    listened: str, accepted: list[str], refused: list[str]
) -> None:
    rules = CrossOrigin(listened_host=listened)
    for _ in range(2):
        assert {host: refusal_of(rules, Host=host) for host in accepted} == dict.fromkeys(
            accepted, 0
        )
        assert {host: refusal_of(rules, Host=host) for host in refused} == dict.fromkeys(
            refused, 421
        )


def test_further_hosts_can_be_configured() -> None:
    rules = CrossOrigin(listened_host="127.0.0.1", hosts=("store.example", "10.0.0.9"))
    for host in ("store.example", "Store.Example:443", "10.0.0.9:80", "localhost"):
        assert refusal_of(rules, Host=host) == 0
    assert refusal_of(rules, Host="evil.example") == 421
    assert (
        refusal_of(CrossOrigin(listened_host="127.0.0.1", hosts=("*",)), Host="evil.example") == 0
    )


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS"])
@pytest.mark.parametrize(
    "headers", [{"Origin": EVIL}, {"Host": "evil.example"}, {"Origin": EVIL, "Host": "evil.example"},
                {"Origin": "null"}, {"Host": "evil.example", "Origin": "http://evil.example"}]
)  # fmt: skip
async def test_a_foreign_page_reads_and_changes_nothing(
    node: Node,
    client: ClientSession,
    segments: MemorySegments,
    method: str,
    headers: dict[str, str],
) -> None:
    await segments.create("a")
    for path in ("stream/a", "segments/a/append", "segments/a/read", "segments/a"):
        url = f"{node.url}/v1/{path}"
        async with client.request(method, url, data="x", headers={**TEXT, **headers}) as answer:
            assert answer.status in {403, 421}
            assert "Access-Control-Allow-Origin" not in answer.headers
            assert "http." in (await answer.json())["error"]
    assert segments.content("a") == b""


async def test_a_page_of_the_server_itself_may_use_it(node: Node, client: ClientSession) -> None:
    headers = {**TEXT, "Origin": node.url}
    async with client.put(node.stream("a"), headers=headers) as answer:
        assert answer.status == 201
    async with client.get(node.stream("a"), headers=headers) as answer:
        assert answer.status == 200
        assert "Access-Control-Allow-Origin" not in answer.headers
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"


async def test_a_request_without_a_host_is_served(node: Node) -> None:
    status, _ = await exchange(node.url, b"GET /health HTTP/1.0\r\n\r\n")
    assert status == 200


async def test_configured_origins_and_only_they_may_use_the_server(
    segments: MemorySegments,
) -> None:
    friend = "https://friend.example"
    settings = HttpSettings(port=0, cors_origins=(friend, "http://other.example:8080"))
    async with running_node(segments, settings) as node, ClientSession() as client:
        url = node.stream("a")
        asked = {"Origin": friend, "Access-Control-Request-Method": "PUT"}
        async with client.options(url, headers=asked) as answer:
            assert answer.status == 204
            assert answer.headers["Access-Control-Allow-Origin"] == friend
            assert "PUT" in answer.headers["Access-Control-Allow-Methods"]
        async with client.put(url, headers={**TEXT, "Origin": friend}) as answer:
            assert answer.status == 201
            assert answer.headers["Access-Control-Allow-Origin"] == friend
        for live in ({}, {"live": "sse", "offset": "-1"}):
            async with client.get(url, params=live, headers={"Origin": friend}) as answer:
                assert answer.headers["Access-Control-Allow-Origin"] == friend
                assert answer.headers["Vary"] == "Origin"
                assert answer.headers["Cross-Origin-Resource-Policy"] == "cross-origin"
        async with client.get(url) as answer:
            # A cache must not give it to the page of a configured origin.
            assert answer.status == 200
            assert answer.headers["Vary"] == "Origin"
            assert "Access-Control-Allow-Origin" not in answer.headers
        async with client.put(url, headers={**TEXT, "Origin": EVIL}) as answer:
            assert answer.status == 403


SYSTEM = "_system/_tables/scopes"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *((method, f"stream/{SYSTEM}") for method in ("GET", "HEAD", "PUT", "POST", "DELETE")),
        ("DELETE", f"segments/{SYSTEM}"),
        ("DELETE", "segments/%5Fsystem%2F_tables/scopes"),
        ("PUT", f"segments/{SYSTEM}2/create"),
        ("POST", f"segments/{SYSTEM}/append"),
        ("GET", f"segments/{SYSTEM}/read"),
        ("POST", f"segments/{SYSTEM}/truncate"),
        ("POST", f"segments/{SYSTEM}/merge"),
        ("POST", "segments/a/merge"),
        ("POST", f"segments/{SYSTEM}/seal"),
        ("GET", f"segments/{SYSTEM}/attributes"),
        ("PATCH", f"segments/{SYSTEM}/attributes"),
        ("PUT", "stream/fork"),
    ],
)
async def test_the_stores_own_segments_are_not_for_data_verbs(
    node: Node, client: ClientSession, segments: MemorySegments, method: str, path: str
) -> None:
    for name in (SYSTEM, "a"):
        await segments.create(name)
    before = (await segments.info(SYSTEM)).sealed, segments.content(SYSTEM), segments.names()
    body = '{"source": "_system/_tables/scopes"}' if path.endswith("/merge") else ""
    headers = {"Stream-Forked-From": f"/v1/stream/{SYSTEM}"} if path == "stream/fork" else {}
    async with client.request(
        method, f"{node.url}/v1/{path}", data=body, headers={**TEXT, **headers}
    ) as answer:
        assert answer.status == 403
    after = (await segments.info(SYSTEM)).sealed, segments.content(SYSTEM), segments.names()
    assert after == before


async def test_the_stores_own_segments_can_be_looked_at_and_flushed(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    await segments.create(SYSTEM)
    async with client.get(f"{node.url}/v1/segments") as answer:
        assert [row["name"] for row in (await answer.json())["segments"]] == [SYSTEM]
    async with client.get(node.segment(f"{SYSTEM}/info")) as answer:
        assert answer.status == 200
    async with client.post(node.segment(f"{SYSTEM}/flush")) as answer:
        assert answer.status == 200
