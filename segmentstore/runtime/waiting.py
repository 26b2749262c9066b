"""Waiting for several things, or for whichever of two comes first, without leaving one of them half done.

- gather_all(): work side by side, all of which ends before a failure of one is raised. asyncio.gather() raises at
  once, and what it leaves behind goes on beside whatever its caller does next.
- wait_for_event(): an event or a point in time, without a timeout that cancels anything.
- give_way(): between the items of work that waits for nothing, and may have very many of them.
- SharedTime: what the items of one request may take together, so that some that take too long hide no others.
- sleep_and_tell_lateness(): for looks whether another process has been silent for too long, and not this one.
- Change: any number of waiters for something that happens again and again.
- first_cause(): which of the errors of several is told.
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


async def give_way(item_count: int, *, every: int) -> None:
    """Behind so many items: others run, if it is time. A call takes some 0.2 us."""
    if item_count % every == 0:
        await asyncio.sleep(0)


async def sleep_and_tell_lateness(seconds: float) -> float:
    """asyncio.sleep(); by how many seconds it ended too late: so long did this process itself stand still."""
    loop = asyncio.get_running_loop()
    due = loop.time() + seconds
    await asyncio.sleep(seconds)
    return loop.time() - due


class Change:
    """tell() wakes those that wait at that moment. To miss none: look, and wait with no await in between."""

    def __init__(self) -> None:
        self._event: Event | None = None

    def tell(self) -> None:
        event, self._event = self._event, None
        if event is not None:
            event.set()

    async def wait(self, seconds_max: float) -> None:
        """Returns behind the next tell(), or when the time is over, for all that wait."""
        event = self._event = self._event or Event()
        await wait_for_event(event, until=asyncio.get_running_loop().time() + seconds_max)
        if self._event is event:
            # Its time is over: it is set, and the next to wait would not wait.
            self._event = None


def first_cause(error: Exception, explains: type[Exception]) -> Exception:
    """What ended a task group, the groups inside of it unpacked.

    An error of the class `explains` makes whatever else went wrong in the same moment plain; else the first of them.
    """
    causes = _causes(error)
    return next((each for each in causes if isinstance(each, explains)), causes[0])


def _causes(error: Exception) -> list[Exception]:
    if not isinstance(error, ExceptionGroup):
        return [error]
    return [cause for each in error.exceptions for cause in _causes(each)]


class SharedTime:
    """Of the items of one request, which are worked on one after the other. When it is over, each of those behind has a
    little, which is enough for what is at hand, for a second in all; then only what needs no wait is done."""

    _ITEM_SECONDS = 0.05
    _REST_SECONDS = 1.0

    def __init__(self, seconds: float) -> None:
        self._until = asyncio.get_running_loop().time() + seconds

    def limit(self) -> asyncio.Timeout:
        """Of the next item."""
        little = asyncio.get_running_loop().time() + self._ITEM_SECONDS
        return asyncio.timeout_at(max(self._until, min(little, self._until + self._REST_SECONDS)))
