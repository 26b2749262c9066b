"""Objects of files that are registered no more: kept for those who still read them, then deleted.

A reader may be at one, and what Tier 2 has published of the segment may name it: until the change that forgot the file
is published too, a store that is recovered from Tier 2 alone needs the object. That the delay outlasts this is not
proved here: the default is six flush intervals.

Invariants:

- What is kept is deleted by no sweep (dead_files.py) of this process.
- An object is deleted `file.delete.delay.ms` behind the change that forgot it, at the earliest. One that could not be
  deleted is left to a sweep.
"""

import asyncio
from collections import deque
from collections.abc import Collection, Iterable

from segmentstore.topics.record_files.record_files import RecordFiles


class KeptObjects:
    """Of one partition, in all its openings."""

    def __init__(self, files: RecordFiles) -> None:
        self._files = files
        self._due: deque[tuple[float, str]] = deque()
        """When to delete which, loop time."""
        self._keys: set[str] = set()

    @property
    def keys(self) -> Collection[str]:
        return self._keys

    @property
    def is_waiting(self) -> bool:
        """Whether there are some that are to be deleted at their time."""
        return bool(self._due)

    def delete_in(self, seconds: float, keys: Iterable[str]) -> None:
        """delete_due() deletes them then."""
        due = asyncio.get_running_loop().time() + seconds
        for key in keys:
            self._keys.add(key)
            self._due.append((due, key))

    async def delete_due(self) -> None:
        """Raises StorageError."""
        while self._due and self._due[0][0] <= asyncio.get_running_loop().time():
            _, key = self._due.popleft()
            await self.delete(key)

    async def delete(self, key: str) -> None:
        """Now. Raises StorageError."""
        self._keys.discard(key)
        await self._files.delete(key)
