"""The loop under every simulation: time, death, sleep of a process, and what fails a run."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from tests.sim.loop import SimLoop
from tests.sim.node import DeadlockError, LivelockError, NodeDiedError, SimExecutor, SimulationError
from tests.sim.simulation import run_simulation

pytestmark = pytest.mark.simulation


def test_an_hour_of_sleep_takes_no_time_and_exactly_an_hour() -> None:
    async def main(loop: SimLoop) -> float:
        await asyncio.sleep(3600)
        return loop.time()

    assert run_simulation(1, main).result == 3600.0


def test_ready_callbacks_run_first_in_first_out() -> None:
    async def main(loop: SimLoop) -> list[int]:
        seen: list[int] = []
        for number in range(5):
            loop.call_soon(seen.append, number)
        await asyncio.sleep(1)
        return seen

    assert run_simulation(1, main).result == [0, 1, 2, 3, 4]
    assert run_simulation(1, main, shuffled=True).result != [0, 1, 2, 3, 4]


def test_a_crash_runs_no_finally_and_no_further_line() -> None:
    seen: list[str] = []

    async def process() -> None:
        try:
            seen.append("up")
            await asyncio.sleep(10)
            seen.append("never")
        finally:
            seen.append("finally")

    async def main(loop: SimLoop) -> None:
        node = loop.start("a", process())
        await asyncio.sleep(1)
        loop.crash(node)
        del node
        await asyncio.sleep(100)

    run_simulation(1, main)
    assert seen == ["up"]


def test_a_paused_node_does_its_work_late_and_in_order() -> None:
    async def main(loop: SimLoop) -> list[tuple[int, float]]:
        seen: list[tuple[int, float]] = []

        async def process() -> None:
            for number in range(3):
                await asyncio.sleep(1)
                seen.append((number, loop.time()))

        node = loop.start("a", process())
        await asyncio.sleep(1.5)
        loop.pause(node)
        await asyncio.sleep(60)
        assert len(seen) == 1
        loop.resume(node)
        await asyncio.sleep(60)
        return seen

    assert run_simulation(1, main).result == [(0, 1.0), (1, 61.5), (2, 62.5)]


def test_a_job_of_a_dead_node_sometimes_still_happens() -> None:
    async def main(loop: SimLoop) -> bool:
        written: list[str] = []

        async def process() -> None:
            await loop.run_in_executor(None, written.append, "late")
            raise AssertionError("a dead node went on")

        node = loop.start("a", process())
        await asyncio.sleep(0)
        loop.crash(node)
        await asyncio.sleep(10)
        return bool(written)

    outcomes = {run_simulation(seed, main).result for seed in range(20)}
    assert outcomes == {True, False}


def test_a_job_of_a_paused_node_happens_now_or_when_it_wakes() -> None:
    async def main(loop: SimLoop) -> float:
        times: list[float] = []

        async def process() -> None:
            await loop.run_in_executor(None, lambda: times.append(loop.time()))

        node = loop.start("a", process())
        await asyncio.sleep(0)
        loop.pause(node)
        await asyncio.sleep(100)
        loop.resume(node)
        await asyncio.sleep(1)
        return times[0]

    times = [run_simulation(seed, main).result for seed in range(20)]
    assert min(times) < 1
    assert max(times) >= 100


def test_jobs_overtake_one_another_except_in_a_pool_of_one() -> None:
    async def run(loop: SimLoop, executor: SimExecutor | None) -> list[int]:
        seen: list[int] = []
        async with asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(_job(loop, executor, seen, number))
        return seen

    in_order = list(range(8))
    assert run_simulation(3, lambda loop: run(loop, SimExecutor(1))).result == in_order
    assert run_simulation(3, lambda loop: run(loop, None)).result != in_order


async def _job(loop: SimLoop, executor: SimExecutor | None, seen: list[int], number: int) -> None:
    await loop.run_in_executor(executor, seen.append, number)


def test_the_error_of_a_job_reaches_its_submitter() -> None:
    async def main(loop: SimLoop) -> None:
        with pytest.raises(OSError, match="disk"):
            await loop.run_in_executor(None, _fail)

    run_simulation(1, main)


def _fail() -> None:
    raise OSError("disk")


def test_a_caller_outside_sees_the_answer_or_the_death() -> None:
    async def answer() -> int:
        await asyncio.sleep(1)
        return 7

    async def main(loop: SimLoop) -> None:
        node = loop.new_node("a")
        assert await loop.invoke(node, answer()) == 7
        loop.call_later(0.5, loop.crash, node)
        with pytest.raises(NodeDiedError):
            await loop.invoke(node, answer())
        with pytest.raises(NodeDiedError):
            await loop.invoke(node, answer())

    run_simulation(1, main)


def test_a_caller_that_gives_up_cancels_its_request() -> None:
    async def main(loop: SimLoop) -> list[str]:
        seen: list[str] = []

        async def work() -> None:
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await loop.invoke(loop.new_node("a"), work())
        await asyncio.sleep(1)
        return seen

    assert run_simulation(1, main).result == ["cancelled"]


def test_a_world_that_cannot_move_is_a_deadlock() -> None:
    async def main(loop: SimLoop) -> None:
        await loop.create_future()

    with pytest.raises(DeadlockError, match="main"):
        run_simulation(1, main)


def test_a_loop_without_time_is_a_livelock() -> None:
    async def main(loop: SimLoop) -> None:
        loop.steps_max = 1000
        while True:
            await asyncio.sleep(0)

    with pytest.raises(LivelockError):
        run_simulation(1, main)


def test_an_exception_that_nobody_retrieves_fails_the_run() -> None:
    async def fails() -> None:
        raise OSError("lost")

    async def main(loop: SimLoop) -> None:
        task = asyncio.create_task(fails())
        await asyncio.sleep(1)
        del task
        await asyncio.sleep(1)

    with pytest.raises(SimulationError, match="never retrieved"):
        run_simulation(1, main)


def test_a_callback_that_raises_fails_the_run() -> None:
    async def main(loop: SimLoop) -> None:
        loop.call_soon(_fail)
        await asyncio.sleep(1)

    with pytest.raises(SimulationError, match="callback"):
        run_simulation(1, main)


def test_a_main_that_raises_fails_the_run() -> None:
    async def process() -> None:
        raise OSError("boot")

    async def main(loop: SimLoop) -> None:
        loop.start("a", process())
        await asyncio.sleep(1)

    with pytest.raises(OSError, match="boot"):
        run_simulation(1, main)


def test_a_generator_left_half_consumed_fails_the_run() -> None:
    async def numbers() -> AsyncGenerator[int, None]:
        for number in range(10):
            yield number

    async def careless(loop: SimLoop) -> None:
        async for _ in numbers():
            break
        await asyncio.sleep(1)

    async def careful(loop: SimLoop) -> None:
        async with aclosing(numbers()) as cursor:
            async for _ in cursor:
                break
        await asyncio.sleep(1)

    run_simulation(1, careful)
    with pytest.raises(SimulationError, match="half consumed"):
        run_simulation(1, careless)


def test_there_is_no_network() -> None:
    async def main(loop: SimLoop) -> None:
        with pytest.raises(NotImplementedError):
            await loop.create_connection(asyncio.Protocol, "localhost", 1)

    run_simulation(1, main)


def test_the_note_of_a_failed_run_names_the_seed_and_the_trace() -> None:
    async def main(loop: SimLoop) -> None:
        loop.trace("about to fail")
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong") as caught:
        run_simulation(42, main)
    assert "seed=42" in caught.value.__notes__[0]
    assert "about to fail" in caught.value.__notes__[0]


_SET_ORDER_PROGRAM = """
import asyncio
from tests.sim.simulation import run_simulation

async def worker(loop, number):
    try:
        await asyncio.sleep(1000)
    finally:
        loop.trace("cancelled", number)

async def main(loop):
    junk = [bytes(number) for number in range(loop.random.randrange(1000))]
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(worker(loop, number))
            await asyncio.sleep(loop.random.random())
            raise ValueError
    except* ValueError:
        pass

print(run_simulation(7, main).fingerprint)
"""


@pytest.mark.slow
def test_a_task_group_cancels_alike_in_every_process() -> None:
    prints = {
        subprocess.run(
            [sys.executable, "-c", _SET_ORDER_PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1", "77")
    }
    assert len(prints) == 1
