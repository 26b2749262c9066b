"""Objects of files that are registered no more: kept for those who still need them, then deleted.

A reader may be at one. And what Tier 2 has published of the segment may name it: until the change that forgot the file
is published too, a store that is recovered from Tier 2 alone has the file again, and needs the object.

    forgotten, durably -> `file.delete.delay.ms` pass ┐
                       -> the change is published     ┴-> deleted

Invariants:

- An object is deleted only when the change that forgot its file, or proved that it never was one, is published: no
  state of the segment in which it is registered can come back. There is one exception: Tier 2 is full, so that nothing
  is published before something is deleted, and all of the file's records were deleted. A recovery from Tier 2 alone
  then names a file that is missing, of records that were deleted.
- And `file.delete.delay.ms` behind that change, at the earliest.
- What is kept is deleted by no sweep (dead_files.py) of this opening. One that could not be deleted is left to a sweep.
- Another opening takes over nothing: its segment may have been recovered from Tier 2 alone, and have the file again. A
  sweep finds what is dead in it.
- At most `count_max` are kept, of some 300 bytes each, however long Tier 2 is away: what is more is left to a sweep.
"""

import asyncio
from collections.abc import Collection, Sequence
from typing import NamedTuple

from segmentstore.contracts.identifiers import SequenceNumber
from segmentstore.contracts.segments import PublishingProgress
from segmentstore.topics.record_files.record_files import RecordFiles


class _Kept(NamedTuple):
    due: float
    """Loop time."""
    forgotten_at: SequenceNumber
    has_live_records: bool


class KeptObjects:
    """Of one partition."""

    def __init__(self, files: RecordFiles, *, count_max: int = 10_000) -> None:
        self._files = files
        self._count_max = count_max
        self._kept: dict[str, _Kept] = {}
        self.has_left_over = False
        """Whether there were more than could be kept, since a sweep began."""

    @property
    def keys(self) -> Collection[str]:
        return self._kept.keys()

    @property
    def is_waiting(self) -> bool:
        """Whether there are some that are to be deleted at their time."""
        return bool(self._kept)

    def has_room(self) -> bool:
        """Whether another one can be kept."""
        return len(self._kept) < self._count_max

    def keep(
        self,
        keys: Sequence[str],
        *,
        seconds: float,
        forgotten_at: SequenceNumber,
        has_live_records: bool,
    ) -> int:
        """delete_due() deletes them, in so many seconds at the earliest; for how many of them there was room.

        `forgotten_at`: a number of a change of the segment behind which none of them is registered ever again.
        `has_live_records`: as far as is known, another file has records of it that Tier 2 may not name yet.
        """
        due = asyncio.get_running_loop().time() + seconds
        room = max(0, self._count_max - len(self._kept))
        for key in keys[:room]:
            self._kept[key] = _Kept(due, forgotten_at, has_live_records)
        self.has_left_over = self.has_left_over or len(keys) > room
        return min(len(keys), room)

    def leave_all(self) -> None:
        """To a sweep: the partition is opened anew."""
        self._kept.clear()

    async def delete_due(self, progress: PublishingProgress) -> None:
        """Those that are due, as far as `progress` of the segment lets them go.

        Raises StorageError, StorageFullError.
        """
        now = asyncio.get_running_loop().time()
        for key, kept in list(self._kept.items()):
            is_free = progress.has_published(kept.forgotten_at) or (
                progress.storage_is_full and not kept.has_live_records
            )
            # Another call may have deleted it meanwhile.
            if is_free and kept.due <= now and self._kept.get(key) is kept:
                del self._kept[key]
                await self._files.delete(key)
