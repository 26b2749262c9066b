"""Goal: topics over HTTP give back what was put in, in the order of its offsets, and say in words what they refuse.

Over segments and tables in memory, and real sockets.
"""

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from random import Random
from typing import Any

import pytest
from aiohttp import ClientSession
from crc32c import crc32c

from segmentstore.cluster.remote_partitions import RemotePartitions
from segmentstore.codec.container_hash import container_of
from segmentstore.codec.murmur2 import partition_of
from segmentstore.codec.record_batch import (
    BATCH_HEADER_BYTES,
    Compression,
    Record,
    check_batch,
    decode_batch,
    encode_batch,
)
from segmentstore.contracts.segments import Segment
from segmentstore.http.topic_verbs import BATCH_TYPE, EVENTS_TYPE, LINES_TYPE, TopicVerbs
from segmentstore.topics import consume
from segmentstore.topics.errors import PartitionUnavailableError
from segmentstore.topics.hot_records import HotRecords
from segmentstore.topics.partition import Partition
from segmentstore.topics.partition_log import Appended
from segmentstore.topics.settings import TopicSettings
from segmentstore.topics.topic_records import partition_segment_name
from segmentstore.topics.topics import Topics
from tests.http.memory_segments import MemorySegments
from tests.http.node import START_MS, Node, TurnableClock, running_node, until
from tests.reference.loop_turns import turns_of_loop, work_of_turns
from tests.reference.memory_tables import MemoryTables
from tests.topics.several_processes import CONTAINERS, Processes


class Served:
    """A node with topics that a test may take away."""

    def __init__(self, node: Node, topics: Topics, http: ClientSession) -> None:
        self.node = node
        self.topics: Topics | None = topics
        self.http = http

    async def call(self, method: str, path: str, **given: Any) -> tuple[int, Any]:
        url = f"{self.node.url}/v1/topics{path}"
        async with self.http.request(method, url, **given) as response:
            body = await response.read()
            return response.status, json.loads(body) if body else None

    async def read(self, path: str, **query: str | int) -> Any:
        status, body = await self.call("GET", path, params=query)
        assert status == 200, body
        return body


def encoding_seconds(count: int) -> float:
    """What it costs at least to write so many records as JSON."""
    shown = [{"offset": n, "timestamp_ms": 7, "key": None, "value": "v"} for n in range(count)]
    began = time.thread_time()
    json.dumps(shown)
    return time.thread_time() - began


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    segments = MemorySegments()
    topics = Topics(
        segments=segments,
        tables=MemoryTables(),
        wall_clock=TurnableClock(START_MS),
        random=Random(3),
        settings=TopicSettings(),
    )
    await topics.start()
    holder: list[Served] = []
    async with (
        running_node(segments, topics=lambda: holder[0].topics) as node,
        ClientSession() as http,
    ):
        holder.append(Served(node, topics, http))
        yield holder[0]
    await topics.close()


async def test_what_is_produced_is_read_in_its_order(served: Served) -> None:
    status, made = await served.call("PUT", "/orders", json={"partitions": 3})
    assert status == 201
    assert [each["partition"] for each in made["partitions"]] == [0, 1, 2]
    sent = [{"key": f"k{n % 5}", "value": f"v{n}"} for n in range(50)]
    status, answer = await served.call("POST", "/orders/records", json=sent)
    assert status == 200
    for record, place in zip(sent, answer["records"], strict=True):
        assert place["partition"] == partition_of(record["key"].encode(), partition_count=3)
    found: dict[tuple[int, int], tuple[str, str]] = {}
    for partition in range(3):
        body = await served.read(f"/orders/partitions/{partition}/records")
        offsets = [each["offset"] for each in body["records"]]
        assert offsets == list(range(len(offsets)))
        assert body["next_offset"] == body["high_watermark"] == len(offsets)
        for each in body["records"]:
            assert each["timestamp_ms"] >= START_MS
            found[partition, each["offset"]] = (each["key"], each["value"])
    assert [found[place["partition"], place["offset"]] for place in answer["records"]] == [
        (record["key"], record["value"]) for record in sent
    ]


async def test_lines_events_and_batches_are_the_same_records(served: Served) -> None:
    await served.call("PUT", "/t")
    lines = '{"value": "a"}\n\n{"key": "k", "value": null, "headers": [["h", null], ["h", "x"]]}\n'
    status, answer = await served.call(
        "POST", "/t/records", data=lines, headers={"Content-Type": LINES_TYPE}
    )
    assert (status, answer["records"][1]) == (200, {"partition": 0, "offset": 1})
    batch = encode_batch([Record(0, 7, None, b"\xff")], compression=Compression.GZIP)
    status, answer = await served.call(
        "POST", "/t/partitions/0/records", data=batch, headers={"Content-Type": BATCH_TYPE}
    )
    assert (status, answer["records"]) == (200, [{"partition": 0, "offset": 2}])
    as_json = (await served.read("/t/partitions/0/records", offset=1))["records"]
    assert [each["offset"] for each in as_json] == [1, 2]
    assert as_json[0]["headers"] == [["h", None], ["h", "x"]]
    assert (as_json[0]["value"], as_json[1]["value_base64"]) == (None, "/w==")
    url = f"{served.node.url}/v1/topics/t/partitions/0/records"
    async with served.http.get(url, headers={"Accept": LINES_TYPE}) as response:
        assert response.headers["Next-Offset"] == "3"
        text = await response.text()
    assert [json.loads(line) for line in text.splitlines()][1:] == as_json
    async with served.http.get(
        url, headers={"Accept": BATCH_TYPE}, params={"offset": 2}
    ) as response:
        (record,) = decode_batch(await response.read())
    assert (record.offset, record.timestamp_ms, record.value) == (2, 7, b"\xff")
    headers = {"Accept": EVENTS_TYPE, "Last-Event-ID": "0"}
    async with served.http.get(url, headers=headers) as response:
        events = [await response.content.readuntil(b"\n\n") for _ in range(2)]
        assert [event.split(b"\n")[0] for event in events] == [b"id:1", b"id:2"]
        assert [json.loads(event.split(b"\ndata:")[1]) for event in events] == as_json
        await served.call("POST", "/t/records", json=[{"value": "late"}])
        late = await response.content.readuntil(b"\n\n")
    assert b'"value":"late"' in late


async def test_a_reader_at_the_end_waits_for_a_record(served: Served) -> None:
    await served.call("PUT", "/t")
    path = "/t/partitions/0/records"
    assert (await served.read(path, offset="latest"))["records"] == []
    waiting = asyncio.create_task(served.read(path, offset="latest", wait_seconds=60))
    await until(lambda: len(served.node.server._waiters) == 1)
    assert not waiting.done()
    await served.call("POST", "/t/records", json=[{"value": "x"}])
    body = await waiting
    assert [each["value"] for each in body["records"]] == ["x"]


async def test_a_time_is_a_place(served: Served) -> None:
    await served.call("PUT", "/t", json={"config": {"message.timestamp.before.max.ms": "9" * 18}})
    sent = [{"value": str(n), "timestamp_ms": START_MS - 1000 + n} for n in range(9)]
    await served.call("POST", "/t/records", json=sent)
    body = await served.read("/t/partitions/0/records", offset=f"time:{START_MS - 1000 + 5}")
    assert [each["value"] for each in body["records"]] == ["5", "6", "7", "8"]
    body = await served.read("/t/partitions/0/records", offset=f"time:{START_MS + 10_000}")
    assert (body["records"], body["next_offset"]) == ([], 9)


async def test_a_record_that_comes_while_its_time_is_looked_for_is_read(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    await served.call("PUT", "/t")
    await served.call("POST", "/t/records", json=[{"value": "old", "timestamp_ms": START_MS - 1}])
    assert served.topics is not None
    partition = await served.topics.own_partition("t", 0)
    look = HotRecords.first_at_time

    async def followed_by_a_record(
        hot: HotRecords, segment: Segment, time_ms: int
    ) -> tuple[int, int] | None:
        found = await look(hot, segment, time_ms)
        await partition.produce(encode_batch([Record(0, START_MS, None, b"new")]))
        return found

    monkeypatch.setattr(HotRecords, "first_at_time", followed_by_a_record)
    body = await served.read("/t/partitions/0/records", offset=f"time:{START_MS}")
    assert [each["value"] for each in body["records"]] == ["new"]


@pytest.mark.parametrize("offset", ["latest", f"time:{START_MS + 86_400_000}"])
async def test_an_event_source_at_the_end_that_connects_again_misses_no_record(
    served: Served, offset: str
) -> None:
    """Also if its first connection ended without a record: browsers then know the id of an event without data."""
    await served.call("PUT", "/t")
    url = f"{served.node.url}/v1/topics/t/partitions/0/records"
    query, headers = {"offset": offset}, {"Accept": EVENTS_TYPE}
    for value in ("first", "second"):
        async with (
            asyncio.timeout(60),
            served.http.get(url, params=query, headers=headers) as response,
        ):
            begun = await response.content.readuntil(b"\n\n")
        last = begun.removeprefix(b"id:").removesuffix(b"\n\n").decode()
        await served.call("POST", "/t/records", json=[{"value": value}])
        again = {**headers, "Last-Event-ID": last}
        async with (
            asyncio.timeout(60),
            served.http.get(url, params=query, headers=again) as response,
        ):
            event = await response.content.readuntil(b"\n\n")
        assert f'"value":"{value}"' in event.decode()


async def test_a_topic_is_altered_and_deleted(served: Served) -> None:
    await served.call("PUT", "/t", json={"config": {"retention.ms": "1000"}})
    status, body = await served.call(
        "PATCH", "/t", json={"partitions": 2, "config": {"retention.ms": None}}
    )
    assert (status, len(body["partitions"])) == (200, 2)
    assert body["config"]["retention.ms"] == "604800000"
    assert await served.read("") == {"topics": ["t"]}
    assert await served.call("DELETE", "/t") == (204, None)
    assert await served.read("") == {"topics": []}
    assert (await served.call("GET", "/t"))[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "given", "status", "words"),
    [
        ("GET", "/no", {}, 404, "does not exist"),
        ("GET", "/t/partitions/9/records", {}, 404, "partition"),
        ("GET", "/t/partitions/x/records", {}, 400, "not a number"),
        ("GET", "/t/partitions/0/records", {"params": {"offset": "5"}}, 416, "log_start=0 next=0"),
        ("GET", "/t/partitions/0/records", {"params": {"offset": "soon"}}, 400, "offset"),
        ("GET", "/t/records", {}, 405, "POST"),
        ("GET", "/t/else", {}, 404, "records"),
        ("PUT", "/t", {}, 409, "exists"),
        ("PUT", "/..%2fx", {}, 400, "name"),
        ("PUT", "/new", {"json": {"partitions": 0}}, 400, "partitions"),
        ("PUT", "/new", {"json": {"config": {"no.such": "1"}}}, 400, "no.such"),
        ("PUT", "/new", {"json": {"config": {"retention.ms": 5}}}, 400, "texts"),
        ("PUT", "/new", {"json": {"config": {"retention.ms": None}}}, 400, "null"),
        ("PATCH", "/t", {"json": {"partitions": 0}}, 400, "partitions"),
        ("POST", "/t/records", {"json": {"value": "v"}}, 400, "records"),
        (
            "POST",
            "/t/records",
            {"data": "x", "headers": {"Content-Type": "text/plain"}},
            415,
            "are",
        ),
        ("POST", "/t/partitions/3/records", {"json": [{"value": "v"}]}, 404, "partition"),
        ("POST", "/t/records", {"data": b"x", "headers": {"Content-Type": BATCH_TYPE}}, 400, "one"),
        (
            "POST",
            "/t/partitions/0/records",
            {"data": b"x", "headers": {"Content-Type": BATCH_TYPE}},
            400,
            "batch",
        ),
    ],
)
async def test_what_is_refused_says_why(
    served: Served, method: str, path: str, given: Any, status: int, words: str
) -> None:
    await served.call("PUT", "/t")
    found, body = await served.call(method, path, **given)
    assert found == status, body
    assert words in body["error"], body
    # Nothing of it was stored.
    assert (await served.read("/t/partitions/0/records"))["high_watermark"] == 0


async def test_a_partition_that_another_process_has_just_added_takes_records() -> None:
    segments, tables = MemorySegments(), MemoryTables()
    here, there = (
        Topics(
            segments=segments,
            tables=tables,
            wall_clock=TurnableClock(START_MS),
            random=Random(seed),
            settings=TopicSettings(),
        )
        for seed in (3, 4)
    )
    await here.start()
    await there.start()
    await here.create("t", 1, {})
    async with running_node(segments, topics=lambda: here) as node, ClientSession() as http:
        served = Served(node, here, http)
        path, sent = "/t/partitions/1/records", [{"value": "v"}]
        assert (await served.call("POST", path, json=sent))[0] == 404
        await there.add_partitions("t", 2)
        status, body = await served.call("POST", path, json=sent)
        assert (status, body["records"]) == (200, [{"partition": 1, "offset": 0}])
    await here.close()
    await there.close()


async def test_topics_that_recover_are_a_503(served: Served) -> None:
    await served.call("PUT", "/t")
    there, served.topics = served.topics, None
    status, body = await served.call("POST", "/t/records", json=[{"value": "v"}])
    assert (status, body["kind"]) == (503, "unavailable")
    served.topics = there
    assert (await served.call("POST", "/t/records", json=[{"value": "v"}]))[0] == 200


@pytest.mark.parametrize(("method", "change"), [("PUT", "create"), ("PATCH", "alter")])
async def test_a_change_is_not_said_to_be_undone_when_topics_recover_before_it_is_told(
    served: Served, monkeypatch: pytest.MonkeyPatch, method: str, change: str
) -> None:
    if method == "PATCH":
        await served.call("PUT", "/t")
    topics = served.topics
    assert topics is not None
    make = getattr(topics, change)

    async def made_at_last(*asked: object) -> None:
        await make(*asked)
        served.topics = None

    monkeypatch.setattr(topics, change, made_at_last)
    asked = {"config": {"retention.ms": "86400000"}}
    status, body = await served.call(method, "/t", json=asked)
    assert (status, body["kind"]) == (500, "unavailable")
    served.topics = topics
    _, shown = await served.call("GET", "/t")
    assert shown["config"]["retention.ms"] == "86400000"


@pytest.mark.parametrize("partitions", ["many", 1, 0, -1, 1 << 40])
async def test_a_change_with_a_part_that_makes_no_sense_changes_nothing(
    served: Served, partitions: object
) -> None:
    await served.call("PUT", "/t", json={"partitions": 2})
    asked = {"config": {"retention.ms": "86400000"}, "partitions": partitions}
    assert (await served.call("PATCH", "/t", json=asked))[0] == 400
    _, shown = await served.call("GET", "/t")
    assert shown["config"]["retention.ms"] != "86400000"


async def test_large_bodies_keep_their_order(served: Served) -> None:
    await served.call("PUT", "/t")
    sent = [{"value": f"{n:05d}" + "x" * 100} for n in range(3_000)]
    status, answer = await served.call("POST", "/t/records", json=sent)
    assert status == 200
    assert [each["offset"] for each in answer["records"]] == list(range(3_000))
    found: list[str] = []
    while len(found) < 3_000:
        body = await served.read("/t/partitions/0/records", offset=len(found))
        found += [each["value"] for each in body["records"]]
    assert found == [each["value"] for each in sent]


@pytest.mark.slow
@pytest.mark.parametrize("accept", ["application/json", LINES_TYPE, EVENTS_TYPE])
async def test_a_reader_of_many_records_holds_up_no_other_request(
    served: Served, accept: str
) -> None:
    """Their batch has few bytes, and says nothing of how many they come to."""
    await served.call("PUT", "/t")
    many = [Record(0, 7, None, b"v")] * 50_000
    batch = encode_batch(many, compression=Compression.ZSTD)
    path = "/t/partitions/0/records"
    await served.call("POST", path, data=batch, headers={"Content-Type": BATCH_TYPE})
    url = f"{served.node.url}/v1/topics{path}"
    async with (
        turns_of_loop() as turns,
        served.http.get(url, headers={"Accept": accept}) as response,
    ):
        ends = 0
        while ends < len(many):
            ends += (await response.content.readany()).count(b"}")
    assert max(turns) < encoding_seconds(len(many))


@pytest.mark.parametrize("accept", ["application/json", LINES_TYPE, EVENTS_TYPE])
async def test_what_is_shown_at_once_is_bounded_however_few_bytes_it_was_compressed_to(
    served: Served, accept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left comes with the next answer, or event, from where the one before says that it ended."""
    monkeypatch.setattr(consume, "TOLD_BYTES_MAX", 1 << 18)
    await served.call("PUT", "/t")
    path = "/t/partitions/0/records"
    batch = encode_batch([Record(0, 7, None, b"x" * (1 << 17))] * 3, compression=Compression.ZSTD)
    for _ in range(2):
        await served.call("POST", path, data=batch, headers={"Content-Type": BATCH_TYPE})
    url = f"{served.node.url}/v1/topics{path}"
    found, offset = [], 0
    while offset < 6:
        query = {"offset": str(offset)}
        async with served.http.get(url, params=query, headers={"Accept": accept}) as response:
            if accept == EVENTS_TYPE:
                content = b""
                while content.count(b"\n\n") < 6:
                    content += await response.content.readany()
                found = [int(each) for each in re.findall(rb"^id:(\d+)$", content, re.MULTILINE)]
                break
            shown = await response.text()
        rows = (
            [json.loads(line) for line in shown.splitlines()]
            if accept == LINES_TYPE
            else json.loads(shown)["records"]
        )
        assert 1 <= len(rows) <= 2
        found += [row["offset"] for row in rows]
        offset = found[-1] + 1
    assert found == list(range(6))


async def test_a_batch_is_not_told_of_more_records_than_an_answer_may_have(served: Served) -> None:
    """How many records a compressed batch has is its producer's word, and takes no byte more however many it names."""
    await served.call("PUT", "/t")
    path, headers = "/t/partitions/0/records", {"Content-Type": BATCH_TYPE}
    batch = bytearray(encode_batch([Record(0, 7, None, b"v")], compression=Compression.ZSTD))
    for count in (1 << 21, (1 << 31) - 1):
        batch[23:27], batch[57:61] = (count - 1).to_bytes(4, "big"), count.to_bytes(4, "big")
        batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
        check_batch(batch)
        status, body = await served.call("POST", path, data=bytes(batch), headers=headers)
        assert (status, body["kind"]) == (413, "too_large")
    many = encode_batch([Record(0, 7, None, b"v")] * 5_000, compression=Compression.ZSTD)
    status, body = await served.call("POST", path, data=many, headers=headers)
    assert (status, [each["offset"] for each in body["records"]]) == (200, [*range(5_000)])


async def test_others_are_served_while_very_many_partitions_are_shown(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 500
    status, made = await served.call("PUT", "/t", json={"partitions": count})
    assert (status, len(made["partitions"])) == (201, count)
    show = TopicVerbs._shown_partition
    async with work_of_turns() as shown:

        async def counted(verbs: TopicVerbs, name: str, index: int) -> Mapping[str, object]:
            shown.note()
            return await show(verbs, name, index)

        monkeypatch.setattr(TopicVerbs, "_shown_partition", counted)
        status, told = await served.call("GET", "/t")
    assert (status, told) == (200, made)
    assert shown.total == count
    assert max(shown.each_turn) < count / 10


@pytest.mark.slow
async def test_a_producer_of_many_records_holds_up_no_other_request(served: Served) -> None:
    await served.call("PUT", "/t", json={"partitions": 100})
    many = 50_000
    body = b"\n".join([b'{"key":"%d"}' % (number % 1000) for number in range(many)])
    url = f"{served.node.url}/v1/topics/t/records"
    async with (
        turns_of_loop() as turns,
        served.http.post(url, data=body, headers={"Content-Type": LINES_TYPE}) as response,
    ):
        content = await response.read()
    assert max(turns) < encoding_seconds(many)
    ends: Counter[int] = Counter()
    for place in json.loads(content)["records"]:
        assert place["offset"] == ends[place["partition"]]
        ends[place["partition"]] += 1
    assert ends.total() == many


async def test_what_is_stored_in_part_is_told_so(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    await served.call("PUT", "/t", json={"partitions": 2})
    topics = served.topics
    assert topics is not None
    other = await topics.own_partition("t", 1)

    def refuse(_batch: object) -> "asyncio.Future[Appended]":
        answer: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        answer.set_exception(PartitionUnavailableError("its container moves", stored=False))
        return answer

    monkeypatch.setattr(
        Partition,
        "produce",
        lambda self, batch, real=Partition.produce: (
            refuse(batch) if self is other else real(self, batch)
        ),
    )
    sent = [{"key": f"k{n}", "value": "v"} for n in range(10)]
    status, body = await served.call("POST", "/t/records", json=sent)
    assert (status, body["kind"]) == (500, "unavailable")
    assert "are stored partitions=[0]" in body["error"]
    assert (await served.read("/t/partitions/0/records"))["high_watermark"] > 0
    assert (await served.read("/t/partitions/1/records"))["high_watermark"] == 0


async def _in_two_containers(served: Served, topics: Topics) -> str:
    """Makes topic "t" until its two partitions are; the segment of the second one."""
    for _ in range(100):
        await served.call("PUT", "/t", json={"partitions": 2})
        found = topics.describe("t")
        assert found is not None
        segments = [partition_segment_name("t", found.topic_id, n) for n in range(2)]
        if len({container_of(each, CONTAINERS) for each in segments}) == 2:
            return segments[1]
        await served.call("DELETE", "/t")
    raise AssertionError("all in one container")


async def test_a_topic_is_told_of_while_a_partition_has_no_leader() -> None:
    store = Processes(1)
    (process,) = store.processes
    topics = store.topics(process, remote_partitions=RemotePartitions(locations=process))
    await topics.start()
    async with (
        running_node(store.segments, topics=lambda: topics) as node,
        ClientSession() as http,
    ):
        served = Served(node, topics, http)
        away_segment = await _in_two_containers(served, topics)
        store.move(away_segment, None)
        topics.close_left()
        process.look()
        body = await served.read("/t")
        assert body["partitions"][0] == {
            "partition": 0,
            "log_start_offset": 0,
            "high_watermark": 0,
        }
        away = body["partitions"][1]
        assert (away["partition"], away["high_watermark"]) == (1, None)
        assert "no process is known to lead" in away["unavailable"]
        status, _ = await served.call("PATCH", "/t", json={"config": {"retention.ms": "9"}})
        assert status == 200, "what is changed is changed, whatever cannot be shown"
    await topics.close()


async def test_a_batch_that_cannot_be_read_is_named_and_hides_no_other(served: Served) -> None:
    """Goal: a producer's batch whose records do not decompress is told of by its offsets, and can be passed over.

    Method: its checksum is right, so it is stored, as by Kafka: what is inside is its readers' matter.
    """
    await served.call("PUT", "/t", json={"partitions": 1})
    path = "/t/partitions/0/records"
    sound = encode_batch([Record(n, START_MS, None, b"sound") for n in range(2)])
    lost = [Record(n, START_MS, None, b"lost") for n in range(3)]
    broken = bytearray(encode_batch(lost, compression=Compression.GZIP))
    broken[BATCH_HEADER_BYTES:] = bytes(len(broken) - BATCH_HEADER_BYTES)
    broken[17:21] = crc32c(bytes(broken[21:])).to_bytes(4, "big")
    for batch in (sound, bytes(broken), sound):
        status, _ = await served.call(
            "POST", path, data=batch, headers={"Content-Type": BATCH_TYPE}
        )
        assert status == 200
    told = await served.read(path, offset=0)
    assert [each["value"] for each in told["records"]] == ["sound", "sound"]
    assert told["next_offset"] == 2
    for accept in ("application/json", LINES_TYPE, EVENTS_TYPE):
        status, refused = await served.call(
            "GET", path, params={"offset": 3}, headers={"Accept": accept}
        )
        assert (status, refused["kind"]) == (500, "corrupt")
        assert "first_offset=2 next_offset=5" in refused["error"]
    assert [each["offset"] for each in (await served.read(path, offset=5))["records"]] == [5, 6]
