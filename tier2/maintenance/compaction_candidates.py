"""Which segments are worth a look by compaction: a bounded number in memory, and forgetting costs only space.

    a segment grew by enough chunks            -> look at its end now
    nothing was appended to it for long (cold) -> look at all of it once more, and forget it
    claimed, and nothing is known              -> one survey of every layout finds what earlier owners left

When all of that is done and nothing is published, nothing is left to look at: an idle store asks for nothing.
"""

from collections import OrderedDict
from dataclasses import dataclass
from itertools import islice

from segmentstore.contracts.identifiers import SegmentId
from tier2.settings import StorageSettings

_LOOKED_AT_FOR_COLD_MAX = 1_024


@dataclass(slots=True)
class _Growth:
    chunks: int
    """Added since the segment was looked at."""
    since: float
    """Loop time of the last one."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A segment to look at from some offset on."""

    segment_id: SegmentId
    cold: bool
    from_offset: int | None
    """None: from near its end."""


class CompactionCandidates:
    """Segments that grew, in the order in which they did."""

    def __init__(self, settings: StorageSettings) -> None:
        self._settings = settings
        self._growing: OrderedDict[SegmentId, _Growth] = OrderedDict()
        self._due: OrderedDict[SegmentId, Candidate] = OrderedDict()

    def __len__(self) -> int:
        return len(self._growing) + len(self._due)

    @property
    def has_room(self) -> bool:
        return len(self) < self._settings.compaction_candidates_max

    def grew(self, segment_id: SegmentId, chunks: int, now: float) -> None:
        """O(1)."""
        growth = self._growing.pop(segment_id, None)
        chunks += 0 if growth is None else growth.chunks
        if chunks >= self._settings.compaction_chunks_min:
            self.look_at(Candidate(segment_id, cold=False, from_offset=None))
            chunks = 0
        self._growing[segment_id] = _Growth(chunks, now)
        while len(self._growing) > self._settings.compaction_candidates_max:
            self._growing.popitem(last=False)

    def look_at(self, candidate: Candidate) -> None:
        """Due now; what was due for the same segment already stays as it is."""
        if len(self._due) < self._settings.compaction_candidates_max:
            self._due.setdefault(candidate.segment_id, candidate)

    def take(self, now: float) -> Candidate | None:
        """The next one that is due."""
        if not self._due:
            self._add_cold(now)
        if not self._due:
            return None
        return self._due.popitem(last=False)[1]

    def _add_cold(self, now: float) -> None:
        cold: list[SegmentId] = []
        for segment_id, growth in islice(self._growing.items(), _LOOKED_AT_FOR_COLD_MAX):
            if now - growth.since < self._settings.cold_seconds:
                break
            cold.append(segment_id)
        for segment_id in cold:
            del self._growing[segment_id]
            self.look_at(Candidate(segment_id, cold=True, from_offset=0))
