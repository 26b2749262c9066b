"""Background tasks of one owner, such as the requests of a connection that have to wait for something.

Every task is owned here: it ends by itself, or is cancelled when its owner goes. Cancelling one never undoes what
it submitted: the container owns that. A callback of the owner, made by guarded(), fails as a task does.
"""

import asyncio
from asyncio import Task
from collections.abc import Callable, Coroutine
from typing import ParamSpec

from segmentstore.runtime import guarded_callback

_Arguments = ParamSpec("_Arguments")


class TaskSet:
    """start() any number; the owner looks at len() and stops taking requests in time."""

    def __init__(
        self, *, on_end: Callable[[], None], on_failure: Callable[[BaseException], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_end = on_end
        self._on_failure = on_failure
        self._task_ended = self.guarded(self._ended)
        # A dict, for its order: tasks are cancelled in the order in which they came.
        self._tasks: dict[Task[None], None] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._task_ended)

    def guarded(self, callback: Callable[_Arguments, None]) -> Callable[_Arguments, None]:
        """For the loop: what it raises is the owner's failure."""
        return guarded_callback.guarded(callback, self._on_failure)

    def cancel(self) -> None:
        """End all of them; they are gone a turn of the loop later."""
        for task in self._tasks:
            task.cancel()

    async def join(self) -> None:
        """Returns when none is left. Cancel them first."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: "Task[None]") -> None:
        del self._tasks[task]
        if not task.cancelled():
            error = task.exception()
            if error is not None:
                self._on_failure(error)
        self._on_end()
