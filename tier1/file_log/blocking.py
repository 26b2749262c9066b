"""Blocking steps in an executor: a cancelled caller still waits for the step it began, also if it is cancelled
again.

Otherwise a file could be closed, or a lock given back, under a thread that is still writing.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class BlockingSteps:
    """Runs functions that block, one await each."""

    def __init__(self, executor: Executor | None) -> None:
        self._executor = executor

    async def run(
        self,
        step: Callable[_Arguments, _Result],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _Result:
        """The step's result or exception. When cancelled, raises CancelledError after the step has ended."""
        loop = asyncio.get_running_loop()
        job = loop.run_in_executor(self._executor, partial(step, *args, **kwargs))
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError as cancelled:
            await wait_until_done(job)
            raise cancelled from None


async def wait_until_done(job: "asyncio.Future[_Result]") -> None:
    """Returns when it is done, however it ends, and however often the caller is cancelled meanwhile.

    For a caller that was cancelled and raises that when this returns: a second cancellation says nothing new.
    """
    while not job.done():
        with suppress(asyncio.CancelledError, Exception):
            await asyncio.shield(job)
    if not job.cancelled():
        job.exception()
