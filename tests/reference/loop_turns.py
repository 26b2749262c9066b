"""How much is done in one turn of a loop, and what turns cost, in seconds of its thread.

Seconds of the thread: a busy machine does not count, nor other tests' garbage. Compare them with what the same work
costs in one go, measured in the same test.
"""

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def turns_of_loop() -> AsyncIterator[list[float]]:
    """Of the turns in the block."""
    turns: list[float] = []

    async def look() -> None:
        while True:
            began = time.thread_time()
            await asyncio.sleep(0.001)
            turns.append(time.thread_time() - began)

    # A collection of all that the process has takes longer than the turns that are looked for.
    gc.collect()
    gc.disable()
    looking = asyncio.create_task(look())
    try:
        yield turns
    finally:
        looking.cancel()
        gc.enable()


class WorkOfTurns:
    """note() what is done; `each_turn` has how often that was, and `total` all of it."""

    def __init__(self) -> None:
        self.each_turn: list[int] = []
        self._in_this_turn = 0

    @property
    def total(self) -> int:
        return sum(self.each_turn) + self._in_this_turn

    def note(self) -> None:
        self._in_this_turn += 1

    async def note_turns(self) -> None:
        while True:
            self.each_turn.append(self._in_this_turn)
            self._in_this_turn = 0
            await asyncio.sleep(0)


@asynccontextmanager
async def work_of_turns() -> AsyncIterator[WorkOfTurns]:
    """Of the turns in the block."""
    work = WorkOfTurns()
    noting = asyncio.create_task(work.note_turns())
    try:
        yield work
    finally:
        noting.cancel()
