import asyncio

import pytest
from aiohttp import ClientSession

from segmentstore.contracts.errors import ContainerNotFoundError
from segmentstore.contracts.segments import SegmentProperties
from segmentstore.http.settings import HttpSettings
from segmentstore.runtime.clock import ClockWatch
from tests.http.memory_segment import MemorySegment
from tests.http.memory_segments import MemorySegments
from tests.http.node import START_MS, Node, TurnableClock, running_node, until

TEXT = {"Content-Type": "text/plain"}
IN_A_MINUTE = "2027-01-15T08:01:00Z"
"""START_MS and a minute."""


async def put(client: ClientSession, url: str, **headers: str) -> int:
    async with client.put(url, headers={**TEXT, **headers}) as answer:
        return answer.status


async def status(client: ClientSession, url: str) -> int:
    async with client.head(url) as answer:
        return answer.status


def let_pass(node: Node, seconds: float) -> None:
    """Every access that the server knows of was so much longer ago."""
    accessed = node.server._directory.expiry._accessed
    for key, access in accessed.items():
        accessed[key] = access._replace(at=access.at - seconds)


def watch(clock: TurnableClock, *, settle_seconds: float = 600.0) -> ClockWatch:
    return ClockWatch(wall_clock=clock, difference_seconds_max=5.0, settle_seconds=settle_seconds)


async def test_h77_a_jump_is_seen_before_anything_is_judged_by_it() -> None:
    clock = TurnableClock(START_MS)
    clock_watch = watch(clock)
    assert clock_watch.trusted()
    clock.jump_seconds = 86_400 * 365
    assert not clock_watch.trusted()
    assert "jumped_seconds=31536000" in clock_watch.complaint()


async def test_h77_a_jump_backwards_counts_too() -> None:
    clock = TurnableClock(START_MS)
    clock_watch = watch(clock)
    clock_watch.look()
    clock.jump_seconds = -60
    assert not clock_watch.trusted()


async def test_h77_small_steps_of_the_clock_are_normal() -> None:
    clock = TurnableClock(START_MS)
    clock_watch = watch(clock)
    for _ in range(10):
        clock.jump_seconds += 4
        assert clock_watch.trusted()
        clock.jump_seconds -= 4
        assert clock_watch.trusted()


@pytest.mark.parametrize("step", [0.1, 4, -4])
async def test_h77_small_steps_in_one_direction_count_together(step: float) -> None:
    clock = TurnableClock(START_MS)
    clock_watch = watch(clock)
    trusted_up_to = 0.0
    for _ in range(100):
        if clock_watch.trusted():
            trusted_up_to = abs(clock.jump_seconds)
        clock.jump_seconds += step
    assert trusted_up_to <= 5.1
    assert "the wall clock jumped" in clock_watch.complaint()


async def test_h77_a_clock_that_came_back_settles_no_doubt_that_was_there_before() -> None:
    clock = TurnableClock(START_MS)
    clock_watch = watch(clock)
    clock_watch.doubt("the store has just started")
    clock.jump_seconds = 60
    assert not clock_watch.trusted()
    clock.jump_seconds = 0
    assert not clock_watch.trusted()
    assert clock_watch.complaint()


async def test_h77_a_clock_that_came_back_is_trusted_again() -> None:
    clock = TurnableClock(START_MS)
    clock_watch = watch(clock)
    clock_watch.look()
    clock.jump_seconds = 3600
    assert not clock_watch.trusted()
    clock.jump_seconds = 1
    assert clock_watch.trusted()


async def test_h77_time_settles_a_jump() -> None:
    clock = TurnableClock(START_MS)
    clock_watch = watch(clock, settle_seconds=0.0)
    clock_watch.look()
    clock.jump_seconds = 3600
    assert clock_watch.trusted()
    patient = watch(clock, settle_seconds=600.0)
    patient.look()
    clock.jump_seconds = 0
    assert not patient.trusted()


async def test_h77_nothing_expires_after_a_jump_until_a_person_settles_it(
    segments: MemorySegments,
) -> None:
    settings = HttpSettings(port=0, tick_seconds=0.02, sweep_interval_seconds=0.02)
    async with running_node(segments, settings) as node, ClientSession() as client:
        assert await put(client, node.stream("s"), **{"Stream-Expires-At": IN_A_MINUTE}) == 201
        assert await status(client, node.stream("s")) == 200
        node.clock.jump_seconds = 3600
        assert await status(client, node.stream("s")) == 200
        async with client.get(f"{node.url}/health") as answer:
            assert answer.status == 200
            assert "jumped" in (await answer.json())["complaints"][0]
        await asyncio.sleep(0.1)
        assert segments.names() == ["s"]
        async with client.post(f"{node.url}/v1/clocks/settle") as answer:
            assert answer.status == 200
        assert await status(client, node.stream("s")) == 404
        assert segments.names() == []


async def test_streams_nobody_asks_for_are_swept(segments: MemorySegments) -> None:
    settings = HttpSettings(
        port=0, tick_seconds=0.02, sweep_interval_seconds=0.02, sweep_page_segments=2
    )
    async with running_node(segments, settings) as node, ClientSession() as client:
        for number in range(5):
            assert await put(client, node.stream(f"short/{number}"), **{"Stream-TTL": "0"}) == 201
            assert await put(client, node.stream(f"long/{number}"), **{"Stream-TTL": "600"}) == 201
        assert await put(client, node.stream("forever")) == 201
        await until(lambda: not any(name.startswith("short/") for name in segments.names()))
        assert len(segments.names()) == 6


async def test_an_expired_stream_makes_room_for_a_fresh_one(segments: MemorySegments) -> None:
    async with running_node(segments) as node, ClientSession() as client:
        async with client.put(
            node.stream("s"), data="old", headers={**TEXT, "Stream-TTL": "0"}
        ) as answer:
            assert answer.status == 201
        async with client.post(node.stream("s"), data="x", headers=TEXT) as answer:
            assert answer.status == 404
        assert await put(client, node.stream("s")) == 201
        assert segments.content("s") == b""


@pytest.mark.parametrize("way", ["segment append", "segment read", "another server"])
async def test_a_stream_lives_as_long_as_anybody_reads_or_writes_it(
    segments: MemorySegments, way: str
) -> None:
    settings = HttpSettings(port=0, tick_seconds=0.02, sweep_interval_seconds=0.02)
    async with running_node(segments, settings) as node, ClientSession() as client:
        assert await put(client, node.stream("s"), **{"Stream-TTL": "600"}) == 201
        assert await put(client, node.stream("idle"), **{"Stream-TTL": "600"}) == 201
        for _ in range(6):
            let_pass(node, 200)
            match way:
                case "segment append":
                    async with client.post(node.segment("s/append"), data=b"line\n") as answer:
                        assert answer.status == 200
                case "segment read":
                    async with client.get(node.segment("s/read")) as answer:
                        assert answer.status == 200
                case _:
                    async with segments.open_segment("s") as segment:
                        await segment.append(b"line\n")
        await until(lambda: "idle" not in segments.names())
        assert segments.names() == ["s"]
        async with client.get(node.stream("s"), params={"offset": "-1"}) as answer:
            assert answer.status == 200
            assert await answer.read() == segments.content("s")


async def test_a_write_lengthens_a_streams_life_by_no_more_than_its_time(
    segments: MemorySegments,
) -> None:
    async with running_node(segments) as node, ClientSession() as client:
        async with client.put(
            node.stream("s"), data="first", headers={**TEXT, "Stream-TTL": "600"}
        ) as answer:
            assert answer.status == 201
        async with client.post(node.stream("s"), data="x", headers=TEXT) as answer:
            assert answer.status == 204
        async with client.post(node.segment("s/append"), data="x") as answer:
            assert answer.status == 200
        let_pass(node, 601)
        assert await status(client, node.stream("s")) == 404


async def test_segment_verbs_see_no_stream_that_is_over(segments: MemorySegments) -> None:
    async with running_node(segments) as node, ClientSession() as client:
        for verb in ("append", "read"):
            assert await put(client, node.stream("s"), **{"Stream-TTL": "0"}) == 201
            method = "POST" if verb == "append" else "GET"
            async with client.request(method, node.segment(f"s/{verb}"), data=b"x") as answer:
                assert answer.status == 404
            assert segments.names() == []


async def test_a_restart_never_expires_a_stream_early(segments: MemorySegments) -> None:
    async with running_node(segments) as node, ClientSession() as client:
        assert await put(client, node.stream("s"), **{"Stream-TTL": "600"}) == 201
    later_ms = START_MS + 3_600_000
    async with (
        running_node(segments.restarted(), start_ms=later_ms) as node,
        ClientSession() as client,
    ):
        assert await status(client, node.stream("s")) == 200


async def test_an_append_is_acknowledged_though_its_container_goes_away_right_behind_it(
    segments: MemorySegments, node: Node, client: ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def info(segment: MemorySegment) -> SegmentProperties:
        if segments.content(segment.name):
            raise ContainerNotFoundError(0, "it is at another node")
        return found(segment)

    found = MemorySegment.info
    monkeypatch.setattr(MemorySegment, "info", info)
    for name, url in (("s", node.stream("s")), ("t", node.segment("t/append"))):
        assert await put(client, node.stream(name), **{"Stream-TTL": "60"}) == 201
        async with client.post(url, data=b"once", headers=TEXT) as answer:
            assert answer.status < 300, await answer.text()
        assert segments.content(name) == b"once"
