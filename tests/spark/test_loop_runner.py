import asyncio
import threading
from collections.abc import AsyncGenerator

import pytest

from segmentstore.spark.python_worker import InlineExecutor, LoopRunner


def test_one_loop_serves_all_calls() -> None:
    async def loop_id() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    with LoopRunner() as runner:
        assert runner.run(loop_id()) is runner.run(loop_id())


def test_items_come_one_by_one_and_who_stops_early_closes_the_generator() -> None:
    closed: list[int] = []

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            for number in range(10):
                await asyncio.sleep(0)
                yield number
        finally:
            closed.append(1)

    with LoopRunner() as runner:
        assert list(runner.iterate(numbers())) == list(range(10))
        items = runner.iterate(numbers())
        assert next(items) == 0
        items.close()  # type: ignore[attr-defined]  # an iterator that is a generator
    assert closed == [1, 1]


def test_errors_come_out_as_they_are() -> None:
    async def failing() -> AsyncGenerator[int, None]:
        yield 1
        raise KeyError("two")

    with LoopRunner() as runner:
        items = runner.iterate(failing())
        assert next(items) == 1
        with pytest.raises(KeyError):
            next(items)


def test_blocking_work_runs_in_its_threads() -> None:
    with LoopRunner() as runner:
        executor = runner.executor

        async def work() -> int:
            return await asyncio.get_running_loop().run_in_executor(executor, sum, [1, 2, 3])

        assert runner.run(work()) == 6


def test_work_that_is_done_inline_needs_no_thread_and_brings_its_errors() -> None:
    def failing() -> int:
        raise KeyError("two")

    async def work() -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        thread = await loop.run_in_executor(runner.executor, threading.get_ident)
        with pytest.raises(KeyError):
            await loop.run_in_executor(runner.executor, failing)
        return thread, threading.get_ident()

    with LoopRunner(executor=InlineExecutor()) as runner:
        there, here = runner.run(work())
        assert there == here


def test_work_that_is_done_inline_is_there_without_a_turn_of_the_loop() -> None:
    async def work() -> tuple[str, ...]:
        loop = asyncio.get_running_loop()
        order: list[str] = []
        loop.call_soon(order.append, "turn")
        order.append(await loop.run_in_executor(runner.executor, str, "work"))
        return tuple(order)

    with LoopRunner(executor=InlineExecutor()) as runner:
        assert runner.run(work()) == ("work",)
