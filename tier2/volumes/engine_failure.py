"""Why an engine stopped by itself: a callback or a task of one of its queues has failed, which is a bug.

What the callback was to do is not done, so nothing can be said of the state of its queue any more. The engine ends:

- Every caller that waits gets the cause. What became of its change is not known: the next start tells.
- Every later request is refused with the cause, which `/health` shows.
- close() returns, and the next start finds what was durable.
"""

import logging
from collections.abc import Callable

from segmentstore.contracts.errors import StorageError, StorageUnavailableError

_LOGGER = logging.getLogger(__name__)


class EngineFailure:
    """Of one engine; its queues share it."""

    def __init__(self) -> None:
        self._cause: Exception | None = None
        self._ends: list[Callable[[StorageError], None]] = []

    @property
    def cause(self) -> Exception | None:
        """None as long as nothing has failed. For any thread."""
        return self._cause

    def tell(self, end: Callable[[StorageError], None]) -> None:
        """`end` gives the error that it gets to all callers that wait. It does nothing else, so that it cannot fail."""
        self._ends.append(end)

    def fail(self, cause: Exception) -> None:
        """Only the first cause counts. On the loop."""
        if self._cause is not None:
            return
        self._cause = cause
        _LOGGER.critical("the volumes stop", exc_info=cause)
        failure = StorageError(
            f"the volumes stopped, and what became of the request is not known: {cause!r}"
        )
        failure.__cause__ = cause
        for end in self._ends:
            end(failure)

    def refusal(self) -> StorageUnavailableError | None:
        """For a request that comes now; None: the engine works."""
        if self._cause is None:
            return None
        refusal = StorageUnavailableError(f"the volumes stopped: {self._cause!r}", state="stopped")
        refusal.__cause__ = self._cause
        return refusal
