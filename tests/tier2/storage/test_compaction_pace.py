"""A step of compaction gives others time, as much as its rate leaves."""

from dataclasses import replace

import pytest

from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tests.tier2.storage.backings import SMALL, ObjectStoreBacking
from tests.tier2.storage.test_compaction import trickle
from tier2.object_stores.memory import MemoryObjectStore

STEP_BYTES = 1600


def test_a_step_rests_between_its_pieces_but_only_for_a_part_of_what_its_rate_leaves() -> None:
    async def seconds_of(loop: SimLoop, *, busy_share: float, rate: int) -> float:
        settings = replace(
            SMALL,
            compaction_busy_share_min=busy_share,
            compaction_busy_share_max=busy_share,
            compaction_bytes_per_second=rate,
        )
        owner = await ObjectStoreBacking(MemoryObjectStore(), settings).claimed(1)
        await trickle(owner, 16, length=STEP_BYTES // 16)
        begin = loop.time()
        while not owner.statistics().joined_bytes:
            assert await owner.maintain()
        return loop.time() - begin

    async def main(loop: SimLoop) -> None:
        # A quarter of the time that the bytes have: 400 seconds, and one.
        at_once = await seconds_of(loop, busy_share=1.0, rate=1)
        assert 2 * at_once < await seconds_of(loop, busy_share=0.1, rate=1) < 10 * at_once
        slow = await seconds_of(loop, busy_share=0.0001, rate=STEP_BYTES // 4)
        assert slow == pytest.approx(1.0, abs=4 * at_once)

    run_simulation(1, main)
