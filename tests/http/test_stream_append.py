import asyncio

import pytest
from aiohttp import ClientSession

from segmentstore.contracts.errors import (
    BadAttributeUpdateError,
    ContainerNotFoundError,
    ContainerStoppedError,
    LogNotPrimaryError,
    SegmentStoreError,
    StoreFullError,
)
from segmentstore.http.settings import HttpSettings
from tests.http.memory_segments import MemorySegments
from tests.http.node import Node, running_node
from tests.http.raw_http import post

TEXT = {"Content-Type": "text/plain"}


def producer(sequence: int, *, epoch: int = 0, producer_id: str = "p") -> dict[str, str]:
    return {
        **TEXT,
        "Producer-Id": producer_id,
        "Producer-Epoch": str(epoch),
        "Producer-Seq": str(sequence),
    }


async def create(client: ClientSession, url: str, **headers: str) -> None:
    async with client.put(url, headers={**TEXT, **headers}) as answer:
        assert answer.status == 201


async def append(
    client: ClientSession, url: str, body: str, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str]]:
    async with client.post(url, data=body, headers=headers or TEXT) as answer:
        return answer.status, dict(answer.headers)


async def submissions(segments: MemorySegments, count: int) -> None:
    """Wait until so many appends were handed to the segments."""
    async with asyncio.timeout(60):
        while segments.append_count < count:
            await asyncio.sleep(0.001)


async def test_h73_bytes_producer_sequence_and_close_are_one_operation(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    await create(client, node.stream("s"))
    headers = {**producer(0), "Stream-Seq": "a", "Stream-Closed": "true"}
    status, answer = await append(client, node.stream("s"), "last", headers)
    assert (status, answer["Stream-Closed"]) == (200, "true")
    assert segments.append_count == 1
    properties = await segments.info("s")
    assert properties.sealed
    assert segments.content("s") == b"last"


async def test_concurrent_duplicates_of_a_producer_store_once_and_all_succeed(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    await create(client, node.stream("s"))
    segments.hold()
    requests = [
        asyncio.ensure_future(append(client, node.stream("s"), "x", producer(0))) for _ in range(20)
    ]
    await submissions(segments, 1)
    segments.let_go()
    answers = await asyncio.gather(*requests)
    assert sorted(status for status, _ in answers) == [200] + [204] * 19
    assert {headers["Producer-Seq"] for _, headers in answers} == {"0"}
    assert segments.content("s") == b"x"


async def test_h24_a_duplicate_is_not_confirmed_before_its_original_has_committed(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    await create(client, node.stream("s"))
    segments.hold()
    original = asyncio.ensure_future(append(client, node.stream("s"), "x", producer(0)))
    await submissions(segments, 1)
    duplicate = asyncio.ensure_future(append(client, node.stream("s"), "x", producer(0)))
    await asyncio.sleep(0.05)
    assert not duplicate.done()
    segments.fail(StoreFullError("disk is full"))
    assert (await original)[0] == 507
    # What it was a duplicate of never happened, so it either failed with it or was stored in its place.
    status, _ = await duplicate
    assert status in {200, 507}
    assert segments.content("s") == (b"x" if status == 200 else b"")


async def test_h24_a_refusal_judged_by_pending_state_waits_for_its_commit(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    await create(client, node.stream("s"))
    assert (await append(client, node.stream("s"), "0", producer(0)))[0] == 200
    segments.hold()
    first = asyncio.ensure_future(append(client, node.stream("s"), "n", producer(0, epoch=1)))
    await submissions(segments, 2)
    stale = asyncio.ensure_future(append(client, node.stream("s"), "1", producer(1)))
    await asyncio.sleep(0.05)
    assert not stale.done()
    segments.let_go()
    assert (await first)[0] == 200
    status, headers = await stale
    assert (status, headers["Producer-Epoch"]) == (403, "1")


async def test_h24_an_append_judged_by_one_that_failed_is_judged_again(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    await create(client, node.stream("s"))
    segments.hold()
    first = asyncio.ensure_future(append(client, node.stream("s"), "0", producer(0)))
    await submissions(segments, 1)
    second = asyncio.ensure_future(append(client, node.stream("s"), "1", producer(1)))
    await submissions(segments, 2)
    changed = BadAttributeUpdateError("s", key=b"stream/producer/p", current=None)
    segments.fail(StoreFullError("disk is full"), others=changed)
    assert (await first)[0] == 507
    status, headers = await second
    assert (status, headers["Producer-Expected-Seq"]) == (409, "0")
    assert segments.content("s") == b""


async def test_a_retry_with_producer_and_stream_sequence_is_a_duplicate_and_not_a_regression(
    node: Node, client: ClientSession
) -> None:
    await create(client, node.stream("s"))
    headers = {**producer(0), "Stream-Seq": "a"}
    assert (await append(client, node.stream("s"), "x", headers))[0] == 200
    assert (await append(client, node.stream("s"), "x", headers))[0] == 204


@pytest.mark.parametrize(("last", "regression"), [("2", "10"), ("a", "B"), ("a", "a")])
async def test_stream_sequences_compare_as_bytes(
    node: Node, client: ClientSession, last: str, regression: str
) -> None:
    await create(client, node.stream("s"))
    assert (await append(client, node.stream("s"), "x", {**TEXT, "Stream-Seq": last}))[0] == 204
    status, _ = await append(client, node.stream("s"), "x", {**TEXT, "Stream-Seq": regression})
    assert status == 409


@pytest.mark.parametrize(
    ("value", "closed"), [("TRUE", True), ("True", True), ("1", False), ("false", False)]
)
async def test_stream_closed_counts_only_as_true_in_any_case(
    node: Node, client: ClientSession, segments: MemorySegments, value: str, closed: bool
) -> None:
    await create(client, node.stream("s"))
    status, _ = await append(client, node.stream("s"), "x", {**TEXT, "Stream-Closed": value})
    assert status == 204
    assert (await segments.info("s")).sealed is closed


async def test_a_restart_keeps_producers_closer_and_stream_sequence(
    segments: MemorySegments,
) -> None:
    async with running_node(segments) as node, ClientSession() as client:
        await create(client, node.stream("s"))
        headers = {**producer(0, epoch=4), "Stream-Seq": "m"}
        assert (await append(client, node.stream("s"), "x", headers))[0] == 200
        await create(client, node.stream("closed"))
        closing = {**producer(0), "Stream-Closed": "true"}
        assert (await append(client, node.stream("closed"), "end", closing))[0] == 200
    async with running_node(segments.restarted()) as node, ClientSession() as client:
        assert (await append(client, node.stream("s"), "x", headers))[0] == 204
        assert (await append(client, node.stream("s"), "x", producer(1, epoch=3)))[0] == 403
        status, _ = await append(client, node.stream("s"), "y", {**TEXT, "Stream-Seq": "k"})
        assert status == 409
        status, answer = await append(client, node.stream("closed"), "other", closing)
        assert (status, answer["Stream-Closed"]) == (204, "true")
        assert (await append(client, node.stream("closed"), "x", producer(1)))[0] == 409


async def test_h26_an_unknown_producer_record_is_fetched_before_it_is_judged() -> None:
    segments = MemorySegments(active_attributes_known=False)
    async with running_node(segments) as node, ClientSession() as client:
        await create(client, node.stream("s"))
        assert (await append(client, node.stream("s"), "x", producer(0)))[0] == 200
        assert (await append(client, node.stream("s"), "x", producer(0)))[0] == 204
        assert (await append(client, node.stream("s"), "y", producer(2)))[0] == 409
    assert segments.content("s") == b"x"


async def test_a_client_that_goes_away_does_not_cancel_its_commit(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    await create(client, node.stream("s"))
    segments.hold()
    host, port = node.server.address
    _, writer = await asyncio.open_connection(host, port)
    writer.write(post("/v1/stream/s", b"kept", Content_Type="text/plain"))
    await submissions(segments, 1)
    writer.close()
    await writer.wait_closed()
    await asyncio.sleep(0.05)
    segments.let_go()
    assert (await append(client, node.stream("s"), "+", TEXT))[0] == 204
    assert segments.content("s") == b"kept+"
    assert segments.cancelled_count == 0


async def test_h25_a_reconnecting_producer_learns_what_became_of_its_append_in_flight(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    await create(client, node.stream("s"))
    segments.hold()
    host, port = node.server.address
    _, writer = await asyncio.open_connection(host, port)
    headers = {name.replace("-", "_"): value for name, value in producer(0).items()}
    writer.write(post("/v1/stream/s", b"once", **headers))
    await submissions(segments, 1)
    writer.close()
    await writer.wait_closed()
    retry = asyncio.ensure_future(append(client, node.stream("s"), "once", producer(0)))
    following = asyncio.ensure_future(append(client, node.stream("s"), "+", producer(1)))
    await submissions(segments, 2)
    assert not retry.done()
    segments.let_go()
    assert [(await retry)[0], (await following)[0]] == [204, 200]
    assert segments.content("s") == b"once+"


async def test_a_close_and_an_append_race_to_one_outcome(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    await create(client, node.stream("s"))
    close = {**TEXT, "Stream-Closed": "true"}
    answers = await asyncio.gather(
        *(append(client, node.stream("s"), "x", close if n % 2 else TEXT) for n in range(20))
    )
    stored = len(segments.content("s"))
    assert stored == sum(1 for status, _ in answers if status == 204)
    refused = [headers for status, headers in answers if status == 409]
    assert len(refused) == 20 - stored
    assert all(headers["Stream-Closed"] == "true" for headers in refused)


async def test_an_append_to_a_recreated_stream_never_meets_the_old_one(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    await create(client, node.stream("s"))
    assert (await append(client, node.stream("s"), "old", producer(0)))[0] == 200
    # Behind the server's back, as another plane may do it.
    await segments.delete("s")
    assert (await append(client, node.stream("s"), "old", producer(0)))[0] == 404
    await segments.create("s")
    octets = {**producer(0), "Content-Type": "application/octet-stream"}
    assert (await append(client, node.stream("s"), "new", octets))[0] == 200
    assert segments.content("s") == b"new"


async def test_a_producer_of_a_deleted_stream_is_unknown_to_its_successor(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    octets = {**producer(0), "Content-Type": "application/octet-stream"}
    await segments.create("s")
    assert (await append(client, node.stream("s"), "old", octets))[0] == 200
    await segments.delete("s")
    await segments.create("s")
    # The open segment kept for the next append is still the old one, and knows this producer.
    assert (await append(client, node.stream("s"), "new", octets))[0] == 200
    assert segments.content("s") == b"new"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ContainerStoppedError("container stopped container=0"), 500),
        (LogNotPrimaryError("another owner took the log container=0"), 500),
        (ContainerNotFoundError(0), 503),
        (SegmentStoreError("too many appends wait"), 503),
    ],
)
async def test_503_says_that_nothing_was_done_and_an_unknown_outcome_is_500(
    node: Node,
    client: ClientSession,
    segments: MemorySegments,
    error: SegmentStoreError,
    expected: int,
) -> None:
    await create(client, node.stream("s"))
    segments.hold()
    request = asyncio.ensure_future(append(client, node.stream("s"), "x"))
    await submissions(segments, 1)
    segments.fail(error)
    status, headers = await request
    assert (status, headers["Retry-After"]) == (expected, "1")


async def test_json_that_does_not_parse_moves_neither_producer_nor_sequence(
    node: Node, client: ClientSession
) -> None:
    json_type = {"Content-Type": "application/json"}
    async with client.put(node.stream("s"), headers=json_type):
        pass
    headers = {**producer(0), **json_type, "Stream-Seq": "a"}
    assert (await append(client, node.stream("s"), "{", headers))[0] == 400
    assert (await append(client, node.stream("s"), "[1]", headers))[0] == 200


async def test_a_segment_made_by_the_verbs_is_a_stream_of_octets(
    node: Node, client: ClientSession, segments: MemorySegments
) -> None:
    await segments.create("plain")
    octets = {"Content-Type": "application/octet-stream"}
    assert (await append(client, node.stream("plain"), "x", octets))[0] == 204
    assert (await append(client, node.stream("plain"), "x", TEXT))[0] == 409
    async with client.head(node.stream("plain")) as answer:
        assert answer.headers["Content-Type"] == "application/octet-stream"


async def test_producers_of_a_stream_are_bounded(segments: MemorySegments) -> None:
    settings = HttpSettings(port=0, producers_per_stream_max=3)
    async with running_node(segments, settings) as node, ClientSession() as client:
        await create(client, node.stream("s"))
        for number in range(3):
            status, _ = await append(
                client, node.stream("s"), "x", producer(0, producer_id=f"p{number}")
            )
            assert status == 200
        headers = producer(0, producer_id="one")
        async with client.post(node.stream("s"), data=b"x", headers=headers) as answer:
            assert answer.status == 409
            assert "append with the Producer-Id of one that it knows" in await answer.text()
        assert (await append(client, node.stream("s"), "x", producer(1, producer_id="p1")))[
            0
        ] == 200
