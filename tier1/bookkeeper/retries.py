"""How long the log tries what may pass: bookies that are too few, ZooKeeper that does not answer.

Invariant: every loop of attempts ends, with the error of its last attempt, so long after its first failure as the
settings say for what it is a part of.
"""

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from random import Random
from typing import TypeVar

from segmentstore.contracts.errors import DurableDataLogError
from segmentstore.runtime.backoff import Backoff
from tier1.bookkeeper.ledgers import LedgerUnavailableError, TooFewBookiesError
from tier1.bookkeeper.metadata_store import MetadataUnavailableError
from tier1.bookkeeper.settings import BookKeeperLogSettings

_Result = TypeVar("_Result")

MAY_PASS = (TooFewBookiesError, LedgerUnavailableError, MetadataUnavailableError)
"""What a later attempt may not meet again."""


class RetriedPart(Enum):
    """What a loop of attempts is a part of."""

    APPENDS = "appends"
    RECOVERY = "recovery"
    OTHER = "other"


class Retries:
    """Of one sequence of attempts: pause() after each failure, reset() after a success; or attempt(), which is both."""

    def __init__(
        self, settings: BookKeeperLogSettings, random: Random, part: RetriedPart = RetriedPart.OTHER
    ) -> None:
        self._seconds_max = _seconds_max(settings, part)
        self._backoff = Backoff(
            seconds_first=settings.retry_seconds_first,
            seconds_max=settings.retry_pause_seconds_max,
            random=random,
        )
        self.failing_since: float | None = None
        """Loop time of the first failure behind the last success."""
        self.last_failure = ""
        """In words; "" behind a success."""

    async def attempt(self, step: Callable[[], Awaitable[_Result]]) -> _Result:
        """Take the step until it does not fail in a way that may pass."""
        while True:
            try:
                result = await step()
            except MAY_PASS as error:
                await self.pause(error)
            else:
                return result

    async def pause(self, error: DurableDataLogError) -> None:
        """Returns when it is time for the next attempt; raises the error when that would be too late."""
        self.note(error)
        now = asyncio.get_running_loop().time()
        if self.failing_since is not None and now - self.failing_since >= self._seconds_max:
            raise error
        await asyncio.sleep(self._backoff.next_seconds())

    def note(self, error: DurableDataLogError) -> None:
        """A failure behind which the next attempt comes at once; time counts from the first one."""
        if self.failing_since is None:
            self.failing_since = asyncio.get_running_loop().time()
        self.last_failure = str(error)

    def reset(self) -> None:
        self.failing_since = None
        self.last_failure = ""
        self._backoff.reset()


def _seconds_max(settings: BookKeeperLogSettings, part: RetriedPart) -> float:
    if settings.give_up is None or part is RetriedPart.OTHER:
        return settings.retry_seconds_max
    if part is RetriedPart.APPENDS:
        return settings.give_up.append_seconds_max
    return settings.give_up.recovery_seconds_max
