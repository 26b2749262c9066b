"""What a cancellation must not reach: cleanup, submitted work, and failures that are reported elsewhere.

- finish_despite_cancellation(): work that is done to its end, whatever arrives meanwhile: giving back locks and files,
  which nothing would do later. It is never cancelled through its waiter, and a cancellation is not lost: it is
  delivered when the work has ended, however that ended.
- run_blocking(): the same for a step in a thread, under which no file may be closed and no lock given back.
- ChangeTasks: the same for the changes of one owner, which can wait for all that are under way before it closes.
- await_shielded(): waiting for what was submitted, so that a waiter that stops waiting does not cancel it.
- retrieve_exception(): for futures whose failure is reported elsewhere, or that nothing awaits any more.
- complete_unless_done(), fail_unless_done(): for every future that was handed out. Its waiter may have cancelled it,
  and a future that is done takes nothing: InvalidStateError would hit the caller that has answers for others too.
"""

import asyncio
from asyncio import Future
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from functools import partial
from typing import Any, ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


async def finish_despite_cancellation(work: Awaitable[_Result]) -> _Result:
    """The work's result or exception; CancelledError, when it has ended, if that came meanwhile."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except BaseException:
            if cancelled is None:
                raise
    if cancelled is not None:
        failure = None if task.cancelled() else task.exception()
        raise cancelled from failure
    return task.result()


async def run_blocking(
    executor: Executor | None,
    step: Callable[_Arguments, _Result],
    *args: _Arguments.args,
    **kwargs: _Arguments.kwargs,
) -> _Result:
    """The step's result or exception; CancelledError, when it has ended, if that came meanwhile."""
    loop = asyncio.get_running_loop()
    job = loop.run_in_executor(executor, partial(step, *args, **kwargs))
    return await finish_despite_cancellation(job)


class ChangeTasks:
    """Changes of one owner, each of them one task that goes on to its end, whatever becomes of its caller.

    For a change that goes on anyway, in a queue or a thread, and after which something in memory has to be brought up
    to date: what a caller that left never hears of, its task does.

    Invariant: a change is begun, does all of its steps, and is over; its caller gets its answer, or leaves behind it.
    """

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}

    async def run(self, change: Coroutine[Any, Any, _Result]) -> _Result:
        """Its result or exception; CancelledError, when it has ended, if that came meanwhile."""
        return await finish_despite_cancellation(self._owned(change))

    async def join(self) -> None:
        """Returns when none is under way; what they raise is their callers'."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _owned(self, change: Coroutine[Any, Any, _Result]) -> _Result:
        task = asyncio.current_task()
        assert task is not None, "a change is a task of its own"
        self._tasks[task] = None
        try:
            return await change
        finally:
            del self._tasks[task]


async def await_shielded(submitted: "Future[_Result]") -> _Result:
    """The submission's result or exception. Cancelling the wait leaves it alone, and its error is not reported then.

    What asyncio.shield() does, with one callback less per append.
    """
    if not submitted.done():
        waiter: Future[None] = submitted.get_loop().create_future()

        def wake(ended: "Future[_Result]") -> None:
            if not waiter.done():
                waiter.set_result(None)
            elif not ended.cancelled():
                ended.exception()

        submitted.add_done_callback(wake)
        await waiter
    return submitted.result()


def retrieve_exception(future: "Future[_Result]") -> None:
    """A done callback that takes the exception, so that the loop does not report it again."""
    if not future.cancelled():
        future.exception()


def complete_unless_done(future: "Future[_Result]", result: _Result) -> None:
    """Give the result to its waiter, if it still waits."""
    if not future.done():
        future.set_result(result)


def fail_unless_done(future: "Future[_Result]", error: BaseException) -> None:
    """Give the error to its waiter, if it still waits; if none does, the loop does not report it."""
    if not future.done():
        if isinstance(error, StopIteration):
            # A future takes none of these: it would end the coroutine that waits as if it had returned.
            wrapped = RuntimeError(f"a call ended with StopIteration: {error.value!r}")
            wrapped.__cause__ = error
            error = wrapped
        future.set_exception(error)
        future.exception()
