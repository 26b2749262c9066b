"""What turns of a loop cost, in seconds of its thread: a busy machine does not count, nor other tests' garbage.

Compare them with what the same work costs in one go, measured in the same test.
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
