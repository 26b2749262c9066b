"""One look at every layout after a claim, a few pages at a time: what did earlier owners leave in small pieces?

It remembers where it is and ends; what is published meanwhile is noticed by itself.
"""

from asyncio import sleep

from segmentstore.contracts.identifiers import SegmentId
from tier2.storage.compaction_candidates import Candidate
from tier2.storage.owned_root import OwnedRoot
from tier2.storage.run_block import Entry
from tier2.storage.run_keys import (
    SEGMENT,
    end_offset_of,
    is_layout_key,
    is_record_key,
    range_of,
    segment_of,
)
from tier2.storage.run_values import LayoutEntry
from tier2.storage.settings import StorageSettings

_PAGE = 2_048
_PAGES_PER_STEP = 8
_SLICE = 64


class CompactionSurvey:
    """The survey of one claim."""

    def __init__(self, *, owned: OwnedRoot, settings: StorageSettings) -> None:
        self._owned = owned
        self._settings = settings
        start, self._end = range_of(SEGMENT)
        self._following: bytes | None = start
        self._segment_id: SegmentId | None = None
        self._small_chunks = 0
        self._chunks = 0

    async def step(self, now: float) -> None:
        """Go on by some pages, if there are any left and candidates have room."""
        for _ in range(_PAGES_PER_STEP):
            if self._following is None or not self._owned.candidates.has_room:
                return
            page, self._following = await self._owned.view.scan(
                self._following, self._end, limit=_PAGE
            )
            for number, entry in enumerate(page):
                self._see(entry, now)
                if number % _SLICE == _SLICE - 1:
                    await sleep(0)
            if self._following is None:
                self._finish_segment(now)

    def _see(self, entry: Entry, now: float) -> None:
        key, value = entry
        if is_record_key(key):
            self._finish_segment(now)
            self._segment_id = segment_of(key)
        elif self._segment_id == segment_of(key) and is_layout_key(key) and value is not None:
            length = LayoutEntry.decode(end_offset_of(key), value).length
            self._chunks += 1
            self._small_chunks += length <= self._settings.compaction_chunk_bytes // 2

    def _finish_segment(self, now: float) -> None:
        segment_id, self._segment_id = self._segment_id, None
        small, self._small_chunks = self._small_chunks, 0
        chunks, self._chunks = self._chunks, 0
        if segment_id is None:
            return
        candidates = self._owned.candidates
        if small >= self._settings.compaction_chunks_min:
            candidates.look_at(Candidate(segment_id, cold=False, from_offset=0))
        recompress = self._settings.cold_compression is not self._settings.compression
        if small > 1 or (recompress and chunks):
            candidates.grew(segment_id, 0, now)
