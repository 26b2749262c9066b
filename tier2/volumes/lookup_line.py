"""What waits to be looked up, by the batch: a call of the executor costs several times as much as a look-up.

    get, head -> (end of this turn of the loop) what the index still has in memory is answered at once
       all others -> line -> a batch, in one call: one look into the database for all of it
          small objects stand in the index: answered by this call
          blobs: each is read in a call of its own, side by side, unless its batch has nobody else

Invariants:

- A look-up begins after it was asked for: it sees every change whose verb had returned by then.
- What is missing or damaged fails who asked for it, and nobody else. A caller that goes away takes nothing from others.
- Nothing waits for company: what one turn of the loop brings begins with its end, unless all calls are under way.
- `_CALLS_MAX` batches at most are under way, and there is one entry for each caller that waits.
- Whoever asks lets the loop go on before it has its answer, and one turn answers `_BATCH_MAX` from memory at most.
- The loop touches no page of the database: one that is not in memory would stop everything until the disk has it.
- After a batch that had to wait for the disk the next ones are shared out over all free calls, until one had not.
- Nothing is under way after close(): what was read from may be closed then.
"""

import asyncio
import resource
from asyncio import Future
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

from segmentstore.contracts.errors import StorageError
from tier2.volumes.index_rows import ObjectRow
from tier2.volumes.lookups import Lookups, StoredObject, Wanted

_Result = TypeVar("_Result")
_Waiting = tuple[Wanted, "Future[StoredObject]"]

_CALLS_MAX = 4
"""Batches under way at a time: one that waits for the disk holds up only its own."""
_BATCH_MAX = 64
"""Look-ups of one call, some 0.4 ms of a thread that computes."""
_THIS_THREAD: int | None = getattr(resource, "RUSAGE_THREAD", None)


class LookupLine:
    """Close it before what it reads from."""

    def __init__(self, *, lookups: Lookups, executor: Executor | None) -> None:
        self._lookups = lookups
        self._executor = executor
        self._asked: list[_Waiting] = []
        """In this turn of the loop."""
        self._line: deque[_Waiting] = deque()
        self._under_way = 0
        """Batches."""
        self._shared_out = False
        self._calls = 0
        """Of all kinds."""
        self._idle: Future[None] | None = None
        """Somebody waits until there are none."""

    def read(self, wanted: Wanted) -> "Future[StoredObject]":
        """Raises ObjectNotFoundError, CorruptedDataError, StorageError."""
        loop = asyncio.get_running_loop()
        future: Future[StoredObject] = loop.create_future()
        if not wanted.checked:
            # Parts of chunks and runs, which are no small objects.
            self._read_alone((wanted, future), None)
            return future
        if not self._asked:
            loop.call_soon(self._begin)
        self._asked.append((wanted, future))
        return future

    def call(self, call: Callable[[], _Result]) -> "Future[_Result]":
        """A call of its own, for whatever else is read. Raises what it raises."""
        future: Future[_Result] = asyncio.get_running_loop().create_future()
        self._start(call, partial(_settle, future), partial(_fail, future))
        return future

    async def close(self) -> None:
        """Waits for what is under way, also for callers that went away. Nobody may ask any more."""
        while self._calls or self._asked:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    def _begin(self) -> None:
        asked, self._asked = self._asked, []
        answered = 0
        has_recent = self._lookups.has_recent
        for waiting in asked:
            if has_recent and answered < _BATCH_MAX and self._is_answered(waiting):
                answered += 1
            else:
                self._line.append(waiting)
        self._start_batches()
        self._rest()

    def _is_answered(self, waiting: _Waiting) -> bool:
        """Whether memory has all that is said of it. A blob is on its way then."""
        wanted, future = waiting
        if future.done():
            return True
        try:
            found = self._lookups.recent(wanted)
        except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
            _fail(future, error)
            return True
        if found is None:
            return False
        if isinstance(found, ObjectRow):
            self._read_alone(waiting, found)
        else:
            future.set_result(found)
        return True

    def _start_batches(self) -> None:
        while self._line and self._under_way < _CALLS_MAX:
            batch = self._next_batch()
            if not batch:
                return
            self._under_way += 1
            self._start(
                partial(_look_up, self._lookups, [wanted for wanted, _ in batch]),
                partial(self._end, batch),
                partial(self._end_failed, batch),
            )

    def _next_batch(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        size = _BATCH_MAX
        if self._shared_out:
            size = min(size, -(-len(self._line) // (_CALLS_MAX - self._under_way)))
        while self._line and len(batch) < size:
            waiting = self._line.popleft()
            if not waiting[1].done():
                batch.append(waiting)
        return batch

    def _end(
        self,
        batch: list[_Waiting],
        found: tuple[list[StoredObject | ObjectRow | Exception], bool],
    ) -> None:
        self._under_way -= 1
        answers, waited_for_disk = found
        # Inline calls, as a simulation has them, share the loop's thread: what it waits for is not theirs.
        self._shared_out = waited_for_disk and self._executor is not None
        for waiting, one in zip(batch, answers, strict=True):
            future = waiting[1]
            if future.done():
                continue
            if isinstance(one, StoredObject):
                future.set_result(one)
            elif isinstance(one, ObjectRow):
                self._read_alone(waiting, one)
            else:
                _fail(future, one)
        self._start_batches()

    def _end_failed(self, batch: list[_Waiting], error: BaseException) -> None:
        self._under_way -= 1
        for _, future in batch:
            _fail(future, error)
        self._start_batches()

    def _read_alone(self, waiting: _Waiting, row: ObjectRow | None) -> None:
        wanted, future = waiting
        self._start(
            partial(self._lookups.read, wanted, row),
            partial(_settle, future),
            partial(_fail, future),
        )

    def _start(
        self,
        call: Callable[[], _Result],
        end: Callable[[_Result], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        try:
            running = asyncio.get_running_loop().run_in_executor(self._executor, call)
        except RuntimeError as error:  # the executor is shut down
            failed(error)
            return
        self._calls += 1
        running.add_done_callback(partial(self._ended, end, failed))

    def _ended(
        self,
        end: Callable[[_Result], None],
        failed: Callable[[BaseException], None],
        running: "Future[_Result]",
    ) -> None:
        self._calls -= 1
        error = asyncio.CancelledError() if running.cancelled() else running.exception()
        if error is None:
            end(running.result())
        else:
            failed(error)
        self._rest()

    def _rest(self) -> None:
        if self._idle is not None and not self._calls and not self._asked:
            self._idle.set_result(None)
            self._idle = None


def _look_up(
    lookups: Lookups, many: list[Wanted]
) -> tuple[list[StoredObject | ObjectRow | Exception], bool]:
    """In a thread: the answers, and whether a page of the database had to be read from the disk."""
    before = _pages_read()
    return lookups.look_up(many), _pages_read() > before


def _pages_read() -> int:
    """By this thread, through memory that stands for a file."""
    return 0 if _THIS_THREAD is None else resource.getrusage(_THIS_THREAD).ru_majflt


def _settle(future: "Future[_Result]", found: _Result) -> None:
    if not future.done():
        future.set_result(found)


def _fail(future: "Future[_Result]", error: BaseException) -> None:
    if future.done():
        return
    if isinstance(error, OSError):
        failure = StorageError(f"the volumes cannot be read: {error}")
        failure.__cause__ = error
        error = failure
    future.set_exception(error)
    future.exception()  # its caller may be gone
