"""Lone small frames on the loop: when, and that nothing else differs (L1, L2, H47, H48)."""

import asyncio
import errno
from dataclasses import replace

import pytest

from segmentstore.contracts.errors import DurableDataLogError, LogNotPrimaryError
from segmentstore.contracts.identifiers import LogAddress
from tests.contracts.durable_data_log_suite import entries
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tests.tier1.file_log.worlds import KIB, SMALL, SimulatedLogWorld
from tier1.file_log.frame_flush import InlineSyncPolicy
from tier1.file_log.log import FileDurableDataLog

QUIET = replace(SMALL, mark_delay_seconds=1000.0)
THREAD_SECONDS = 0.01


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds


def pace_of(clock: Clock) -> InlineSyncPolicy:
    return InlineSyncPolicy(
        now=clock.now,
        usual_seconds_max=0.001,
        seconds_max=0.002,
        fast_writes_min=3,
        bytes_max=100,
    )


def test_a_disk_is_trusted_after_some_fast_writes_in_a_row() -> None:
    pace = pace_of(Clock())
    for _ in range(3):
        assert not pace.may_wait(1)
        pace.note(0.001, on_loop=False)
    assert pace.may_wait(1)
    pace.note(0.0021, on_loop=False)
    for _ in range(3):
        assert not pace.may_wait(1)
        pace.note(0.0005, on_loop=False)
    assert pace.may_wait(1)


def test_a_disk_that_is_late_now_and_then_is_trusted_and_one_that_always_is_is_not() -> None:
    pace = pace_of(Clock())
    trusted = 0
    for number in range(100):
        trusted += pace.may_wait(1)
        pace.note(0.0018 if number % 10 == 9 else 0.0006, on_loop=False)
    assert trusted == 97
    for _ in range(16):
        pace.note(0.0014, on_loop=False)
    assert not pace.may_wait(1)
    for _ in range(16):
        pace.note(0.0006, on_loop=False)
    assert pace.may_wait(1)


def test_large_frames_go_through_a_thread() -> None:
    pace = pace_of(Clock())
    for _ in range(3):
        pace.note(0.0, on_loop=False)
    assert pace.may_wait(100)
    assert not pace.may_wait(101)


def test_the_loop_is_given_to_syncs_at_most_half_of_the_time() -> None:
    clock = Clock()
    pace = pace_of(clock)
    for _ in range(3):
        pace.note(0.0, on_loop=False)
    clock.seconds = 5.0
    pace.note(0.0008, on_loop=True)
    assert not pace.may_wait(1)
    clock.seconds += 0.0007
    assert not pace.may_wait(1)
    clock.seconds += 0.0002
    assert pace.may_wait(1)
    pace.note(0.0008, on_loop=False)
    assert pace.may_wait(1), "a write in a thread kept nobody waiting"


async def trusted(world: SimulatedLogWorld, loop: SimLoop) -> FileDurableDataLog:
    """A log whose lone frames are written on the loop from now on; a thread would take THREAD_SECONDS."""
    world.pace = InlineSyncPolicy(now=loop.time, fast_writes_min=2)
    log = world.log()
    await log.initialize()
    for _ in range(3):
        await log.append([b"first"])
    await asyncio.sleep(3)
    loop.executor_delay = lambda random: THREAD_SECONDS
    return log


def test_a_lone_append_does_not_wait_for_a_thread() -> None:
    async def main(loop: SimLoop) -> None:
        log = await trusted(SimulatedLogWorld(QUIET), loop)
        began = loop.time()
        await log.append([b"lone"])
        assert loop.time() == began
        await log.append([bytes(48 * KIB)])
        assert loop.time() >= began + THREAD_SECONDS, "a large frame was written on the loop"
        await log.close()

    run_simulation(1, main)


def test_l1_what_comes_behind_a_frame_written_on_the_loop_is_acknowledged_behind_it() -> None:
    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld(QUIET)
        log = await trusted(world, loop)
        done: list[int] = []

        async def note(number: int, future: "asyncio.Future[LogAddress]") -> None:
            await future
            done.append(number)

        futures = [log.append([b"%d" % number]) for number in range(19)]
        assert futures[0].done(), "a frame on the loop took another turn"
        futures.append(log.append([bytes(48 * KIB)]))  # goes through a thread
        futures.append(log.append([b"behind"]))
        assert not futures[-1].done(), "acknowledged before the one in front of it"
        await asyncio.gather(*(note(*pair) for pair in enumerate(futures)))
        assert done == list(range(21))
        log.check()
        await log.close()
        again = world.log()
        await again.initialize()
        found = [bytes(payload) for _, payload in await entries(again)]
        assert found[-21:] == [
            *(b"%d" % number for number in range(19)),
            bytes(48 * KIB),
            b"behind",
        ]
        await again.close()

    run_simulation(1, main)


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_h48_a_failure_on_the_loop_ends_the_log_as_one_in_a_thread_does(kind: str) -> None:
    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld(QUIET)
        log = await trusted(world, loop)
        world.disk.faults.plan(kind, errno.EIO, path_part="journal")
        with pytest.raises(DurableDataLogError):
            await log.append([b"lost"])
        with pytest.raises(DurableDataLogError):
            await log.append([b"refused"])
        await log.close()

    run_simulation(1, main)


def test_h47_the_epoch_is_checked_behind_a_sync_on_the_loop() -> None:
    async def main(loop: SimLoop) -> None:
        world = SimulatedLogWorld(QUIET)
        log = await trusted(world, loop)
        successor = world.take_over()
        await successor.initialize()
        with pytest.raises(LogNotPrimaryError):
            await log.append([b"zombie"])
        await log.close()
        await successor.close()

    run_simulation(1, main)
