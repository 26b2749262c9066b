"""The controller over a real container: its tables and segments come back after the container was recovered."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from segmentstore.codec.stream_records.stream_configuration_record import (
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
    segments = await controller.rooms.streams.queries.current_segments("s", stream)
    return [segment.segment_id for segment in segments]


async def test_streams_survive_the_recovery_of_their_container() -> None:
    tiers = MemoryTiers()
    async with controller_over(tiers) as controller:
        rooms = controller.rooms
        await rooms.scopes.create("s")
        for number in range(30):
            await rooms.streams.creation.create(
                "s",
                f"stream-{number}",
                StreamConfigurationRecord(scaling=ScalingPolicy(segment_count_min=2), tags=("t",)),
            )
        for _ in range(20):
            sealed = await current(controller, "stream-3")
            await rooms.streams.scaling.scale(
                "s", "stream-3", sealed=sealed, ranges=[(0.0, 0.5), (0.5, 1.0)]
            )
        cut = dict.fromkeys(await current(controller, "stream-3"), 0)
        await rooms.streams.truncation.truncate("s", "stream-3", cut)
        await rooms.streams.sealing.seal("s", "stream-4")
        await rooms.streams.deletion.delete("s", "stream-4")
    async with controller_over(tiers) as controller:
        rooms = controller.rooms
        listed = await rooms.scopes.streams_with_tag("s", "t", after="", count=100)
        assert listed.names == sorted(f"stream-{n}" for n in range(30) if n != 4)
        assert await current(controller, "stream-3") == [20 << 32 | 40, 20 << 32 | 41]
        assert await rooms.streams.queries.segments_at("s", "stream-3", 0) == cut
        successors = await rooms.streams.queries.successors("s", "stream-3", 5 << 32 | 10)
        assert [each.segment.segment_id for each in successors] == [6 << 32 | 12]
        await rooms.scopes.delete_with_content("s")
        assert not await rooms.scopes.exists("s")
