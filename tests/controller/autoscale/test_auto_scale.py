"""Streams are scaled by what their segments take."""

import asyncio
import dataclasses
from contextlib import suppress
from itertools import pairwise

import pytest

from segmentstore.codec.controller_records.stream_records import (
    ScalingPolicy,
    ScalingType,
    StreamConfigurationRecord,
)
from segmentstore.contracts.errors import SegmentSealedError
from segmentstore.controller.settings import AutoScaleSettings, ControllerSettings
from tests.controller.transactions.feature_cluster import FeatureCluster
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation

pytestmark = pytest.mark.simulation

SETTINGS = AutoScaleSettings(
    interval_seconds=1.0,
    windows_seconds=(2.0, 5.0, 10.0, 20.0),
    cool_down_seconds=4.0,
    refresh_seconds=3.0,
)


async def cluster_with(
    policy: ScalingPolicy, settings: AutoScaleSettings = SETTINGS
) -> FeatureCluster:
    cluster = FeatureCluster(settings=ControllerSettings(auto_scale=settings))
    await cluster.start()
    await cluster.scopes.create("s")
    await cluster.streams.create("s", "a", StreamConfigurationRecord(scaling=policy))
    return cluster


async def write(cluster: FeatureCluster, *, seconds: int, events: int, event_bytes: int) -> None:
    """So many events a second for every active segment."""
    for _ in range(seconds):
        for segment_id in await cluster.current("a"):
            # A writer that meets a seal goes on at the successors, here with the next second.
            with suppress(SegmentSealedError):
                for _ in range(events):
                    await cluster.append_event("a", segment_id, b"x" * event_bytes)
        await asyncio.sleep(1)


def by_events(*, minimum: int = 1, target: int = 10) -> ScalingPolicy:
    return ScalingPolicy(
        type=ScalingType.EVENTS_PER_SECOND,
        target_rate=target,
        scale_factor=2,
        segment_count_min=minimum,
    )


def test_a_busy_stream_is_split_and_a_quiet_one_joined_again() -> None:
    async def main(loop: SimLoop) -> None:
        cluster = await cluster_with(by_events())
        async with asyncio.TaskGroup() as group:
            task = group.create_task(cluster.components.auto_scale.run())
            await write(cluster, seconds=12, events=15, event_bytes=1)
            assert len(await cluster.current("a")) == 2
            await write(cluster, seconds=30, events=6, event_bytes=1)
            assert len(await cluster.current("a")) == 2
            await asyncio.sleep(120)
            assert len(await cluster.current("a")) == 1
            task.cancel()
        await cluster.check()

    run_simulation(1, main)


def test_a_quiet_stream_keeps_its_fewest_segments() -> None:
    async def main(loop: SimLoop) -> None:
        cluster = await cluster_with(by_events(minimum=3))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(cluster.components.auto_scale.run())
            await asyncio.sleep(300)
            task.cancel()
        assert await cluster.current("a") == [0, 1, 2]

    run_simulation(1, main)


def test_kilobytes_are_counted_when_the_policy_says_so() -> None:
    async def main(loop: SimLoop) -> None:
        policy = ScalingPolicy(
            type=ScalingType.KILOBYTES_PER_SECOND,
            target_rate=1,
            scale_factor=2,
            segment_count_min=1,
        )
        cluster = await cluster_with(policy)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(cluster.components.auto_scale.run())
            await write(cluster, seconds=30, events=100, event_bytes=1)
            assert len(await cluster.current("a")) == 1
            await write(cluster, seconds=12, events=1, event_bytes=4_000)
            assert len(await cluster.current("a")) > 1
            task.cancel()

    run_simulation(1, main)


def test_a_stream_with_a_fixed_number_is_never_scaled() -> None:
    async def main(loop: SimLoop) -> None:
        cluster = await cluster_with(ScalingPolicy(segment_count_min=1))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(cluster.components.auto_scale.run())
            await write(cluster, seconds=30, events=50, event_bytes=10)
            task.cancel()
        assert await cluster.current("a") == [0]

    run_simulation(1, main)


def test_a_stream_is_not_scaled_by_a_policy_that_it_has_no_more() -> None:
    async def main(loop: SimLoop) -> None:
        settings = dataclasses.replace(SETTINGS, refresh_seconds=60.0)
        cluster = await cluster_with(by_events(), settings)
        fixed = StreamConfigurationRecord(scaling=ScalingPolicy(segment_count_min=1))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(cluster.components.auto_scale.run())
            await asyncio.sleep(1)
            await cluster.streams.update("s", "a", fixed)
            await write(cluster, seconds=20, events=60, event_bytes=1)
            task.cancel()
        assert await cluster.current("a") == [0]

    run_simulation(1, main)


def test_a_cool_down_lies_between_two_scales() -> None:
    async def main(loop: SimLoop) -> None:
        cluster = await cluster_with(by_events())
        scales: list[float] = []
        async with asyncio.TaskGroup() as group:
            task = group.create_task(cluster.components.auto_scale.run())
            count = 1
            for _ in range(40):
                await write(cluster, seconds=1, events=60, event_bytes=1)
                if len(await cluster.current("a")) != count:
                    count = len(await cluster.current("a"))
                    scales.append(loop.time())
                if count >= 8:
                    break
            task.cancel()
        gaps = [later - earlier for earlier, later in pairwise(scales)]
        assert len(scales) >= 3
        assert all(gap >= SETTINGS.cool_down_seconds - 1 for gap in gaps), gaps

    run_simulation(1, main)
