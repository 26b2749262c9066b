"""What was begun and broken off while the process goes on is resumed, with growing pauses.

The caller may never come back: without this, a scope, a group or a table would stay half made or half deleted until the
process ends. What another process left is found by its own index when a controller starts.

Invariants:

- A name that was noted is tried until its resumption ends without an error, or its scope is gone. A refusal ends
  nothing: what is half made or half deleted stays so until a later attempt gets through.
- Noting costs no wait: the caller's own error goes its way.
- `complaints` names everything whose last attempt failed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from segmentstore.contracts.errors import ErrorKind, SegmentStoreError
from segmentstore.controller.errors import ScopeNotFoundError
from segmentstore.runtime.backoff import Backoff

_LOG = logging.getLogger(__name__)

_PAUSE_SECONDS_FIRST: Final = 0.1
_PAUSE_SECONDS_MAX: Final = 10.0
_REFUSALS: Final = (ErrorKind.INVALID, ErrorKind.TOO_LARGE, ErrorKind.NOT_FOUND, ErrorKind.CONFLICT)

ResourceName = tuple[str, ...]
"""A scope, or a scope and a name in it."""


class RetryQueue:
    """Of one component. `resume` finishes what the records say is under way, if anything is; it may be called again."""

    def __init__(self, *, resume: Callable[[ResourceName], Awaitable[None]]) -> None:
        self._resume = resume
        self._unfinished: dict[ResourceName, None] = {}
        """In the order in which they were broken off."""
        self._failures: dict[ResourceName, str] = {}
        """Why the last attempt at each failed."""
        self._noted = asyncio.Event()

    @contextmanager
    def queued_on_failure(self, *place: str) -> Iterator[None]:
        """What is broken off inside is resumed; what is refused was not begun."""
        try:
            yield
        except BaseException as error:
            if not is_refusal(error):
                self._note(place)
            raise

    def note_failure(self, place: ResourceName, error: SegmentStoreError) -> None:
        """An attempt at what is under way failed, also by a refusal: it stays noted, and is named in the complaints."""
        _LOG.info("place=%s an operation stays unfinished: %s", "/".join(place), error)
        self._failures[place] = f"{type(error).__name__}: {error}"
        self._note(place)

    def complaints(self) -> Mapping[ResourceName, str]:
        """What could not be finished, and why."""
        return dict(self._failures)

    async def run(self) -> None:
        """Until cancelled."""
        backoff = Backoff(seconds_first=_PAUSE_SECONDS_FIRST, seconds_max=_PAUSE_SECONDS_MAX)
        while True:
            await self._noted.wait()
            await asyncio.sleep(backoff.next_seconds())
            self._noted.clear()
            for place in list(self._unfinished):
                await self.attempt(place)
            if not self._unfinished:
                backoff.reset()
                continue
            self._noted.set()

    async def attempt(self, place: ResourceName) -> None:
        """Finish what is under way there; what cannot be finished now is noted."""
        self._unfinished.pop(place, None)
        try:
            with self.queued_on_failure(*place):
                await self._resume(place)
        except ScopeNotFoundError:
            # Everything went with the scope.
            self._forget(place)
        except SegmentStoreError as error:
            self.note_failure(place, error)
        else:
            self._failures.pop(place, None)

    def _note(self, place: ResourceName) -> None:
        self._unfinished[place] = None
        self._noted.set()

    def _forget(self, place: ResourceName) -> None:
        self._unfinished.pop(place, None)
        self._failures.pop(place, None)


def is_refusal(error: BaseException) -> bool:
    """Whether the request itself is what cannot be done, now or later."""
    return isinstance(error, SegmentStoreError) and error.kind in _REFUSALS
