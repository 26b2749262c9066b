"""What a sync that failed leaves behind reads back from the page cache, and is nowhere on the disk (H39, H48)."""

import asyncio
import errno
from functools import partial
from random import Random

import pytest

from segmentstore.contracts.errors import StorageError
from tests.sim.disk import SimulatedDisk
from tests.sim.loop import SimLoop
from tests.sim.power_cuts import Persistence, power_cut_image
from tests.sim.simulation import run_simulation
from tests.tier2.volumes.engines import open_small
from tests.tier2.volumes.memory_index import MemoryIndex

ROOT = "/machine/engine"
OLD, NEW = b"old" * 1000, b"new" * 1000


def kept(index: MemoryIndex, _directory: str) -> MemoryIndex:
    return index


@pytest.mark.parametrize("index_is_lost", [False, True])
def test_h48_h39_records_of_a_failed_sync_are_not_served_by_the_next_life(
    *, index_is_lost: bool
) -> None:
    """It would be gone after the next power cut, and with it what was put without bytes of its own because of it."""

    async def main(loop: SimLoop) -> None:
        disk, index = SimulatedDisk(), MemoryIndex()
        mount = disk.mount("one")
        opened = await open_small(ROOT, files=mount, open_index=partial(kept, index))
        await opened.engine.put(b"key", [OLD])
        disk.faults.plan("sync", errno.EIO, path_part="volume_")
        with pytest.raises(StorageError):
            await opened.engine.put(b"key", [NEW])
        mount.kill(late_writes=0)
        await asyncio.gather(opened.close(), return_exceptions=True)

        index = MemoryIndex() if index_is_lost else index
        again = await open_small(ROOT, files=disk.mount("two"), open_index=partial(kept, index))
        served = (await again.engine.get(b"key")).content
        await again.engine.put(b"copy", [NEW])
        await again.engine.check()
        await again.close()

        image = power_cut_image(disk, Persistence.NOTHING, Random(1))
        last = await open_small(
            ROOT, files=image.mount("three"), open_index=partial(kept, MemoryIndex())
        )
        assert (await last.engine.get(b"key")).content == served == OLD
        assert (await last.engine.get(b"copy")).content == NEW
        await last.engine.check()
        await last.close()

    run_simulation(4, main)
