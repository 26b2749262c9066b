"""Cancels an operation at each of its waits in turn, in every way in which a caller can leave.

| how | what happens at the wait with the number `at` |
|---|---|
| before | the wait is cancelled before what it waits for had a chance |
| behind | what it waits for has happened; the cancellation comes before the operation hears of it |
| twice | as `before`, and the first wait of whatever tidies up is cancelled as well |

A cancellation is never swallowed: an operation that was cancelled ends with CancelledError.
"""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final

import pytest

HOWS: Final = ("before", "behind", "twice")


async def cancelled_at(work: Coroutine[Any, Any, None], at: int, how: str) -> bool:
    """Run the work and cancel it at a wait; False if it ended before it came so far. Raises what the work raises."""
    waits = 0
    was_cancelled = False

    def waiting(waited: Any) -> None:
        nonlocal waits, was_cancelled
        is_due = waits == at or (how == "twice" and waits == at + 1)
        waits += 1
        if not is_due:
            return
        was_cancelled = True
        if how == "behind" and waited is not None:
            waited.add_done_callback(lambda _: task.cancel())
        else:
            task.cancel()

    task = asyncio.get_running_loop().create_task(_run_watched(work, waiting))
    async with asyncio.timeout(60):
        await asyncio.wait([task])
    if was_cancelled:
        with pytest.raises(asyncio.CancelledError):
            task.result()
    else:
        task.result()
    return was_cancelled


async def _run_watched(work: Coroutine[Any, Any, None], waiting: Callable[[Any], None]) -> None:
    """What a task runs is a coroutine; from Python 3.12 on it takes no generator."""
    await _watched(work, waiting)


@types.coroutine
def _watched(
    work: Coroutine[Any, Any, None], waiting: Callable[[Any], None]
) -> Generator[Any, Any, None]:
    """The work itself; `waiting` hears what it is about to wait for: a future, or None for one turn of the loop."""
    sent: Any = None
    thrown: BaseException | None = None
    while True:
        try:
            waited = work.send(sent) if thrown is None else work.throw(thrown)
        except StopIteration:
            return
        waiting(waited)
        sent, thrown = None, None
        try:
            sent = yield waited
        except BaseException as error:  # noqa: BLE001  # it is thrown into the work
            thrown = error
