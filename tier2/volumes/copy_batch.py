"""Copies that nothing points to yet: gathered, read back from the disk, and then what has to be changed for them.

Each step, and each group of changes, is a millisecond of work at most, since it keeps the interpreter for as long.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from tier2.volumes.index_rows import SEQUENCE_MAX
from tier2.volumes.mutations import Mutation, PlainRelocation, Relocation, VolumeWritten
from tier2.volumes.plain_copy import CopiedSlice, PlainCopier, verify_slice
from tier2.volumes.record_copy import Copied, RecordCopier, verify_copy
from tier2.volumes.volume_files import OpenVolume

_PLAIN_MAX, _OTHERS_MAX = 4000, 1000
"""The index's rows of so many stand in memory."""
_SLICES_VERIFIED, _OTHERS_VERIFIED = 6, 48
_PLAIN_MOVED, _OTHERS_MOVED = 128, 64
"""At once."""


class CopyBatch:
    """Of one volume, in another one."""

    def __init__(self, *, source: int, target: OpenVolume) -> None:
        self._source = source
        self._target = target
        self._slices: list[CopiedSlice] = []
        self._others: list[Copied] = []
        self._plain_count = 0
        self.bytes = 0

    @property
    def count(self) -> int:
        """Records."""
        return self._plain_count + len(self._others)

    def is_full(self, bytes_max: int) -> bool:
        return (
            self.bytes >= bytes_max
            or self._plain_count >= _PLAIN_MAX
            or len(self._others) >= _OTHERS_MAX
        )

    def take(self, plain: PlainCopier, copier: RecordCopier) -> bool:
        """Copy the next few records; whether there are more. In the executor. Raises CorruptedDataError, OSError."""
        copied = plain.copy(self._target)
        if copied is None:
            return False
        if copied.moves:
            self._slices.append(copied)
            self._plain_count += len(copied.moves)
            self.bytes += copied.length
        for one in copied.others:
            other = copier.copy(one)
            if other is not None:
                self._others.append(other)
                self.bytes += other.header.total_length
        return True

    def verification(self) -> Iterator[Callable[[], None]]:
        """Steps for the executor, that raise CorruptedDataError, OSError.

        They read what the disk itself says, and not the pages that were just written.
        """
        yield self._sync_and_forget
        for first in range(0, len(self._slices), _SLICES_VERIFIED):
            yield partial(self._verify_slices, self._slices[first : first + _SLICES_VERIFIED])
        for first in range(0, len(self._others), _OTHERS_VERIFIED):
            yield partial(self._verify_others, self._others[first : first + _OTHERS_VERIFIED])

    def changes(self) -> Iterator[Sequence[Mutation]]:
        """Groups of changes that point to the copies, to be made in this order, by whom all of them were verified."""
        # What it says of numbers holds whichever moves follow.
        yield [self._written()]
        others: list[Relocation] = [one.move for one in self._others if one.move is not None]
        for first in range(0, len(others), _OTHERS_MOVED):
            yield others[first : first + _OTHERS_MOVED]
        plain = [move for copied in self._slices for move in copied.moves]
        for first in range(0, len(plain), _PLAIN_MOVED):
            some = plain[first : first + _PLAIN_MOVED]
            yield [PlainRelocation(self._source, self._target.number, some)]

    def _written(self) -> VolumeWritten:
        tombstones = [one for one in self._others if one.move is None]
        lowest = [one.sequence_lowest for one in self._slices]
        highest = [one.sequence_highest for one in self._slices]
        numbered = [one.header.sequence for one in self._others if one.move is None or one.move.new]
        return VolumeWritten(
            volume=self._target.number,
            end=self._target.end,
            sequence_lowest=min(numbered + lowest, default=SEQUENCE_MAX),
            sequence_highest=max(numbered + highest, default=0),
            tombstone_bytes=sum(one.header.blob_offset for one in tombstones),
            tombstone_oldest=min(
                (one.tombstone_oldest for one in tombstones), default=SEQUENCE_MAX
            ),
        )

    def _sync_and_forget(self) -> None:
        self._target.sync()
        self._target.file.forget_cached()

    def _verify_slices(self, slices: Sequence[CopiedSlice]) -> None:
        for one in slices:
            verify_slice(self._target.file, one, self._target.secret)

    def _verify_others(self, others: Sequence[Copied]) -> None:
        for one in others:
            verify_copy(self._target.file, one, self._target.secret)
