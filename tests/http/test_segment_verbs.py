import json
import threading
from contextlib import aclosing
from dataclasses import replace

import pytest
from aiohttp import ClientConnectionError, ClientPayloadError, ClientSession
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from segmentstore.cli.http_client import HttpClient
from segmentstore.contracts.errors import ContainerNotFoundError, SegmentNotFoundError
from segmentstore.contracts.identifiers import CONTENT_TYPE, EVENT_COUNT, AttributeKey, ContainerId
from segmentstore.contracts.segments import AttributeUpdate, SegmentProperties
from segmentstore.http import requests, segment_verbs
from segmentstore.http.segment_verbs import bytes_of_text, text_of_bytes
from segmentstore.http.settings import HttpSettings
from segmentstore.http.stream_attributes import producer_key
from tests.http.memory_segments import MemorySegments
from tests.http.node import Node, running_node
from tests.reference.loop_turns import work_of_turns


async def call(
    client: ClientSession,
    method: str,
    url: str,
    body: object = None,
    *,
    data: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, dict[str, object]]:
    async with client.request(
        method, URL(url, encoded=True), data=data, json=body, headers=headers
    ) as answer:
        value: dict[str, object] = await answer.json()
        return answer.status, value


@pytest.mark.parametrize("former", ["text/plain", "application/json"])
async def test_an_append_meets_the_segment_that_has_the_name_now(
    node: Node, client: ClientSession, segments: MemorySegments, former: str
) -> None:
    """Another server of the process deletes a segment that is open here, and makes another one of its name."""
    async with client.put(node.stream("a"), headers={"Content-Type": former}) as made:
        assert made.status == 201
    update = json.dumps([{"key": "k", "value": 1}])
    status, _ = await call(
        client, "POST", node.segment("a/append"), headers={"Segment-Attributes": update}
    )
    assert status == 200
    await segments.delete("a")
    await segments.create("a")
    status, answer = await call(client, "POST", node.segment("a/append"), data=b"x")
    assert (status, answer) == (200, {"length": 1, "offset": 0})
    await segments.delete("a")
    assert (await call(client, "POST", node.segment("a/append"), data=b"x"))[0] == 404


@given(st.binary(max_size=20))
def test_attribute_bytes_survive_their_text_form(value: bytes) -> None:
    assert bytes_of_text(text_of_bytes(value)) == value


async def test_others_are_served_while_very_many_attributes_of_a_segment_are_shown(
    node: Node, client: ClientSession, segments: MemorySegments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each writer of events leaves one."""
    count = 5_000
    writers = [AttributeKey(b"writer-%09d" % number) for number in range(count)]
    await segments.create("s", [AttributeUpdate(key, number) for number, key in enumerate(writers)])
    async with work_of_turns() as shown:

        def counted(value: bytes) -> str:
            shown.note()
            return text_of_bytes(value)

        monkeypatch.setattr(segment_verbs, "text_of_bytes", counted)
        status, attributes = await call(client, "GET", node.segment("s/attributes"))
    assert (status, len(attributes)) == (200, count)
    assert attributes == {key.decode(): number for number, key in enumerate(writers)}
    assert shown.total == count
    assert max(shown.each_turn) < count / 10


async def test_a_segment_lives_through_all_its_verbs(node: Node, client: ClientSession) -> None:
    status, made = await call(client, "PUT", node.segment("a/b/create"))
    assert (status, made["name"], made["length"]) == (201, "a/b", 0)
    assert (await call(client, "PUT", node.segment("a/b/create")))[0] == 409
    status, answer = await call(client, "POST", node.segment("a/b/append"), data=b"0123456789")
    assert (status, answer) == (200, {"length": 10, "offset": 0})
    status, answer = await call(client, "POST", node.segment("a/b/truncate"), {"offset": 4})
    assert (status, answer["start_offset"]) == (200, 4)
    async with client.get(node.segment("a/b/read")) as read:
        assert await read.read() == b"456789"
        assert read.headers["Segment-Offset"] == "4"
        assert read.headers["Segment-Length"] == "10"
        assert read.headers["Content-Disposition"] == "attachment"
    status, answer = await call(client, "POST", node.segment("a/b/flush"))
    assert (status, answer["storage_length"]) == (200, 10)
    assert (await call(client, "POST", node.segment("a/b/seal")))[1] == {"length": 10}
    status, answer = await call(client, "POST", node.segment("a/b/append"), data=b"x")
    assert (status, answer["kind"]) == (409, "conflict")
    status, info = await call(client, "GET", node.segment("a/b/info"))
    assert info["sealed"] is True
    assert {"container", "throttle", "attributes", "storage_length", "last_modified_ms"} <= set(
        info
    )
    assert (await call(client, "DELETE", node.segment("a/b")))[0] == 200
    assert (await call(client, "GET", node.segment("a/b/info")))[0] == 404


async def test_the_last_part_is_the_verb_also_when_the_name_ends_like_one(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    await call(client, "PUT", node.segment("a/info/create"))
    assert segments.names() == ["a/info"]
    status, info = await call(client, "GET", node.segment("a/info/info"))
    assert (status, info["name"]) == (200, "a/info")
    assert (await call(client, "GET", node.segment("a/info")))[0] == 404
    assert (await call(client, "GET", node.segment("a%2Finfo/info")))[0] == 200
    assert (await call(client, "DELETE", node.segment("a/info")))[0] == 200


async def test_h73_bytes_attributes_and_seal_of_an_append_are_one_operation(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    await call(client, "PUT", node.segment("s/create"))
    updates = [{"key": "writer", "value": 7}, {"key": "hex:00ff", "value": "text"}]
    headers = {"Segment-Attributes": json.dumps(updates), "Segment-Seal": "true"}
    status, _ = await call(
        client, "POST", node.segment("s/append?offset=0"), data=b"x", headers=headers
    )
    assert (status, segments.append_count) == (200, 1)
    _, attributes = await call(client, "GET", node.segment("s/attributes"))
    assert attributes == {"writer": 7, "hex:00ff": "text"}
    assert (await segments.info("s")).sealed


async def test_a_conditional_append_stores_all_or_nothing(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    await call(client, "PUT", node.segment("s/create"))
    await call(client, "POST", node.segment("s/append"), data=b"abc")
    headers = {"Segment-Attributes": '[{"key": "k", "value": 1}]'}
    status, answer = await call(
        client, "POST", node.segment("s/append?offset=2"), data=b"x", headers=headers
    )
    assert status == 409
    assert "expected=3 given=2" in str(answer["error"])
    assert segments.content("s") == b"abc"
    assert await segments.attributes("s") == {}


async def test_attribute_updates_are_conditional_when_asked(
    node: Node, client: ClientSession
) -> None:
    await call(client, "PUT", node.segment("s/create"))
    url = node.segment("s/attributes")
    first = {"key": "k", "value": 1, "type": "replace_if_equals", "comparison": None}
    assert (await call(client, "PATCH", url, {"updates": [first]}))[0] == 200
    assert (await call(client, "PATCH", url, {"updates": [first]}))[0] == 409
    more = {"key": "k", "value": 5, "type": "accumulate"}
    assert (await call(client, "PATCH", url, {"updates": [more]}))[0] == 200
    assert (await call(client, "GET", url))[1] == {"k": 6}
    gone = {"key": "k", "value": None}
    assert (await call(client, "PATCH", url, {"updates": [gone]}))[0] == 200
    assert (await call(client, "GET", url))[1] == {}


@pytest.mark.parametrize(
    "updates",
    [
        "x",
        [],
        [7],
        [{"value": 1}],
        [{"key": "", "value": 1}],
        [{"key": "k" * 256, "value": 1}],
        [{"key": "k", "value": 1.5}],
        [{"key": "k", "value": True}],
        [{"key": "k", "value": 1 << 63}],
        [{"key": "k", "value": "v" * 1025}],
        [{"key": "k", "value": 1, "type": "sum"}],
        [{"key": "k", "value": 1, "typ": "replace"}],
        [{"key": "k", "value": "x", "type": "accumulate"}],
        [{"key": "hex:0", "value": 1}],
        [{"key": text_of_bytes(CONTENT_TYPE), "value": "text/html"}],
        [{"key": text_of_bytes(producer_key("p")), "value": 1}],
        [{"key": text_of_bytes(EVENT_COUNT), "value": -100}],
        [{"key": "hex:80000000000000000000000000100000", "value": 1}],
    ],
)
async def test_malformed_or_reserved_attribute_updates_change_nothing(
    node: Node, client: ClientSession, segments: MemorySegments, updates: object
) -> None:
    await call(client, "PUT", node.segment("s/create"))
    status, answer = await call(client, "PATCH", node.segment("s/attributes"), {"updates": updates})
    assert (status, answer["kind"]) == (400, "invalid")
    assert await segments.attributes("s") == {}
    if updates:
        given = {"attributes": updates}
        assert (await call(client, "PUT", node.segment("t/create"), given))[0] == 400


async def test_h61_a_merge_across_containers_says_what_would_work() -> None:
    segments = MemorySegments(container_count=8)
    async with running_node(segments) as node, ClientSession() as client:
        target = "target"
        await segments.create(target)
        home = (await segments.info(target)).container_id
        names = [f"source{number}" for number in range(50)]
        homes = {name: (await segments.create(name)).container_id for name in names}
        source = next(name for name in names if homes[name] != home)
        await segments.seal(source)
        status, answer = await call(
            client, "POST", node.segment("target/merge"), {"source": source}
        )
        assert (status, answer["kind"]) == (409, "conflict")
        assert "name the source" in str(answer["error"])


async def test_a_sealed_source_goes_to_the_end_of_its_target(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    for name in ("a", "b"):
        await call(client, "PUT", node.segment(f"{name}/create"))
        await call(client, "POST", node.segment(f"{name}/append"), data=name.encode())
    url = node.segment("a/merge")
    assert (await call(client, "POST", url, {"source": "b"}))[0] == 409
    await call(client, "POST", node.segment("b/seal"))
    assert await call(client, "POST", url, {"source": "b"}) == (200, {"length": 2})
    assert segments.content("a") == b"ab"
    assert (await call(client, "POST", url, {"source": "b"}))[0] == 404
    with pytest.raises(SegmentNotFoundError):
        await segments.merge("a", "b")


async def test_messages_of_a_json_stream_stay_whole_whatever_the_verb(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    json_type = {"Content-Type": "application/json"}
    async with client.put(node.stream("j"), data="[10,20]", headers=json_type):
        pass
    assert (await call(client, "POST", node.segment("j/append"), data=b"raw"))[0] == 409
    assert (await call(client, "POST", node.segment("j/truncate"), {"offset": 2}))[0] == 409
    assert (await call(client, "POST", node.segment("j/truncate"), {"offset": 3}))[0] == 200
    await segments.create("raw")
    await segments.seal("raw")
    assert (await call(client, "POST", node.segment("j/merge"), {"source": "raw"}))[0] == 409
    async with client.get(node.stream("j")) as answer:
        assert await answer.json() == [20]


async def test_the_list_pages_in_name_order_and_hides_what_is_reserved(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    for name in ("b/2", "b/1", "a", "b/3", "c", "__ds/forks/x"):
        await segments.create(name)
    seen: list[str] = []
    after = ""
    for _ in range(5):
        async with client.get(
            f"{node.url}/v1/segments", params={"prefix": "b/", "after": after, "limit": "2"}
        ) as answer:
            page = await answer.json()
        seen += [each["name"] for each in page["segments"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert seen == ["b/1", "b/2", "b/3"]
    async with client.get(f"{node.url}/v1/segments") as answer:
        assert [each["name"] for each in (await answer.json())["segments"]] == [
            "a", "b/1", "b/2", "b/3", "c",
        ]  # fmt: skip


async def test_everything_is_flushed_what_is_internal_too_or_it_is_said_what_is_not(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    for name in ("a", "__ds/forks/x"):
        await segments.create(name)
        async with segments.open_segment(name) as segment:
            await segment.append(b"content")
    async with client.post(f"{node.url}/v1/flush") as answer:
        assert answer.status == 204
    assert [(await segments.info(name)).storage_length for name in segments.names()] == [7, 7]
    node.containers[0] = replace(node.containers[0], ready=False, cause="the disk failed")
    status, refusal = await call(client, "POST", f"{node.url}/v1/flush")
    assert status == 503
    assert "the disk failed" in str(refusal)
    node.containers.clear()
    assert (await call(client, "POST", f"{node.url}/v1/flush"))[0] == 503
    assert (await call(client, "GET", f"{node.url}/v1/flush"))[0] == 405


async def test_a_listing_goes_on_behind_pages_in_which_everything_is_internal(
    node: Node, segments: MemorySegments
) -> None:
    for name in (*(f"__ds/forks/{number}" for number in range(7)), "a", "b"):
        await segments.create(name)
    async with HttpClient(node.url) as client, aclosing(client.list_all(page=2)) as listed:
        assert [info.name async for info in listed] == ["a", "b"]


async def test_h53_a_big_read_is_streamed_in_windows(segments: MemorySegments) -> None:
    settings = HttpSettings(port=0, window_bytes=1000)
    async with running_node(segments, settings) as node, ClientSession() as client:
        await segments.create("s")
        content = bytes(range(256)) * 2000
        async with segments.open_segment("s") as segment:
            await segment.append(content)
        async with client.get(node.segment("s/read")) as answer:
            assert answer.headers["Content-Length"] == str(len(content))
            assert await answer.read() == content
        async with client.get(node.segment("s/read?offset=1001&length=5000")) as answer:
            assert await answer.read() == content[1001:6001]
        async with client.get(node.segment(f"s/read?offset={len(content)}")) as answer:
            assert (answer.status, await answer.read()) == (200, b"")
        async with client.get(node.segment(f"s/read?offset={len(content) + 1}")) as answer:
            assert answer.status == 409
        for bad in ("-1", "x", "1e3", "9" * 30):
            async with client.get(node.segment(f"s/read?offset={bad}")) as answer:
                assert answer.status == 400


async def test_a_read_whose_bytes_vanish_is_cut_and_never_looks_whole(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    await segments.create("s")
    async with segments.open_segment("s") as segment:
        for _ in range(8):
            await segment.append(bytes(4 << 20))
    async with client.get(node.segment("s/read")) as answer:
        assert answer.headers["Content-Length"] == str(32 << 20)
        await answer.content.readexactly(1000)
        await segments.delete("s")
        with pytest.raises((ClientPayloadError, ClientConnectionError)):
            await answer.read()


@pytest.mark.parametrize(
    ("method", "rest", "status"),
    [
        ("GET", "s/append", 405),
        ("POST", "s/info", 405),
        ("GET", "s", 404),
        ("POST", "append", 404),
        ("POST", "s/nonsense", 404),
        ("PUT", "a/../b/create", 400),
        ("PUT", "__ds/x/create", 400),
        ("DELETE", "__ds/forks/x", 400),
        ("POST", "s/append", 400),
        ("POST", "none/seal", 404),
        ("POST", "none/append?offset=0", 400),
    ],
)
async def test_requests_that_make_no_sense_get_a_sentence(
    node: Node,
    client: ClientSession,
    segments: MemorySegments,
    method: str,
    rest: str,
    status: int,
) -> None:
    await segments.create("s")
    got, answer = await call(client, method, node.segment(rest))
    assert got == status
    assert answer["error"]
    assert segments.names() == ["s"]


async def test_a_truncation_is_told_though_its_container_takes_no_further_request() -> None:
    class LeavingSegments(MemorySegments):
        """What is under way ends; a request that comes behind it is refused."""

        async def info(self, name: str) -> SegmentProperties:
            raise ContainerNotFoundError(ContainerId(0), "container is stopping")

    segments = LeavingSegments()
    await segments.create("s")
    async with running_node(segments) as node, ClientSession() as client:
        await call(client, "POST", node.segment("s/append"), data=b"0123456789")
        status, answer = await call(client, "POST", node.segment("s/truncate"), {"offset": 4})
    assert (status, answer["start_offset"], answer["length"]) == (200, 4, 10)


@pytest.mark.parametrize("count", [1, 1_000])
async def test_a_large_body_is_parsed_beside_the_loop(
    node: Node,
    client: ClientSession,
    segments: MemorySegments,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
) -> None:
    threads: list[int] = []
    parse = requests.parse_json

    def noting(text: str | bytes) -> object:
        threads.append(threading.get_ident())
        return parse(text)

    monkeypatch.setattr(requests, "parse_json", noting)
    updates = [{"key": f"key {number}", "value": "x" * 100} for number in range(count)]
    body = {"updates": updates}
    await call(client, "PUT", node.segment("s/create"))
    url = node.segment("s/attributes")
    assert await call(client, "PATCH", url, body) == (200, {"updated": count})
    assert len(await segments.attributes("s")) == count
    for wrong in (json.dumps(body)[:-1], json.dumps({**body, "other": 1}), json.dumps([body])):
        assert (await call(client, "PATCH", url, data=wrong.encode()))[0] == 400
    beside = [thread != threading.get_ident() for thread in threads]
    assert beside == [count > 1] * 4
