"""What clients of a cluster asked for and were told, as the checker of histories takes it."""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from itertools import pairwise

from tests.linearizability.operation import Operation, Outcome, Verb

_PARTICULAR = re.compile(r"[0-9a-f]*\d[0-9a-f]*")
_KINDS_MAX = 6
_KIND_CHARACTERS_MAX = 120


class NothingDoneError(Exception):
    """The answer says so, or the request was never sent."""


class OutcomeLostError(Exception):
    """There is no answer, or one that leaves it open whether the request was carried out."""


class History:
    """Of one run. Times are those of the loop."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.refused: Counter[str] = Counter()
        """What was said of operations of which nothing was done. They are left out."""
        self.lost: Counter[str] = Counter()
        """What was said of operations whose outcome is unknown."""

    async def record(
        self, asked: Operation, request: Callable[[], Awaitable[Operation]]
    ) -> Operation | None:
        """What the request made of `asked`; None if nothing was done. Raises OutcomeLostError.

        A request that is cancelled, or fails in a way that says nothing, is recorded as one of unknown outcome.
        """
        loop = asyncio.get_running_loop()
        invoked = loop.time()
        try:
            told = await request()
        except NothingDoneError as error:
            self.refused[str(error)] += 1
            return None
        except BaseException as error:
            self.lost[f"{asked.verb.value} {error!r}"] += 1
            self.operations.append(replace(asked, invoked=invoked, outcome=Outcome.UNKNOWN))
            raise
        operation = replace(told, invoked=invoked, answered=loop.time())
        self.operations.append(operation)
        return operation

    def refused_kinds(self) -> list[tuple[str, int]]:
        """What was said of operations of which nothing was done, without what names one of them; the most frequent."""
        kinds: Counter[str] = Counter()
        for sentence, count in self.refused.items():
            kinds[_PARTICULAR.sub("", sentence)[:_KIND_CHARACTERS_MAX]] += count
        return kinds.most_common(_KINDS_MAX)

    def note_creation(self, target: str) -> None:
        """The segment was made before everything else, by other means."""
        self.operations.append(Operation(0, target, Verb.CREATE, Outcome.OK, 0.0, 0.0))

    @property
    def checked_count(self) -> int:
        """Answered operations."""
        return sum(each.outcome is not Outcome.UNKNOWN for each in self.operations)

    @property
    def unknown_count(self) -> int:
        """Operations that may have been carried out, and may be still."""
        return len(self.operations) - self.checked_count

    def appends_acknowledged(self, target: str) -> Iterator[Operation]:
        for each in self.operations:
            if each.target == target and each.verb is Verb.APPEND and each.outcome is Outcome.OK:
                yield each

    def longest_pause(self, target: str, since: float) -> tuple[float, float]:
        """From one acknowledgement of an append to the segment to the next: when it began and when it ended."""
        times = sorted(each.answered for each in self.appends_acknowledged(target))
        times = [each for each in times if each >= since]
        return max(pairwise(times), key=lambda pair: pair[1] - pair[0], default=(since, since))

    def seconds_until_append(self, target: str, since: float) -> float:
        """From then to the first acknowledgement of an append that was sent later."""
        times = [
            each.answered for each in self.appends_acknowledged(target) if each.invoked > since
        ]
        return min(times, default=float("inf")) - since
