"""Times that transactions brought along, until they are recorded.

The commit of a transaction carries the time that its writer noted. It takes effect with the commit, whose worker does
not wait for it: a time that is lost, in a crash or because too many wait, only delays a watermark.

Invariants:

- At most `waiting_max` times wait; of one writer only the newest does.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NotedTime:
    """What a writer noted, in the unit that the stream's writers use."""

    scope: str
    stream: str
    writer: str
    time: int
    position: Mapping[int, int]


class NotedTimes:
    """A queue between commits and watermarks."""

    def __init__(self, *, waiting_max: int) -> None:
        self._waiting_max = waiting_max
        self._waiting: OrderedDict[tuple[str, str, str], NotedTime] = OrderedDict()

    def note_later(
        self, scope: str, stream: str, writer: str, time: int, position: Mapping[int, int]
    ) -> None:
        """Remember a time until somebody takes it."""
        key = (scope, stream, writer)
        waiting = self._waiting.get(key)
        if waiting is not None and waiting.time > time:
            return
        if waiting is not None or len(self._waiting) < self._waiting_max:
            self._waiting[key] = NotedTime(scope, stream, writer, time, dict(position))

    def take(self) -> list[NotedTime]:
        """All that wait, first one first; they wait no longer."""
        taken = list(self._waiting.values())
        self._waiting.clear()
        return taken
