"""How our coroutines run in Spark's Python processes, and what Spark's garbage collector need not look at there.

- `LoopRunner` runs coroutines from Spark's calls, which are synchronous, and owns the threads that their blocking work
  goes to. With an `InlineExecutor` it has no threads: for processes that have nothing else to do meanwhile.
- `run_plan` and `run_task` are the two halves of a batch read; `OpenSource` is what a streaming query keeps open.
- `freeze_imports` keeps the garbage collector off what was imported. Spark looks for garbage behind every task and
  every question of its planner, at each object of every module: some 20 ms each time that find nothing.

Invariants:

- A runner has one loop until it is closed: what is opened by one call is still good in the next. Between calls the
  loop stands still.
- After close() no thread and no task of it is left.
- A runner belongs to one process: it is made where it is used and never sent along.
- Imports are frozen again only when modules were added, so what tasks leave behind is still collected.
"""

import asyncio
import gc
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Generic, ParamSpec, Self, TypeVar, TypeVarTuple

T = TypeVar("T")
P = ParamSpec("P")
Arguments = TypeVarTuple("Arguments")
_THREADS = 2
_frozen_module_count = 0


class LoopRunner:
    """Hold it in `with`; a call from inside a running loop is a bug of the caller."""

    def __init__(self, *, executor: Executor | None = None) -> None:
        """`executor`: of two threads if none is given."""
        self._runner = asyncio.Runner(loop_factory=_Loop)
        self._executor = executor or ThreadPoolExecutor(_THREADS, thread_name_prefix="segmentstore")

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
        # Not the runner's own run(): its handling of signals writes down the result of the task in every call.
        return self._runner.get_loop().run_until_complete(work)

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


def run_task(batches: Callable[[Executor], AsyncGenerator[T, None]]) -> Iterator[T]:
    """What a reading task gives, from a loop and an executor of its own."""
    # A task reads one piece after the other: threads would only hand them to and fro.
    with LoopRunner(executor=InlineExecutor()) as runner:
        yield from runner.iterate(batches(runner.executor))
    # Last, when all that the task needs is imported.
    freeze_imports()


def run_plan(plan: Callable[[Executor], Coroutine[object, object, T]]) -> T:
    """The plan of a batch read, made in the driver's Python process as run_task() reads in a task's."""
    with LoopRunner(executor=InlineExecutor()) as runner:
        made = runner.run(plan(runner.executor))
    freeze_imports()
    return made


class OpenSource(Generic[T]):
    """What a streaming reader holds open between Spark's calls, and the loop in which it was opened."""

    def __init__(
        self, enter: Callable[[AsyncExitStack, Executor], Coroutine[object, object, T]]
    ) -> None:
        """`enter` opens the source; what it enters into the stack is open until close()."""
        self._opened = AsyncExitStack()
        self.runner = LoopRunner()
        try:
            self.source = self.runner.run(enter(self._opened, self.runner.executor))
        except BaseException:
            self.runner.close()
            raise

    def close(self) -> None:
        try:
            self.runner.run(self._opened.aclose())
        finally:
            self.runner.close()


class InlineExecutor(Executor):
    """Does the work where it is submitted: for a loop that has nothing else to do meanwhile."""

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        done: Future[T] = Future()
        try:
            done.set_result(work(*args, **kwargs))
        except Exception as error:  # noqa: BLE001  # the caller that waits for the work gets it
            done.set_exception(error)
        return done


class _Loop(asyncio.SelectorEventLoop):
    """Has the result of what an InlineExecutor did at once: any other way it would come through a pipe to itself."""

    def run_in_executor(
        self,
        executor: Executor | None,
        func: Callable[[*Arguments], T],
        *args: *Arguments,
    ) -> asyncio.Future[T]:
        if not isinstance(executor, InlineExecutor):
            return super().run_in_executor(executor, func, *args)
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  # the caller that waits for the work gets it
            done.set_exception(error)
        return done


def freeze_imports() -> None:
    """Take every object that exists now for one that stays, if modules came since the last call."""
    global _frozen_module_count
    if len(sys.modules) == _frozen_module_count:
        return
    gc.collect()
    gc.freeze()
    _frozen_module_count = len(sys.modules)
