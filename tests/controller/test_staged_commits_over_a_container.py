"""Staged commits over a real container: two merges behind one another, flushed to Tier 2 or not, and recovered."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from containers.segment_container import StreamSegmentContainer
from segmentstore.codec.controller_api import staged_commits_pb2 as own_api
from segmentstore.codec.stream_names import segment_name, transaction_segment
from segmentstore.codec.stream_records.stream_configuration_record import StreamConfigurationRecord
from segmentstore.contracts.identifiers import EVENT_COUNT
from segmentstore.controller.api.endpoints import Endpoint
from segmentstore.controller.controller import Controller
from segmentstore.controller.settings import ControllerSettings
from segmentstore.runtime.clock import SystemWallClock
from tests.containers.node import MemoryTiers, running
from tests.containers.test_segment_container import read_all
from tests.controller.transactions.feature_cluster import events_in, framed

NAME = segment_name("s", "a", 0)
STAGES, EVENTS = 4, 3


@asynccontextmanager
async def started(
    tiers: MemoryTiers,
) -> AsyncIterator[tuple[StreamSegmentContainer, Controller]]:
    """A container and a controller whose background work is not running."""
    async with running(tiers) as container:
        controller = Controller(
            segments=container,
            tables=container,
            wall_clock=SystemWallClock(),
            random=Random(5),
            locate=lambda name: Endpoint("127.0.0.1", 12345),
            settings=ControllerSettings(),
        )
        await controller.start()
        yield container, controller


async def staged(container: StreamSegmentContainer, controller: Controller, number: int) -> bytes:
    begun = await controller.rooms.staged_commits.begin(
        own_api.BeginStageRequest(scope="s", stream="a", lease_ms=60_000)
    )
    source = transaction_segment(NAME, int.from_bytes(begun.transaction_id, "big"))
    async with container.open_segment(source) as segment:
        for event in range(EVENTS):
            await segment.append(framed(b"%d.%d" % (number, event)), events=1)
    return begun.transaction_id


def commit_of(stages: list[bytes]) -> own_api.CommitStagesRequest:
    return own_api.CommitStagesRequest(
        scope="s", stream="a", application_id="job", version=1, transaction_ids=stages
    )


@pytest.mark.parametrize("flushed", [False, True])
async def test_a_decided_commit_is_finished_over_a_recovered_container(flushed: bool) -> None:
    tiers = MemoryTiers()
    async with started(tiers) as (container, controller):
        await controller.rooms.scopes.create("s")
        await controller.rooms.streams.creation.create("s", "a", StreamConfigurationRecord())
        stages = [await staged(container, controller, number) for number in range(STAGES)]
        if flushed:
            await container.flush()
        answer = await controller.rooms.staged_commits.commit(commit_of(stages))
        assert not answer.duplicate
    async with started(tiers) as (container, controller):
        working = asyncio.create_task(controller.run())
        commits = controller.rooms.staged_commits
        while not (answer := await commits.commit(commit_of(stages))).completed:
            await asyncio.sleep(0.001)
        assert answer.duplicate
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await container.flush()
    async with started(tiers) as (container, controller):
        expected = [b"%d.%d" % (n, event) for n in range(STAGES) for event in range(EVENTS)]
        assert events_in(await read_all(container, NAME)) == expected
        attributes = await container.attributes(NAME, [EVENT_COUNT])
        assert attributes[EVENT_COUNT] == len(expected)
        assert (await controller.rooms.staged_commits.commit(commit_of(stages))).duplicate
        names = [each.name for each in await container.list_segments("s/a/")]
        assert names == [NAME]
