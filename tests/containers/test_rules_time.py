"""Clocks that go back (H77), and long work that must not hold the loop (H23, H29, H37)."""

import asyncio
from dataclasses import replace

from containers.container_settings import ContainerSettings
from tests.containers.node import FAST_FLUSH, MemoryTiers, make_container, running
from tests.containers.test_segment_container import append

PATIENT = ContainerSettings(
    writer=replace(FAST_FLUSH, flush_interval_seconds=3600.0, prompt_age_seconds=3600.0)
)


class SetClock:
    """Says what it is told to say."""

    def __init__(self, milliseconds: int) -> None:
        self.milliseconds = milliseconds

    def now_ms(self) -> int:
        return self.milliseconds


async def test_h77_last_modified_does_not_go_back_in_memory_in_tier_2_or_in_the_log() -> None:
    tiers = MemoryTiers()
    clock = SetClock(1_000_000)
    async with running(tiers, settings=PATIENT, wall_clock=clock) as container:
        for name in ("appended", "target", "source"):
            await container.create(name)
        clock.milliseconds = 2_000_000
        container._components.processor.refresh_throttle()
        for name in ("appended", "target"):
            await append(container, name, b"later")
        clock.milliseconds = 1_500_000
        container._components.processor.refresh_throttle()
        await append(container, "appended", b"earlier, says the clock")
        await container.seal("source")
        await container.merge("target", "source")
        for name in ("appended", "target"):
            assert (await container.info(name)).last_modified_ms == 2_000_000
        await container.flush()
        container._components.mapper.evict(10)
        for name in ("appended", "target"):
            assert (await container.info(name)).last_modified_ms == 2_000_000
    async with running(tiers, settings=PATIENT, wall_clock=clock) as container:
        for name in ("appended", "target"):
            assert (await container.info(name)).last_modified_ms == 2_000_000


async def test_h77_an_append_after_a_long_silence_carries_its_own_time() -> None:
    clock = SetClock(1_000_000)
    settings = replace(PATIENT, housekeeping_seconds=0.001)
    async with running(MemoryTiers(), settings=settings, wall_clock=clock) as container:
        await container.create("a")
        clock.milliseconds = 9_000_000
        await asyncio.sleep(0.05)
        await append(container, "a", b"x")
        assert (await container.info("a")).last_modified_ms == 9_000_000


async def test_h23_h37_replay_lets_others_work() -> None:
    tiers = MemoryTiers()
    async with running(tiers, settings=PATIENT) as container:
        await container.create("a")
        async with container.open_segment("a") as segment:
            for _ in range(20):
                futures = [segment.append(b"x" * 100) for _ in range(1000)]
                await futures[-1]
    container = make_container(tiers, settings=PATIENT)
    turns = 0
    starting = asyncio.ensure_future(container.start())
    while not starting.done():
        turns += 1
        await asyncio.sleep(0)
    await starting
    await container.close()
    assert len(tiers.log_store.entries) > 10
    # Claiming takes turns as well; one more for each few frames is what shows.
    assert turns > len(tiers.log_store.entries) // 2
