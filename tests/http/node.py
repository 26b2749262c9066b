"""A running HTTP server for tests: real sockets, segments in memory, a wall clock that a test may turn."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random

from segmentstore.contracts.containers import ContainerHealth, ContainerState
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.segments import SegmentApi
from segmentstore.http.health_and_metrics import NodeHealth
from segmentstore.http.server import HttpServer, build_server
from segmentstore.http.settings import HttpSettings
from segmentstore.topics.topics import Topics

START_MS = 1_800_000_000_000


class TurnableClock:
    """Follows the loop's clock from a given instant on; `jump_seconds` is what a test adds."""

    def __init__(self, start_ms: int) -> None:
        self._start_ms = start_ms
        self._loop_start = asyncio.get_running_loop().time()
        self.jump_seconds = 0.0

    def now_ms(self) -> int:
        seconds = asyncio.get_running_loop().time() - self._loop_start + self.jump_seconds
        return self._start_ms + round(seconds * 1000)


async def until(holds: Callable[[], bool]) -> None:
    """What must happen at some time; how long that takes decides nothing."""
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.005)


def healthy_container(number: int = 0) -> ContainerHealth:
    return ContainerHealth(
        container_id=ContainerId(number),
        state=ContainerState.RUNNING,
        ready=True,
        epoch=1,
        throttle="",
        throttle_delay_seconds=0.0,
        storage_state="ok",
        active_segments=1,
        unflushed_bytes=0,
        cause="",
    )


@dataclass
class Node:
    """What a test holds."""

    server: HttpServer
    clock: TurnableClock
    containers: list[ContainerHealth]

    @property
    def url(self) -> str:
        host, port = self.server.address
        return f"http://{host}:{port}"

    def stream(self, name: str) -> str:
        return f"{self.url}/v1/stream/{name}"

    def segment(self, rest: str) -> str:
        return f"{self.url}/v1/segments/{rest}"


@asynccontextmanager
async def running_node(
    segments: SegmentApi,
    settings: HttpSettings | None = None,
    *,
    start_ms: int = START_MS,
    clock: TurnableClock | None = None,
    topics: Callable[[], Topics | None] | None = None,
) -> AsyncIterator[Node]:
    """`clock`: one of the caller's, which begins where it says."""
    settings = settings or HttpSettings(port=0, long_poll_seconds=60.0, tick_seconds=0.05)
    clock = clock or TurnableClock(start_ms)
    containers = [healthy_container()]
    server = build_server(
        segments=segments,
        health=lambda: NodeHealth(containers=containers, containers_expected=1),
        metrics=lambda: {0: {"append_bytes_total": 12.0, "unflushed_bytes": 3.0}},
        wall_clock=clock,
        random=Random(1),
        settings=settings,
        topics=topics,
    )
    await server.start()
    try:
        yield Node(server, clock, containers)
    finally:
        await server.close()
