"""Where puts wait while bytes that are there already under their hash are read and checked (found_bytes).

Invariants:

- Nobody else waits for it: a put leaves the commit line for its check and joins it again, behind those who came
  meanwhile. It was not answered, so nobody can tell in which order changes side by side were made.
- A put that nobody waits for any more when its check has ended, or before it began, is not made: whoever gave it up
  may have deleted its key since.
- A few calls are under way at a time; the others wait here, each as one of the bounded line. A call takes what came in
  one turn of the loop, as long as that is little: handing over costs more than reading small objects.
"""

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial

from tier2.volumes.found_bytes import FoundBytes
from tier2.volumes.mutations import Put
from tier2.volumes.waiting import Waiting

_CALLS_MAX = 4
"""Each has a thread for as long as its objects are read."""
_CALL_BYTES_MAX = 1 << 20
"""Unless it is one object: whoever shares a call waits for all of it."""


class CheckLine:
    """Of one commit line."""

    def __init__(
        self,
        *,
        check: Callable[[Put, FoundBytes], Put],
        executor: Executor | None,
        checked: Callable[[Waiting, Put | BaseException | None], None],
    ) -> None:
        """`check` is called in the executor.

        checked: the put as it may join the line again, or why it cannot; None: nobody waits for it any more.
        """
        self._check = check
        self._executor = executor
        self._checked = checked
        self._line: deque[tuple[Waiting, FoundBytes]] = deque()
        self._under_way = 0
        """Calls."""
        self._is_due = False

    def join(self, waiting: Waiting, found: FoundBytes) -> None:
        """`checked` is called once for it."""
        self._line.append((waiting, found))
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._is_due = False
        loop = asyncio.get_running_loop()
        while self._under_way < _CALLS_MAX:
            share = self._take()
            if not share:
                return
            puts = [(_put_of(waiting), found) for waiting, found in share]
            try:
                call = loop.run_in_executor(self._executor, self._check_all, puts)
            except RuntimeError as error:  # the executor is shut down
                self._tell(share, [error] * len(share))
                continue
            self._under_way += 1
            call.add_done_callback(partial(self._see_end, share))

    def _take(self) -> list[tuple[Waiting, FoundBytes]]:
        """What one call checks."""
        share: list[tuple[Waiting, FoundBytes]] = []
        size = 0
        while self._line:
            waiting, _ = first = self._line[0]
            if waiting.future.done():
                self._line.popleft()
                self._checked(waiting, None)
                continue
            size += waiting.size
            if share and size > _CALL_BYTES_MAX:
                break
            share.append(first)
            self._line.popleft()
        return share

    def _check_all(self, puts: Sequence[tuple[Put, FoundBytes]]) -> list[Put | BaseException]:
        """In the executor."""
        outcomes: list[Put | BaseException] = []
        for put, found in puts:
            try:
                outcomes.append(self._check(put, found))
            except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
                outcomes.append(error)
        return outcomes

    def _see_end(
        self,
        share: list[tuple[Waiting, FoundBytes]],
        call: "Future[list[Put | BaseException]]",
    ) -> None:
        self._under_way -= 1
        error = asyncio.CancelledError() if call.cancelled() else call.exception()
        self._tell(share, call.result() if error is None else [error] * len(share))
        self._begin()

    def _tell(
        self,
        share: list[tuple[Waiting, FoundBytes]],
        outcomes: Sequence[Put | BaseException],
    ) -> None:
        for (waiting, _), outcome in zip(share, outcomes, strict=True):
            self._checked(waiting, None if waiting.future.done() else outcome)


def _put_of(waiting: Waiting) -> Put:
    put = waiting.mutation
    assert isinstance(put, Put), f"only puts find bytes {put=}"
    return put
