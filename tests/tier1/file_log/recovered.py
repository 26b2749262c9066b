"""What the next process finds in a log on the simulated disk."""

from tests.contracts.durable_data_log_suite import entries
from tests.tier1.file_log.history import Entries
from tests.tier1.file_log.worlds import SimulatedLogWorld


async def recovered(world: SimulatedLogWorld) -> Entries:
    """Of that process nothing is left, also if it finds damage."""
    log = world.log()
    try:
        await log.initialize()
        return await entries(log)
    finally:
        await world.kill(log)
