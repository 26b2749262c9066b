"""Work that is done to its end, whatever arrives meanwhile: giving back locks and files, which nobody would do later.

Invariants:

- The work is never cancelled through whoever waits for it.
- A cancellation is not lost: it is delivered when the work has ended, however that ended.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")


async def to_the_end(work: Coroutine[Any, Any, _Result]) -> _Result:
    """The work's result or exception; CancelledError, when it has ended, if that came meanwhile."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except BaseException:
            if cancelled is None:
                raise
    if cancelled is not None:
        failure = None if task.cancelled() else task.exception()
        raise cancelled from failure
    return task.result()
