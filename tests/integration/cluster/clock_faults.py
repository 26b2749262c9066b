"""Steps of the calendar of one process, to and fro, up to an hour: nothing may be decided by it that clients notice.

Behind a step of more than a quarter of an hour an S3 server refuses a node's requests for being signed at another time;
appends and reads of what the cache has go on, and what waits for Tier 2 goes there when the clock is right again.
"""

import asyncio

from tests.integration.cluster.fault_run import FaultRun
from tests.integration.cluster.process_shim import ProcessShim

_STEPS = (30.0, -30.0, 600.0, -600.0, 3600.0, -3600.0, 0.0)
"""Seconds before the machine's clock."""
_STEP_SECONDS = 2.0


async def step_clock_of_node(run: FaultRun) -> None:
    """Of a node that has containers."""
    async with run.with_shim(run.any_node()) as process:
        await _step(process.shim)
        await run.until_whole()


async def step_clock_of_leader(run: FaultRun) -> None:
    """Of the controller that leads; it goes on leading."""
    leader = await run.until_one_leads()
    chosen = next(each.name for each in run.processes.rows("controller") if each.name != leader)
    async with run.with_shim(chosen) as process:
        await run.have_lead(chosen)
        await _step(process.shim)
        assert await run.leader() == chosen, f"{chosen} lost its lead by a step of its calendar"
        await run.until_whole()


async def _step(shim: ProcessShim) -> None:
    for seconds_ahead in _STEPS:
        shim.set_clock(seconds_ahead)
        await asyncio.sleep(_STEP_SECONDS)
