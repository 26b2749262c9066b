"""Work that goes on when whoever waits for it is cancelled."""

import asyncio

import pytest

from segmentstore.runtime.cancellation import (
    complete_unless_done,
    fail_unless_done,
    finish_despite_cancellation,
)


async def test_what_is_cancelled_meanwhile_is_told_when_the_work_has_ended() -> None:
    go, ended = asyncio.Event(), []

    async def work() -> None:
        await go.wait()
        ended.append(True)

    waiting = asyncio.ensure_future(finish_despite_cancellation(work()))
    for _ in range(3):
        await asyncio.sleep(0)
        waiting.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiting.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended == [True]


async def test_results_and_errors_are_those_of_the_work() -> None:
    async def work(number: int) -> int:
        await asyncio.sleep(0)
        return 10 // number

    assert await finish_despite_cancellation(work(5)) == 2
    with pytest.raises(ZeroDivisionError):
        await finish_despite_cancellation(work(0))


async def test_a_cancellation_is_told_also_when_the_work_fails() -> None:
    go = asyncio.Event()

    async def work() -> None:
        await go.wait()
        raise ValueError

    waiting = asyncio.ensure_future(finish_despite_cancellation(work()))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError) as told:
        await waiting
    assert isinstance(told.value.__cause__, ValueError)


async def test_a_future_that_was_cancelled_takes_neither_a_result_nor_an_error() -> None:
    loop = asyncio.get_running_loop()
    for _ in range(2):
        left: asyncio.Future[int] = loop.create_future()
        left.cancel()
        complete_unless_done(left, 1)
        fail_unless_done(left, RuntimeError("late"))
        assert left.cancelled()
    done: asyncio.Future[int] = loop.create_future()
    complete_unless_done(done, 1)
    complete_unless_done(done, 2)
    assert await done == 1


async def test_an_error_that_no_future_takes_reaches_its_waiter_in_words() -> None:
    failed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    fail_unless_done(failed, StopIteration(7))
    with pytest.raises(RuntimeError, match="StopIteration: 7"):
        await failed
