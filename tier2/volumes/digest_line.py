"""Contents that wait to be hashed, by the batch: a call of the executor costs as much as the hash of one of them.

Invariants:

- What one turn of the loop brings is shared out over a few calls of about as many bytes; what comes while all of them
  are under way waits for the first that ends. Nothing waits for company.
- A caller that goes away takes nothing from the others of its batch.
- There is one entry for each caller that waits.
"""

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

from segmentstore.contracts.identifiers import BufferView
from tier2.volumes.content import ContentDigest, digest, digest_by_name

_CALLS_MAX = 2
"""Under way at a time. Between two contents each needs the interpreter: more get into each other's way."""


@dataclass(slots=True)
class _Waiting:
    """A content, and who asked."""

    content: Sequence[BufferView]
    size: int
    unique_key: bytes | None
    future: "Future[ContentDigest]"


class DigestLine:
    """Needs no closing: whoever asks waits for the answer."""

    def __init__(self, *, executor: Executor | None, piece_bytes: int) -> None:
        self._executor = executor
        self._piece_bytes = piece_bytes
        self._line: deque[_Waiting] = deque()
        self._line_bytes = 0
        self._under_way = 0
        self._is_due = False

    async def digest(
        self, content: Sequence[BufferView], *, unique_key: bytes | None = None
    ) -> ContentDigest:
        """With a `unique_key` by `digest_by_name`. The bytes stay as they are until it returns."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting(content, sum(map(len, content)), unique_key, loop.create_future())
        self._line.append(waiting)
        self._line_bytes += waiting.size
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._begin)
        return await waiting.future

    def _begin(self) -> None:
        self._is_due = False
        while self._line and self._under_way < _CALLS_MAX:
            batch = self._next_batch(self._line_bytes / (_CALLS_MAX - self._under_way))
            wanted = [(waiting.content, waiting.unique_key) for waiting in batch]
            try:
                call = asyncio.get_running_loop().run_in_executor(
                    self._executor, _digest_all, wanted, self._piece_bytes
                )
            except RuntimeError as error:  # the executor is shut down
                _fail(batch, error)
            else:
                self._under_way += 1
                call.add_done_callback(partial(self._end, batch))

    def _next_batch(self, bytes_wanted: float) -> list[_Waiting]:
        batch = [self._line.popleft()]
        size = batch[0].size
        while self._line and size + self._line[0].size <= bytes_wanted:
            batch.append(self._line.popleft())
            size += batch[-1].size
        self._line_bytes -= size
        return batch

    def _end(self, batch: list[_Waiting], call: "Future[list[ContentDigest]]") -> None:
        self._under_way -= 1
        error = asyncio.CancelledError() if call.cancelled() else call.exception()
        if error is not None:
            _fail(batch, error)
        else:
            for waiting, found in zip(batch, call.result(), strict=True):
                if not waiting.future.done():
                    waiting.future.set_result(found)
        self._begin()


def _digest_all(
    wanted: Sequence[tuple[Sequence[BufferView], bytes | None]], piece_bytes: int
) -> list[ContentDigest]:
    return [
        digest(content, piece_bytes) if key is None else digest_by_name(key, content, piece_bytes)
        for content, key in wanted
    ]


def _fail(batch: list[_Waiting], error: BaseException) -> None:
    for waiting in batch:
        if not waiting.future.done():
            waiting.future.set_exception(error)
            waiting.future.exception()  # its caller may be gone
