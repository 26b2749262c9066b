"""Work that goes on when whoever waits for it is cancelled."""

import asyncio

import pytest

from segmentstore.runtime.cancellation import finish_despite_cancellation


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
