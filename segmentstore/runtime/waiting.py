"""Waiting for several things, or for whichever of two comes first, without leaving one of them half done.

- gather_all(): work side by side, all of which ends before a failure of one is raised. asyncio.gather() raises at
  once, and what it leaves behind goes on beside whatever its caller does next.
- wait_for_event(): an event or a point in time, without a timeout that cancels anything.
"""

import asyncio
from asyncio import Event
from collections.abc import Awaitable, Iterable
from math import inf
from typing import TypeVar

_Result = TypeVar("_Result")


async def gather_all(work: Iterable[Awaitable[_Result]]) -> list[_Result]:
    """The results in order; the first failure in that order, when all have ended."""
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    results: list[_Result] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results


async def wait_for_event(event: Event, *, until: float = inf) -> None:
    """Returns when the event is set; at loop time `until` it is set here, and its waiters look again in any case."""
    timer = None if until == inf else asyncio.get_running_loop().call_at(until, event.set)
    try:
        await event.wait()
    finally:
        if timer is not None:
            timer.cancel()
