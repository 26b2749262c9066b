"""Frames that are planned ahead and written without asking the loop in between (H47, H48, H51)."""

import asyncio
import errno
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from segmentstore.contracts.errors import DurableDataLogError, LogNotPrimaryError
from segmentstore.contracts.identifiers import LogAddress
from segmentstore.runtime.files import SystemFileSystem
from tests.contracts.durable_data_log_suite import entries
from tests.sim.disk import Boundary
from tests.sim.loop import SimLoop
from tests.sim.power_cuts import Persistence, power_cut_image
from tests.sim.simulation import run_simulation
from tests.tier1.file_log.history import History
from tests.tier1.file_log.worlds import KIB, SMALL, SimulatedLogWorld
from tier1.file_log.directory import LogDirectory
from tier1.file_log.frame_flush import FrameFlush
from tier1.file_log.frame_planner import PlannedFrame
from tier1.file_log.log import FileDurableDataLog

AHEAD = replace(SMALL, batch_bytes_max=8 * KIB, ahead_bytes_min=4 * KIB, mark_delay_seconds=1.0)
"""An entry of 8 KiB is a frame of its own, and enough to be planned ahead."""

LARGE = bytes(8 * KIB)


class JournalDiary:
    """When the files of frames were written and synced, in virtual seconds."""

    def __init__(self, world: SimulatedLogWorld, loop: SimLoop) -> None:
        self.writes: list[float] = []
        self.syncs: list[float] = []
        self._loop = loop
        world.disk.on_boundary = self._note

    def _note(self, boundary: Boundary) -> None:
        if "journal" in boundary.path:
            if boundary.kind == "write":
                self.writes.append(self._loop.time())
            elif boundary.kind == "sync":
                self.syncs.append(self._loop.time())


async def opened(world: SimulatedLogWorld) -> FileDurableDataLog:
    """A log that has nothing left to do: its spare files are made, its epoch frame is vouched for."""
    log = world.log()
    await log.initialize()
    await log.append([b"first"])
    await asyncio.sleep(3)
    return log


def test_a_large_frame_follows_the_one_before_it_without_a_pause() -> None:
    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld(AHEAD)
        log = await opened(world)
        diary = JournalDiary(world, loop)
        await asyncio.gather(*[log.append([LARGE]) for _ in range(2)])
        assert len(diary.writes) == len(diary.syncs) == 2
        assert diary.writes[1] == diary.syncs[0], "the disk waited for the loop"
        world.disk.on_boundary = None
        await log.close()

    run_simulation(1, main)


def test_a_rest_not_worth_a_sync_rides_along_with_the_large_entry_before_it() -> None:
    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld(replace(AHEAD, batch_bytes_max=32 * KIB))
        log = await opened(world)
        diary = JournalDiary(world, loop)
        first = log.append([LARGE])
        await asyncio.sleep(0)  # it is being written when the others come
        await asyncio.gather(first, log.append([LARGE]), log.append([bytes(KIB)]))
        assert len(diary.syncs) == 2, "the small entry had a frame of its own"
        world.disk.on_boundary = None
        await log.close()

    run_simulation(1, main)


def test_h44_a_mark_is_certain_before_a_frame_vouches_for_it() -> None:
    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld(AHEAD)
        log = await opened(world)  # has been idle: a mark that was not synced is the last frame
        await log.append([b"behind the mark"])
        await log.append([b"vouches for all before it"])
        disk = power_cut_image(world.disk, Persistence.NOTHING, Random(1))
        await log.close()
        again = SimulatedLogWorld(AHEAD, disk=disk).log()
        await again.initialize()
        assert [content for _, content in await entries(again)] == [
            b"first",
            b"behind the mark",
            b"vouches for all before it",
        ]
        await again.close()

    run_simulation(1, main)


def test_small_entries_wait_for_company_instead_of_being_planned_ahead() -> None:
    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld(AHEAD)
        log = await opened(world)
        loop.executor_delay = lambda random: 0.01
        diary = JournalDiary(world, loop)
        futures = []
        for _ in range(5):
            futures.append(log.append([b"small"]))
            await asyncio.sleep(0.001)
        await asyncio.gather(*futures)
        assert len(diary.syncs) == 2, "four small entries did not share a frame"
        world.disk.on_boundary = None
        await log.close()

    run_simulation(1, main)


def test_h51_frames_planned_ahead_are_acknowledged_in_order() -> None:
    async def main(loop: SimLoop) -> None:
        log = await opened(SimulatedLogWorld(AHEAD))
        done: list[LogAddress] = []
        futures = [log.append([LARGE]) for _ in range(20)]
        for future in futures:
            future.add_done_callback(lambda future: done.append(future.result()))
        await asyncio.gather(*futures)
        assert done == sorted(done)
        log.check()
        assert log.statistics().outstanding_entries == 0
        assert log.statistics().outstanding_bytes == 0
        await log.close()

    run_simulation(1, main)


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_h48_h51_a_frame_planned_ahead_is_not_written_after_a_failure(kind: str) -> None:
    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld(AHEAD)
        log = await opened(world)
        diary = JournalDiary(world, loop)
        world.disk.faults.plan(kind, errno.EIO, path_part="journal")
        futures = [log.append([LARGE]) for _ in range(3)]
        results = await asyncio.gather(*futures, return_exceptions=True)
        assert all(isinstance(result, DurableDataLogError) for result in results), results
        await log.close()
        assert len(diary.writes) == (0 if kind == "write" else 1), "a failed log wrote again"

    run_simulation(1, main)


def test_h47_a_frame_planned_ahead_is_not_written_once_the_epoch_is_lost() -> None:
    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld(AHEAD)
        log = await opened(world)
        diary = JournalDiary(world, loop)
        other = LogDirectory(
            world.path, files=world.disk.mount("other"), random=Random(9), owner=""
        )
        other.claim_epoch(floor=0)
        futures = [log.append([LARGE]) for _ in range(3)]
        results = await asyncio.gather(*futures, return_exceptions=True)
        assert all(isinstance(result, LogNotPrimaryError) for result in results), results
        await log.close()
        assert len(diary.writes) == 1, "a fenced owner went on writing"

    run_simulation(1, main)


@pytest.mark.parametrize("seed", range(20))
def test_a_log_closed_with_frames_under_way_keeps_its_word(seed: int) -> None:
    """Closed at any moment: what was acknowledged is there, and what was not got an error."""

    async def main(loop: SimLoop) -> None:
        world, history = SimulatedLogWorld(AHEAD, seed=seed), History()
        log = await opened(world)
        history.submitted.append(b"first")
        random = Random(seed)
        futures = [history.submit(log, history.payload(8 * KIB, random)) for _ in range(12)]
        await asyncio.sleep(random.expovariate(500))
        await log.close()
        assert all(future.done() for future in futures)
        successor = world.log()
        await successor.initialize()
        history.judge((await entries(successor))[1:])
        await successor.close()
        await asyncio.gather(*futures, return_exceptions=True)

    run_simulation(seed, main)


async def test_a_log_whose_threads_are_gone_fails_instead_of_waiting(tmp_path: Path) -> None:
    threads = ThreadPoolExecutor(max_workers=2)
    log = FileDurableDataLog(
        str(tmp_path / "log"),
        files=SystemFileSystem(),
        executor=threads,
        random=Random(1),
        settings=replace(SMALL, spare_journals=0),
    )
    await log.initialize()
    await log.append([b"kept"])
    threads.shutdown()
    with pytest.raises(DurableDataLogError):
        await log.append([b"lost"])
    with pytest.raises(RuntimeError):
        await log.close()


class ImpatientFuture(asyncio.Future[PlannedFrame]):
    """Says so when it is asked over and over, as by somebody who does not let the loop do anything else."""

    asked = 0

    def done(self) -> bool:
        self.asked += 1
        assert self.asked < 100, "the loop gets to nothing else"
        return super().done()


class HeldJobs(Executor):
    """Gives futures of the loop, as the lanes of a node do; whoever holds them says when a job ends."""

    def __init__(self) -> None:
        self.jobs: list[ImpatientFuture] = []

    def submit(self, *_: object, **__: object) -> Any:
        self.jobs.append(ImpatientFuture())
        return self.jobs[-1]


async def test_who_waits_for_a_job_lets_the_loop_hear_of_its_end(tmp_path: Path) -> None:
    """It has ended, and the loop has not come to say so: waiting for what is done already is no waiting at all."""
    executor = HeldJobs()
    flush = FrameFlush(
        directory=LogDirectory(
            str(tmp_path), files=SystemFileSystem(), random=Random(1), owner="test"
        ),
        executor=executor,
        pace=None,
        on_written=lambda _planned: None,
        on_failure=lambda _error: None,
    )
    planned = cast(PlannedFrame, SimpleNamespace(leaves=None, length=1))
    flush.hand_over(planned)
    executor.jobs[0].set_result(planned)
    flush.stop()
    await flush.wait_until_idle()
    assert flush.idle
