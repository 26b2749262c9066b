"""The background tasks of one component: started by it, ended with it, never lost.

Invariants:

- `close()` returns only when every task has ended.
- An exception that a task lets through is a bug or a failure that its component must hear of at once: it is given to
  `on_failure`, in the loop's next turn, and never merely logged.
"""

import asyncio
from collections.abc import Callable, Coroutine


class OwnedTasks:
    """Not a TaskGroup: its owner lives across calls, and a failure must neither wrap nor cancel what its user does."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._on_failure = on_failure
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closed = False

    def start(self, work: Coroutine[None, None, None], *, name: str) -> None:
        """Run the work until it ends or the owner closes."""
        assert not self._is_closed, f"a task is started after the end of its owner name={name}"
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.append(task)
        task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Cancel what runs and wait for its end. Closing twice is fine."""
        self._is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.remove(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)
