"""Runs coroutines from Spark's calls, which are synchronous, and owns the threads that their blocking work goes to.

Invariants:

- One loop for the life of the runner: what is opened by one call is still good in the next. Between calls the loop
  stands still.
- After close() no thread and no task of it is left.
- It belongs to one process: it is made where it is used and never sent along.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T")

_THREADS = 2


class LoopRunner:
    """Hold it in `with`; a call from inside a running loop is a bug of the caller."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="segmentstore")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def executor(self) -> Executor:
        """For files, compression and checksums."""
        return self._executor

    def run(self, work: Coroutine[object, object, T]) -> T:
        """The result of a coroutine; its errors as they are."""
        return self._runner.run(work)

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """The items of an asynchronous generator one by one. Closes it, also when the caller stops early."""
        try:
            while True:
                try:
                    item = self.run(_next(items))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            self.run(items.aclose())

    def close(self) -> None:
        """Idempotent."""
        self._runner.close()
        self._executor.shutdown()


async def _next(items: AsyncGenerator[T, None]) -> T:
    return await anext(items)
