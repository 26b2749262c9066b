"""The controller over a real container: its tables and segments come back after the container was recovered."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from segmentstore.codec.controller_records.stream_records import (
    ScalingPolicy,
    StreamConfigurationRecord,
)
from segmentstore.controller.controller import Controller
from tests.containers.node import MemoryTiers, running
from tests.controller.over_container import make_controller


@asynccontextmanager
async def controller_over(tiers: MemoryTiers) -> AsyncIterator[Controller]:
    async with running(tiers) as container:
        controller = make_controller(container)
        await controller.start()
        working = asyncio.create_task(controller.run())
        try:
            yield controller
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


async def current(controller: Controller, stream: str) -> list[int]:
    segments = await controller.components.streams.queries.current_segments("s", stream)
    return [segment.segment_id for segment in segments]


async def test_streams_survive_the_recovery_of_their_container() -> None:
    tiers = MemoryTiers()
    async with controller_over(tiers) as controller:
        components = controller.components
        await components.scopes.create("s")
        for number in range(30):
            await components.streams.create(
                "s",
                f"stream-{number}",
                StreamConfigurationRecord(scaling=ScalingPolicy(segment_count_min=2), tags=("t",)),
            )
        for _ in range(20):
            sealed = await current(controller, "stream-3")
            await components.streams.scaling.scale(
                "s", "stream-3", sealed=sealed, ranges=[(0.0, 0.5), (0.5, 1.0)]
            )
        cut = dict.fromkeys(await current(controller, "stream-3"), 0)
        await components.streams.truncation.truncate("s", "stream-3", cut)
        await components.streams.seal("s", "stream-4")
        await components.streams.delete("s", "stream-4")
    async with controller_over(tiers) as controller:
        components = controller.components
        listed = await components.scopes.streams_with_tag("s", "t", after="", count=100)
        assert listed.names == sorted(f"stream-{n}" for n in range(30) if n != 4)
        assert await current(controller, "stream-3") == [20 << 32 | 40, 20 << 32 | 41]
        assert await components.streams.queries.segments_at("s", "stream-3", 0) == cut
        successors = await components.streams.queries.successors("s", "stream-3", 5 << 32 | 10)
        assert [each.segment.segment_id for each in successors] == [6 << 32 | 12]
        await components.scopes.delete_with_content("s")
        assert not await components.scopes.exists("s")
