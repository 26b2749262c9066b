"""One request after another to the bucket: bounded, counted, repeated where that is safe.

Invariants:

- At most `requests_max` requests are under way; nothing is sent while nobody asks for something.
- The client library repeats nothing by itself (it is configured so); `once` repeats nothing either (H4);
  `repeatable` repeats after a pause that grows and is drawn at random, so that many callers do not come back in step.
- Every foreign error leaves as one of ours, `from` its cause.
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

from tier2.object_stores.s3.failures import (
    CREDENTIAL_STATES,
    FOREIGN_ERRORS,
    NO_STATE,
    Failure,
    classify,
)
from tier2.object_stores.s3.request_statistics import RequestStatistics
from tier2.object_stores.s3.settings import S3Settings

_Answer = TypeVar("_Answer")


class ConditionFailedError(Exception):
    """A conditional request was answered "precondition failed"; whether it once succeeded is unknown (H4)."""


class RequestLine:
    """Where every request of one store passes."""

    def __init__(
        self, *, settings: S3Settings, random: Random, renew: Callable[[], Awaitable[None]]
    ) -> None:
        """`renew` is called before an attempt that follows one whose credentials were refused."""
        self._settings = settings
        self._renew = renew
        self._credentials_refused = False
        self._random = random
        self._places = asyncio.Semaphore(settings.requests_max)
        self.statistics = RequestStatistics(settings.prices)

    async def once(
        self, operation: str, key: str, request: Callable[[], Awaitable[_Answer]]
    ) -> _Answer:
        """One attempt. Raises ConditionFailedError, StorageError."""
        answer = await self._attempt(operation, key, request)
        if isinstance(answer, Failure):
            raise _raised(answer)
        return answer

    async def repeatable(
        self, operation: str, key: str, request: Callable[[], Awaitable[_Answer]]
    ) -> _Answer:
        """As many attempts as the settings allow. `request` may take effect more than once, with the same result."""
        attempts_left = self._settings.attempts_max
        pause = self._settings.retry_seconds_first
        while True:
            answer = await self._attempt(operation, key, request)
            if not isinstance(answer, Failure):
                return answer
            attempts_left -= 1
            if not answer.may_repeat or attempts_left <= 0:
                raise _raised(answer)
            self.statistics.retries += 1
            await asyncio.sleep(self._random.uniform(pause / 2, pause))
            pause = min(2 * pause, self._settings.retry_seconds_max)

    async def _attempt(
        self, operation: str, key: str, request: Callable[[], Awaitable[_Answer]]
    ) -> "_Answer | Failure":
        async with self._places:
            self.statistics.requests[operation] += 1
            try:
                if self._credentials_refused:
                    self._credentials_refused = False
                    await self._renew()
                return await request()
            except FOREIGN_ERRORS as error:
                failure = classify(error, operation=operation, key=key)
                failure.error.__cause__ = error
                self._credentials_refused |= failure.state in CREDENTIAL_STATES
                if failure.state != NO_STATE:
                    self.statistics.failures[failure.state] += 1
                return failure


def _raised(failure: Failure) -> Exception:
    if failure.condition_failed:
        refused = ConditionFailedError(str(failure.error))
        refused.__cause__ = failure.error.__cause__
        return refused
    return failure.error
