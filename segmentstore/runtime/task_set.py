"""The background tasks of one owner: started by it, ended with it, never lost.

Invariants:

- What a task lets through is a bug or a failure that its owner must hear of at once: it is given to `on_failure`, in
  the loop's next turn, and never merely logged. So is what a callback of the owner raises, made by guarded(), and what
  `on_end` raises.
- A failure is given once. What `on_failure` itself raises goes to the loop, which logs it: the owner had its call.
- Cancelling a task never undoes what it submitted: the container owns that.
- close() returns only when every task has ended, and none is started after it has begun.
"""

import asyncio
from asyncio import Task
from collections.abc import Callable, Coroutine
from typing import ParamSpec

from segmentstore.runtime import guarded_callback

_Arguments = ParamSpec("_Arguments")


class TaskSet:
    """start() any number, then close(). An owner that limits them looks at len().

    Not a TaskGroup: its owner lives across calls, and a failure must neither wrap nor cancel what its user does.
    """

    def __init__(
        self,
        *,
        on_failure: Callable[[BaseException], None],
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """`on_end` is called after each end of a task, however it came."""
        self._on_failure = on_failure
        self._on_end = None if on_end is None else self.guarded(on_end)
        # A dict, for its order: tasks are cancelled in the order in which they came.
        self._tasks: dict[Task[None], None] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[None, None, None], *, name: str | None = None) -> None:
        """Run the work until it ends or is cancelled."""
        assert not self._is_closed, f"a task is started after the end of its owner name={name}"
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

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

    async def close(self) -> None:
        """Cancel what runs and wait for its end. Idempotent."""
        self._is_closed = True
        self.cancel()
        await self.join()

    def _ended(self, task: "Task[None]") -> None:
        # Not guarded as a whole: what on_failure raises would be given to on_failure.
        del self._tasks[task]
        failure = None if task.cancelled() else task.exception()
        try:
            if failure is not None:
                self._on_failure(failure)
        finally:
            if self._on_end is not None:
                self._on_end()
