"""Whole lives of a container over the same two tiers, chosen at random: what every such test does between its steps.

A life begins with settings that turn every corner quickly. It ends by close(), or without a word, as with kill -9.

They are lived in simulated time, with ready callbacks in random order, so a seed gives the same lives everywhere.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import ClassVar

from containers.cache.cache_manager import CacheManager
from containers.container_settings import (
    AttributeMemorySettings,
    CheckpointSettings,
    ContainerSettings,
)
from containers.segment_container import StreamSegmentContainer
from segmentstore.contracts.durable_data_log import DurableDataLog
from segmentstore.runtime.clock import SystemWallClock, WallClock
from tests.containers.node import FAST_FLUSH, MemoryTiers, make_container
from tests.sim.clock import SimulatedWallClock
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tier1.memory_log import MemoryDurableDataLog

LIVES = 5
HANG_SECONDS = 30.0


class ContainerLives(ABC):
    """One container after another. Subclasses hold the model with which each has to agree."""

    steps_max: ClassVar[int]
    """Of one life."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.tiers = MemoryTiers()
        self.wall_clock: WallClock = SystemWallClock()

    @abstractmethod
    def settings(self) -> ContainerSettings:
        """Those of the next life."""

    def corner_settings(
        self,
        *,
        active_segments: Sequence[int],
        checkpoint_bytes: Sequence[int] = (300, 3000),
        checkpoint_operations: Sequence[int] = (5, 50),
        writer: Mapping[str, Sequence[int]] | None = None,
    ) -> ContainerSettings:
        """Thrown: what makes frames, flushes, checkpoints and evictions small and frequent in some lives. Of each
        argument one value is taken; `writer` has those of further fields of the writer's settings."""
        choose = self.random.choice
        default = ContainerSettings()
        pipeline = replace(
            default.processor.pipeline,
            frame_operations_max=choose([1, 3, 2048]),
            frames_in_flight_max=choose([1, 16]),
        )
        flush_interval_seconds = choose([0.001, 0.01, 100.0])
        prompt_age_seconds = choose([0.001, 100.0])
        more = {name: choose(values) for name, values in (writer or {}).items()}
        return ContainerSettings(
            writer=replace(
                FAST_FLUSH,
                flush_interval_seconds=flush_interval_seconds,
                prompt_age_seconds=prompt_age_seconds,
                publication_bytes_max=choose([50, 1 << 20]),
                **more,
            ),
            checkpoints=CheckpointSettings(
                bytes_min=choose(checkpoint_bytes), operations_max=choose(checkpoint_operations)
            ),
            mapper=replace(
                default.mapper, active_segments_max=choose(active_segments), eviction_share=0.5
            ),
            processor=replace(default.processor, pipeline=pipeline),
            housekeeping_seconds=0.01,
        )

    def small_attribute_memory(self, bytes_max: Sequence[int]) -> AttributeMemorySettings:
        """Thrown: values leave memory soon in some lives. Writers never wait for that."""
        choose = self.random.choice
        return AttributeMemorySettings(
            bytes_max=choose(bytes_max),
            look_seconds=choose([0.0005, 0.005]),
            slice_count=choose([1, 100]),
            throttle_factor=1e9,
        )

    async def start(self, entry_bytes_max: int) -> StreamSegmentContainer:
        """The next life, recovered."""
        container = self.make(
            MemoryDurableDataLog(self.tiers.log_store, entry_bytes_max=entry_bytes_max)
        )
        await container.start()
        return container

    def make(
        self, log: DurableDataLog, cache: CacheManager | None = None
    ) -> StreamSegmentContainer:
        """The next life, not begun. It throws its own dice, as every process does."""
        return make_container(
            self.tiers,
            settings=self.settings(),
            log=log,
            cache=cache,
            wall_clock=self.wall_clock,
            seed=self.random.getrandbits(32),
        )

    @abstractmethod
    async def compare(self, container: StreamSegmentContainer) -> None:
        """Everything that it serves, with the model."""

    @abstractmethod
    async def step(self, container: StreamSegmentContainer) -> None:
        """Do something to the container and to the model."""

    async def look_after(self, container: StreamSegmentContainer, what: str) -> None:
        """What a container does now and then, whatever it holds; nothing for any other word."""
        match what:
            case "flush":
                await container.flush()
            case "evict":
                container._components.mapper.evict(10)
            case "checkpoint":
                await container._components.processor.checkpoint()
            case "pause":
                await asyncio.sleep(self.random.choice([0, 0.001, 0.005]))
            case _:
                await asyncio.sleep(0)

    def live_all(self) -> None:
        run_simulation(self.seed, self._live_all, shuffled=True)

    async def _live_all(self, loop: SimLoop) -> None:
        self.wall_clock = SimulatedWallClock(loop)
        for _ in range(LIVES):
            async with asyncio.timeout(HANG_SECONDS):
                await self._live()
        # Timers that a life left behind do no harm, and keep none of its memory.
        await asyncio.sleep(HANG_SECONDS)

    async def _live(self) -> None:
        choose = self.random.choice
        container = await self.start(choose([80, 300, 1 << 20]))
        run = asyncio.ensure_future(container.run())
        try:
            await self.compare(container)
            for _ in range(self.random.randrange(5, self.steps_max)):
                await self.step(container)
                if run.done():
                    run.result()
            if choose([True, False]):
                await self.compare(container)
            if choose([True, False, False]):
                await container.close()
        finally:
            await container._recovered.log.close()  # from here on it is as good as dead
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
