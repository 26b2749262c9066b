"""Pauses between attempts: doubling, bounded, and shortened at random so that clients do not come back together."""

from random import Random

from segmentstore.client.settings import ClientSettings


class Backoff:
    """One sequence of attempts."""

    def __init__(self, settings: ClientSettings, random: Random) -> None:
        self._settings = settings
        self._random = random
        self._attempts = 0

    def next_seconds(self) -> float:
        """How long to wait before the next attempt."""
        # By then the largest pause has long been reached; without the limit the number would outgrow a float.
        full: float = self._settings.retry_seconds_first * (1 << min(self._attempts, 16))
        self._attempts += 1
        return min(full, self._settings.retry_seconds_max) * self._random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Something succeeded."""
        self._attempts = 0
