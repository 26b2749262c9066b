"""What the `stats` job says of a stream: the facts of its segments, put together. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from segmentstore.codec.stream_names import parse_segment
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.contracts.identifiers import EVENT_COUNT
from segmentstore.contracts.storage import SegmentRecord
from segmentstore.spark.jobs.stretch_facts import StretchFacts
from segmentstore.spark.jobs.time_buckets import TimeBuckets

OTHER_SEGMENTS = "(other segments)"
STORE_SEGMENTS = "(the store's own)"
_SYSTEM_PREFIX = "_system/"


@dataclass(slots=True)
class SegmentStatistics:
    """One segment; sizes in bytes."""

    name: str
    sealed: bool
    length: int
    """From its start offset to its end in Tier 2."""
    chunk_sizes: list[int] = field(default_factory=list)
    """Uncompressed."""
    stored_bytes: int = 0
    facts: StretchFacts = field(default_factory=StretchFacts)

    @property
    def events(self) -> int:
        return sum(events for _, _, events in self.facts.times.in_order())


@dataclass(slots=True)
class StreamStatistics:
    """One stream: or all segments that are no stream's, together."""

    name: str
    segments: list[SegmentStatistics] = field(default_factory=list)

    @property
    def length(self) -> int:
        return sum(segment.length for segment in self.segments)

    @property
    def stored_bytes(self) -> int:
        return sum(segment.stored_bytes for segment in self.segments)

    @property
    def events(self) -> int:
        return sum(segment.events for segment in self.segments)

    @property
    def chunks(self) -> int:
        return sum(len(segment.chunk_sizes) for segment in self.segments)

    @property
    def first_ms(self) -> int | None:
        return min((low for s in self.segments if (low := s.facts.lowest_time_ms)), default=None)

    @property
    def last_ms(self) -> int | None:
        return max((high for s in self.segments if (high := s.facts.highest_time_ms)), default=None)

    @property
    def skew(self) -> float:
        """Bytes of the largest segment over those of a mean one; 1.0 is even."""
        return skew_of([segment.length for segment in self.segments])

    def times(self) -> TimeBuckets:
        """Of all segments."""
        total = TimeBuckets()
        for segment in self.segments:
            total.merge(segment.facts.times)
        return total

    def skew_over_time(self) -> list[tuple[int, float]]:
        """Start of each bucket, and the skew of the segments that something was appended to in it."""
        length_ms = self.times().length_ms
        by_start: dict[int, list[int]] = {}
        for segment in self.segments:
            times = TimeBuckets()
            times.merge(segment.facts.times)
            times.coarsen(max(length_ms, times.length_ms))
            for start, count_bytes, _ in times.in_order():
                by_start.setdefault(start, []).append(count_bytes)
        return [(start, skew_of(by_start[start])) for start in sorted(by_start)]


def skew_of(sizes: Sequence[int]) -> float:
    """The largest over the mean."""
    total = sum(sizes)
    return max(sizes) * len(sizes) / total if total else 1.0


def join_stretches(record: SegmentRecord, stretches: Iterable[StretchFacts]) -> StretchFacts:
    """The facts of a whole segment, from those of its stretches in offset order. O(buckets)."""
    whole = StretchFacts()
    for facts in stretches:
        if facts.first_number is not None:
            whole.count_up_to(facts.first_number)
        whole.times.merge(facts.times)
        whole.untimed_bytes += facts.untimed_bytes
        whole.blocks += facts.blocks
        for kind, count in facts.blocks_by_compression.items():
            before = whole.blocks_by_compression.get(kind, 0)
            whole.blocks_by_compression[kind] = before + count
        if facts.last_number is not None:
            whole.last_number, whole.last_time_ms = facts.last_number, facts.last_time_ms
        lows = [low for low in (whole.lowest_time_ms, facts.lowest_time_ms) if low is not None]
        highs = [
            high for high in (whole.highest_time_ms, facts.highest_time_ms) if high is not None
        ]
        whole.lowest_time_ms = min(lows, default=None)
        whole.highest_time_ms = max(highs, default=None)
    event_count = record.core_attributes.get(EVENT_COUNT)
    if isinstance(event_count, int):
        whole.count_up_to(event_count)
        whole.last_number = event_count
    return whole


def stream_of(segment_name: str) -> str:
    """`scope/stream`, or what a segment that is no stream's is counted with."""
    if segment_name.startswith(_SYSTEM_PREFIX):
        return STORE_SEGMENTS
    try:
        name = parse_segment(segment_name)
    except InvalidRequestError:
        return OTHER_SEGMENTS
    return f"{name.scope}/{name.stream}"
