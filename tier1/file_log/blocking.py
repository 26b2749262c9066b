"""Blocking steps in an executor: a cancelled caller still waits for the step it began.

Otherwise a file could be closed, or a lock given back, under a thread that is still writing.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import ParamSpec, TypeVar

from segmentstore.runtime.cancellation import finish_despite_cancellation

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
        return await finish_despite_cancellation(job)
