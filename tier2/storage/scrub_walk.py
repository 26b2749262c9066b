"""Where a pass of the scrubber is: each layout entry of the newest root, then those of the roots that backups keep.

- The owner goes on publishing between two pages, so a layout that does not join is only doubted here, once in a pass;
  the caller looks again, under one root.
- What is written while a pass goes on is left to the next one. Where more is written than may be read, a pass would
  follow the newest segments for ever, and come to older ones and to backups never again.
- What a backup shares with the newest root comes up again: whether it does costs a look-up, which is the caller's to
  count.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from segmentstore.contracts.identifiers import SegmentId
from tier2.storage.components import Components
from tier2.storage.layout_continuity import LayoutContinuity
from tier2.storage.object_names import ObjectIdentity
from tier2.storage.owned_root import OwnedRoot
from tier2.storage.pins import Pin
from tier2.storage.run_block import Entry
from tier2.storage.run_keys import (
    SEGMENT,
    end_offset_of,
    is_layout_key,
    is_record_key,
    range_of,
    segment_of,
)
from tier2.storage.run_values import LayoutEntry, decode_record
from tier2.storage.run_view import RunView

_PAGE = 256


@dataclass(frozen=True, slots=True)
class NamedChunk:
    """A layout entry of a living segment, and the backup that names it (None: the newest root does)."""

    segment_id: SegmentId
    entry: LayoutEntry
    pin: Pin | None


@dataclass(frozen=True, slots=True)
class DoubtedLayout:
    """A segment whose layout did not join as it was walked over."""

    segment_id: SegmentId
    pin: Pin | None


class Walked(Enum):
    """How far it is where nothing was found."""

    PAGE = auto()
    """A page was read; there is more."""
    EVERYTHING = auto()


Step: TypeAlias = NamedChunk | DoubtedLayout | Walked


class ScrubWalk:
    """One pass."""

    def __init__(self, *, owned: OwnedRoot, components: Components) -> None:
        self._owned = owned
        self._components = components
        self.pin: Pin | None = None
        """Whose root is walked now; None: the newest one."""
        self.newest_cut_short = False
        """Not everything that the newest root names came up."""
        self._began_at: ObjectIdentity | None = None
        """Given out as the pass began: what it is to read has a lower one."""
        self._view: RunView | None = None
        """That of the pin."""
        self._pins: list[Pin] | None = None
        """Those that follow."""
        self._begin, self._end = range_of(SEGMENT)
        self._page: list[Entry] = []
        self._following: bytes | None = self._begin
        self._layout: LayoutContinuity | None = None
        self._doubt: DoubtedLayout | None = None
        self._doubted: SegmentId | None = None

    @property
    def view(self) -> RunView:
        """What is walked now."""
        return self._owned.view if self._view is None else self._view

    async def next(self) -> Step:
        """O(one page), whatever lies between two chunks.

        Raises CorruptedDataError and ObjectNotFoundError for runs; `skip_root()` goes on behind them.
        """
        if self._began_at is None:
            self._began_at = self._owned.take_identity()
        while True:
            if self._doubt is not None:
                doubt, self._doubt = self._doubt, None
                return doubt
            if self._page:
                found = self._see(*self._page.pop())
                if found is not None:
                    return found
            elif self._following is not None:
                page, self._following = await self.view.scan(
                    self._following, self._end, limit=_PAGE
                )
                self._page = page[::-1]
                return Walked.PAGE
            else:
                sound = self._finish_segment()
                if sound and not await self._next_root():
                    return Walked.EVERYTHING

    async def skip_root(self) -> bool:
        """Go on with the next root; False if that was the last one."""
        self.newest_cut_short |= self.pin is None
        return await self._next_root()

    async def _next_root(self) -> bool:
        if self._pins is None:
            self._pins = list(await self._owned.pins())
        self._page, self._following = [], self._begin
        self._layout = self._doubted = None
        if not self._pins:
            return False
        self.pin = self._pins.pop(0)
        self._view = self._components.view(self.pin.root)
        return True

    def _see(self, key: bytes, value: bytes | None) -> NamedChunk | None:
        segment_id = segment_of(key)
        if is_record_key(key):
            self._finish_segment()
            if value is not None:
                self._layout = LayoutContinuity(decode_record(segment_id, value))
            return None
        layout = self._layout
        # Keys behind no record belong to a removed segment.
        if layout is None or layout.record.segment_id != segment_id:
            return None
        if not is_layout_key(key) or value is None:
            return None
        entry = LayoutEntry.decode(end_offset_of(key), value)
        self._heed(segment_id, layout.see(entry))
        return None if self._is_newer(entry.identity) else NamedChunk(segment_id, entry, self.pin)

    def _is_newer(self, identity: ObjectIdentity) -> bool:
        mark = self._began_at
        assert mark is not None, "a pass begins with its first step"
        return (identity.epoch, identity.serial) > (mark.epoch, mark.serial)

    def _finish_segment(self) -> bool:
        """False if that left a doubt."""
        layout, self._layout = self._layout, None
        return layout is None or self._heed(layout.record.segment_id, layout.finish())

    def _heed(self, segment_id: SegmentId, what: str | None) -> bool:
        if what is None or segment_id == self._doubted:
            return True
        self._doubted = segment_id
        self._doubt = DoubtedLayout(segment_id, self.pin)
        return False
