"""Locks by name: one holder, in the order of asking, no memory afterwards, a bounded queue."""

import asyncio
from contextlib import suppress

import pytest

from segmentstore.runtime.keyed_locks import KeyedLocks


class _RefusedError(Exception):
    pass


async def test_holders_of_one_name_follow_one_another_in_order() -> None:
    locks = KeyedLocks[str](waiters_max=10, refusal=_RefusedError)
    order: list[int] = []
    inside = 0

    async def work(number: int) -> None:
        nonlocal inside
        async with locks.held("a"):
            inside += 1
            assert inside == 1
            await asyncio.sleep(0)
            order.append(number)
            inside -= 1

    await asyncio.gather(*(work(number) for number in range(5)))
    assert order == list(range(5))
    assert not locks.is_held("a")
    locks.check()


async def test_other_names_do_not_wait() -> None:
    locks = KeyedLocks[str](waiters_max=0, refusal=_RefusedError)
    async with locks.held("a"), locks.held("b"):
        assert locks.is_held("a")
        assert locks.is_held("b")


async def test_too_many_waiters_are_sent_away() -> None:
    locks = KeyedLocks[str](waiters_max=1, refusal=_RefusedError)

    async def hold() -> None:
        async with locks.held("a"):
            await asyncio.sleep(0)

    async with locks.held("a"):
        waiting = asyncio.ensure_future(hold())
        await asyncio.sleep(0)
        with pytest.raises(_RefusedError, match="a"):
            async with locks.held("a"):
                raise AssertionError("the lock was given")
    await waiting
    locks.check()


async def test_a_cancelled_waiter_leaves_nothing_behind() -> None:
    locks = KeyedLocks[str](waiters_max=1, refusal=_RefusedError)

    async def hold() -> None:
        async with locks.held("a"):
            raise AssertionError("the lock was given")

    async with locks.held("a"):
        waiting = asyncio.ensure_future(hold())
        await asyncio.sleep(0)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        locks.check()
    assert not locks.is_held("a")


async def test_without_a_bound_every_caller_may_wait() -> None:
    locks = KeyedLocks[int]()
    order: list[int] = []

    async def work(number: int) -> None:
        async with locks.held(7):
            order.append(number)

    async with locks.held(7):
        waiting = [asyncio.ensure_future(work(number)) for number in range(200)]
        await asyncio.sleep(0)
        assert len(locks) == 1
    await asyncio.gather(*waiting)
    assert order == list(range(200))
    assert len(locks) == 0
