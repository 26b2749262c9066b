"""Staged commits over a real container: two merges behind one another, flushed to Tier 2 or not, and recovered."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from containers.container_settings import ContainerSettings
from containers.segment_container import StreamSegmentContainer
from segmentstore.codec.controller_api import staged_commits_pb2 as own_api
from segmentstore.codec.controller_records.stream_records import StreamConfigurationRecord
from segmentstore.codec.stream_names import segment_name, transaction_segment
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.contracts.identifiers import EVENT_COUNT
from segmentstore.controller.controller import Controller
from tests.containers.node import FAST_FLUSH, MemoryTiers, make_container, running
from tests.containers.test_container_faults import FailingLog
from tests.containers.test_segment_container import read_all
from tests.controller.over_container import make_controller
from tests.controller.transactions.feature_cluster import events_in, framed

NAME = segment_name("s", "a", 0)
STAGES, EVENTS = 4, 3
MANY, FRAMES_MAX = 100, 20


@asynccontextmanager
async def started(
    tiers: MemoryTiers, *, settings: ContainerSettings | None = None
) -> AsyncIterator[tuple[StreamSegmentContainer, Controller]]:
    """A container and a controller whose background work is not running."""
    async with running(tiers, settings=settings) as container:
        controller = make_controller(container)
        await controller.start()
        yield container, controller


async def staged(container: StreamSegmentContainer, controller: Controller, number: int) -> bytes:
    begun = await controller.components.staged_commits.begin(
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
        await controller.components.scopes.create("s")
        await controller.components.streams.create("s", "a", StreamConfigurationRecord())
        stages = [await staged(container, controller, number) for number in range(STAGES)]
        if flushed:
            await container.flush()
        answer = await controller.components.staged_commits.commit(commit_of(stages))
        assert not answer.duplicate
    async with started(tiers) as (container, controller):
        working = asyncio.create_task(controller.run())
        commits = controller.components.staged_commits
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
        assert (await controller.components.staged_commits.commit(commit_of(stages))).duplicate
        names = [each.name for each in await container.list_segments("s/a/")]
        assert names == [NAME]


async def completed(controller: Controller, stages: list[bytes]) -> own_api.CommitStagesResponse:
    """The first answer to a commit that is asked for until it is completed."""
    first = answer = await controller.components.staged_commits.commit(commit_of(stages))
    while not answer.completed:
        await asyncio.sleep(0.001)
        answer = await controller.components.staged_commits.commit(commit_of(stages))
    return first


async def test_the_stages_of_a_commit_wait_for_the_log_together_and_so_do_those_of_a_replay() -> (
    None
):
    tiers = MemoryTiers()
    slow_flush = ContainerSettings(
        writer=replace(FAST_FLUSH, flush_interval_seconds=100.0, prompt_age_seconds=100.0)
    )
    async with started(tiers, settings=slow_flush) as (container, controller):
        await controller.components.scopes.create("s")
        await controller.components.streams.create("s", "a", StreamConfigurationRecord())
        working = asyncio.create_task(controller.run())
        stages = [await staged(container, controller, number) for number in range(MANY)]
        before = container.metrics()["frames_total"]
        assert not (await completed(controller, stages)).duplicate
        frames = container.metrics()["frames_total"]
        assert frames - before < FRAMES_MAX
        again = [await staged(container, controller, number) for number in range(MANY)]
        before = container.metrics()["frames_total"]
        assert (await completed(controller, again)).duplicate
        while any("#transaction" in each.name for each in await container.list_segments("s/a/")):
            await asyncio.sleep(0.001)
        assert container.metrics()["frames_total"] - before < FRAMES_MAX
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        expected = [b"%d.%d" % (n, event) for n in range(MANY) for event in range(EVENTS)]
        assert events_in(await read_all(container, NAME)) == expected


async def cut_short(tiers: MemoryTiers, *, written: int) -> tuple[list[bytes], bool]:
    """A commit while the log takes so many more frames, of one operation each: its stages, and whether it ended."""
    default = ContainerSettings().processor
    settings = ContainerSettings(
        processor=replace(default, pipeline=replace(default.pipeline, frame_operations_max=1))
    )
    log = FailingLog(tiers.log_store)
    container = make_container(tiers, settings=settings, log=log)
    await container.start()
    controller = make_controller(container)
    await controller.start()
    running_task = asyncio.ensure_future(container.run())
    await controller.components.scopes.create("s")
    await controller.components.streams.create("s", "a", StreamConfigurationRecord())
    stages = [await staged(container, controller, number) for number in range(STAGES)]
    working = asyncio.create_task(controller.run())
    log.successes = written
    try:
        await completed(controller, stages)
        ended = True
    except SegmentStoreError:
        ended = False
    for task in (working, running_task):
        task.cancel()
    await asyncio.gather(working, running_task, return_exceptions=True)
    return stages, ended


async def test_h74_a_commit_that_is_cut_behind_any_frame_is_finished_in_the_next_life() -> None:
    expected = [b"%d.%d" % (n, event) for n in range(STAGES) for event in range(EVENTS)]
    for written in range(100):
        tiers = MemoryTiers()
        stages, ended = await cut_short(tiers, written=written)
        async with started(tiers) as (container, controller):
            working = asyncio.create_task(controller.run())
            await completed(controller, stages)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            assert events_in(await read_all(container, NAME)) == expected
        if ended:
            # Every stage is merged by an operation of its own.
            assert written > STAGES
            return
    raise AssertionError("the commit never gets through")
