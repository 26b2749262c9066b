"""Pauses between the attempts at one thing, each longer than the one before.

Invariants:

- A pause is never longer than `seconds_max`, however many attempts there were.
- With `random`, a pause is shortened by up to half of it, by exactly one draw: callers that failed together do not
  try again together. Without `random` it is what the settings say.
"""

from random import Random

_SHORTEST_SHARE = 0.5


class Backoff:
    """Of one sequence of attempts: next_seconds() after each failure, reset() after a success."""

    __slots__ = (
        "_factor",
        "_next_seconds",
        "_random",
        "_seconds_first",
        "_seconds_max",
        "attempts",
    )

    def __init__(
        self,
        *,
        seconds_first: float,
        seconds_max: float,
        factor: float = 2.0,
        random: Random | None = None,
    ) -> None:
        assert seconds_first >= 0, f"a pause is not negative seconds={seconds_first}"
        assert factor >= 1, f"pauses do not shrink factor={factor}"
        self._seconds_first = seconds_first
        self._seconds_max = seconds_max
        self._factor = factor
        self._random = random
        self._next_seconds = min(seconds_first, seconds_max)
        self.attempts = 0
        """Pauses since the last success."""

    def next_seconds(self) -> float:
        """How long to wait before the next attempt."""
        seconds = self._next_seconds
        self._next_seconds = min(seconds * self._factor, self._seconds_max)
        self.attempts += 1
        if self._random is None:
            return seconds
        return seconds * self._random.uniform(_SHORTEST_SHARE, 1.0)

    def reset(self) -> None:
        """An attempt succeeded: the next pause is the first again."""
        self._next_seconds = min(self._seconds_first, self._seconds_max)
        self.attempts = 0
