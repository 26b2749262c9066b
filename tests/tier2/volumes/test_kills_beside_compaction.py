"""Goal: a kill beside compaction loses and brings back nothing: no version, marker, hold or reference.

Method: the random walk of test_engine_model with compactions under way. A kill is a copy of the directory as it is
between two steps of the engine's one thread, in which the walk goes on: the index lags behind the volumes then, copies
are half published, and often the index is lost as well.
"""

import asyncio
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.tier2.volumes.engines import open_small, require
from tests.tier2.volumes.test_engine_model import Walk
from tier2.volumes.compaction import CompactionSummary


class KilledWalk(Walk):
    def __init__(self, directory: Path, seed: int) -> None:
        super().__init__(directory / "0", seed)
        self.lives = 0
        self.thread = ThreadPoolExecutor(1)
        self.compaction: asyncio.Task[CompactionSummary] | None = None

    async def open(self) -> None:
        self.thread = ThreadPoolExecutor(1)
        self.opened = await open_small(str(self.directory), executor=self.thread)

    async def close(self) -> None:
        await self.end_compaction()
        await super().close()
        self.thread.shutdown()

    async def begin_compaction(self) -> None:
        assert self.opened is not None
        await self.end_compaction()
        self.compaction = asyncio.create_task(self.opened.engine.compact())
        for _ in range(self.random.randrange(30)):
            await asyncio.sleep(0)

    async def end_compaction(self) -> None:
        if self.compaction is not None:
            await self.compaction
            self.compaction = None

    async def kill(self) -> None:
        self.lives += 1
        before, after = self.directory, self.directory.parent / str(self.lives)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self.thread, shutil.copytree, before, after)
        await self.close()
        shutil.rmtree(before)
        self.directory = after
        if self.random.random() < 0.5:
            shutil.rmtree(after / "index")
        await self.open()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_h72_a_kill_beside_compaction_loses_and_brings_back_nothing(
    tmp_path: Path, seed: int
) -> None:
    walk = KilledWalk(tmp_path, seed)
    await walk.open()
    for _ in range(40):
        for _ in range(walk.random.randrange(12)):
            await walk.step()
        if walk.random.random() < 0.7:
            await walk.begin_compaction()
            for _ in range(walk.random.randrange(4)):
                await walk.step()
        if walk.random.random() < 0.5:
            await walk.kill()
            assert walk.opened is not None
            await require(walk.opened.engine, walk.model)
    assert walk.opened is not None
    await walk.end_compaction()
    await require(walk.opened.engine, walk.model)
    await walk.close()
