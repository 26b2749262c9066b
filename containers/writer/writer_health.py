"""How Tier 2 has been doing lately, and how long to leave it alone."""

from enum import Enum
from random import Random

from containers.writer.settings import WriterSettings
from segmentstore.contracts.errors import (
    ErrorKind,
    SegmentStoreError,
    StorageError,
    StorageUnavailableError,
    StoreFullError,
)


class StorageState(Enum):
    """Tier 2 as the writer last saw it, in a word for `/health`."""

    OK = "ok"
    UNAVAILABLE = "unavailable"
    FULL = "full"


def is_retriable(error: SegmentStoreError) -> bool:
    """Whether the same call may succeed later. Fenced, corrupt and impossible are final."""
    return isinstance(error, StorageError | StoreFullError) and error.kind in (
        ErrorKind.UNAVAILABLE,
        ErrorKind.FULL,
    )


class WriterHealth:
    """Failures in a row and the pause that follows from them."""

    def __init__(self, *, settings: WriterSettings, random: Random) -> None:
        self._settings = settings
        self._random = random
        self.state = StorageState.OK
        self.word = self.state.value
        """The state in the word of the object store, which may know more: throttled, clock_skew, ..."""
        self.failures_in_a_row = 0
        self.failures = 0
        self.last_error = ""

    def succeeded(self) -> None:
        self.state = StorageState.OK
        self.word = self.state.value
        self.failures_in_a_row = 0
        self.last_error = ""

    def failed(self, error: SegmentStoreError) -> float:
        """Note the failure; gives the seconds to wait: doubling up to a limit, half of it by chance."""
        full = error.kind is ErrorKind.FULL
        self.state = StorageState.FULL if full else StorageState.UNAVAILABLE
        self.word = error.state if isinstance(error, StorageUnavailableError) else self.state.value
        self.last_error = str(error)
        self.failures += 1
        doublings = min(self.failures_in_a_row, 30)
        self.failures_in_a_row += 1
        settings = self._settings
        seconds = min(settings.retry_seconds_max, settings.retry_seconds_first * 2.0**doublings)
        return seconds * (0.5 + 0.5 * self._random.random())
