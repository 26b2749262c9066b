"""When the next metadata checkpoint is due.

A checkpoint costs its own bytes, and a log that is not truncated costs recovery time and disk. It is due after
`bytes_min` bytes and at least ten times the size of the last one, or after `operations_max` operations (H29).
Checkpoints alone never make one due.
"""

from dataclasses import dataclass

_SIZE_FACTOR = 10


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """Bounds of the log between two checkpoints."""

    bytes_min: int = 64 * 1024 * 1024
    operations_max: int = 500_000


class CheckpointPolicy:
    """Counts what went into the log since the last checkpoint."""

    def __init__(self, settings: CheckpointSettings) -> None:
        self._settings = settings
        self._bytes = 0
        self._operations = 0
        self._size = 0

    def committed(self, *, length: int, operations: int) -> None:
        self._bytes += length
        self._operations += operations

    def checkpoint_taken(self, size: int) -> None:
        """A checkpoint of that many bytes was numbered; counting begins anew."""
        self._bytes = -size
        self._operations = -1
        self._size = size

    def ignore_operation(self) -> None:
        """The next operation is written for the log's own sake and makes no checkpoint due."""
        self._operations -= 1

    def is_due(self) -> bool:
        if self._operations >= self._settings.operations_max:
            return True
        return self._bytes >= max(self._settings.bytes_min, _SIZE_FACTOR * self._size)

    def has_new_operations(self) -> bool:
        """Something besides the checkpoint itself went into the log since."""
        return self._operations > 0
