"""What the `stats` job knows: chunk indexes -> facts of spans of chunks -> facts of segments -> streams.

    task      `read_spans`: what the chunk indexes of spans of segments say. No block is read.
    driver    `join_spans`: the facts of a segment from those of its spans; `StreamStatistics`: a stream. Pure.

Of the events only numbers are known: where blocks begin. So the events of the last known block of a span are those up
to the next span, which `join_spans` adds.

Invariants of sums over time (`TimeBuckets`), which have a bounded number of buckets: when more are needed, each becomes
twice as long.

- A bucket is 2**n minutes long and begins at a multiple of its length, so those of two sums fit into each other.
- At most BUCKETS_MAX of them are kept, however long the time is.
- Nothing is lost by merging: the sum over the buckets is the sum of what was added.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from segmentstore.codec.stream_names import parse_segment
from segmentstore.contracts.errors import InvalidRequestError, ObjectNotFoundError
from segmentstore.contracts.identifiers import EVENT_COUNT
from segmentstore.contracts.object_store import ObjectStore
from segmentstore.contracts.storage import SegmentRecord
from segmentstore.spark.python_worker import LoopRunner
from segmentstore.spark.tier2_access import Tier2Location, container_reader, open_for_reading
from tier2.outside_access import ChunkIndex, LayoutEntry

BUCKETS_MAX = 256
_MINUTE_MS = 60_000
UNKNOWN_TIME_MS = -1
OTHER_SEGMENTS = "(other segments)"
STORE_SEGMENTS = "(the store's own)"
_SYSTEM_PREFIX = "_system/"


@dataclass(frozen=True, slots=True)
class ChunkSpan:
    """Neighbouring entries of one segment."""

    container_id: int
    segment_id: int
    entries: tuple[LayoutEntry, ...]

    @property
    def name(self) -> str:
        """The same for the same chunks, in every plan."""
        first, last = self.entries[0], self.entries[-1]
        return (
            f"{self.container_id}/{self.segment_id}@{first.start_offset}-{last.end_offset}"
            f":{first.identity}+{first.position}:{last.identity}+{last.position}"
        )


@dataclass(slots=True)
class TimeBuckets:
    """Bytes and events by the time at which they were appended. Times are Unix milliseconds."""

    length_ms: int = _MINUTE_MS
    sums: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Bytes and events, by the time at which the bucket begins."""

    def add(self, time_ms: int, count_bytes: int, events: int) -> None:
        """O(1), and now and then O(buckets)."""
        start = time_ms - time_ms % self.length_ms
        before = self.sums.get(start, (0, 0))
        self.sums[start] = before[0] + count_bytes, before[1] + events
        while len(self.sums) > BUCKETS_MAX:
            self.coarsen(self.length_ms * 2)

    def coarsen(self, length_ms: int) -> None:
        """Make the buckets longer; `length_ms` is a power of two times theirs."""
        assert length_ms % self.length_ms == 0, f"lengths do not fit {length_ms=} {self.length_ms=}"
        sums, self.sums, self.length_ms = self.sums, {}, length_ms
        for start, (count_bytes, events) in sums.items():
            into = start - start % length_ms
            before = self.sums.get(into, (0, 0))
            self.sums[into] = before[0] + count_bytes, before[1] + events

    def merge(self, other: "TimeBuckets") -> None:
        """Add what the other one has. O(buckets)."""
        if other.length_ms > self.length_ms:
            self.coarsen(other.length_ms)
        for start, (count_bytes, events) in other.sums.items():
            self.add(start, count_bytes, events)

    def in_order(self) -> Iterator[tuple[int, int, int]]:
        """Start, bytes and events of each bucket that holds something."""
        for start in sorted(self.sums):
            yield start, *self.sums[start]

    def as_json(self) -> dict[str, object]:
        return {"length_ms": self.length_ms, "sums": list(self.in_order())}

    @classmethod
    def of_json(cls, value: Mapping[str, object]) -> "TimeBuckets":
        length_ms, sums = value["length_ms"], value["sums"]
        assert isinstance(length_ms, int), f"a length is a number found={length_ms!r}"
        assert isinstance(sums, list), f"sums are a list found={sums!r}"
        return cls(length_ms, {start: (size, events) for start, size, events in sums})

    def check(self) -> None:
        """O(buckets)."""
        assert len(self.sums) <= BUCKETS_MAX, f"too many buckets count={len(self.sums)}"
        lost = [start for start in self.sums if start % self.length_ms]
        assert not lost, f"buckets begin between their places starts={lost[:3]}"


@dataclass(slots=True)
class ChunkSpanStatistics:
    """Sums over a stretch; sizes in bytes, times in Unix milliseconds."""

    times: TimeBuckets = field(default_factory=TimeBuckets)
    blocks_by_compression: dict[int, int] = field(default_factory=dict)
    first_number: int | None = None
    """Of the first event whose number is known."""
    last_number: int | None = None
    """Of the first event of the last block where it is known: its events are not counted yet."""
    last_time_ms: int = UNKNOWN_TIME_MS
    """Of that block."""
    lowest_time_ms: int | None = None
    highest_time_ms: int | None = None
    moved: bool = False
    """Its chunks are somewhere else by now: nothing was counted."""

    def add_index(self, entry: LayoutEntry, index: ChunkIndex) -> None:
        """One chunk, in the words of the segment. O(blocks)."""
        for block in index.entries:
            kind = int(block.compression)
            self.blocks_by_compression[kind] = self.blocks_by_compression.get(kind, 0) + 1
            events = entry.block_events(block)
            if events is None:
                continue
            low, high = events.lowest_time_ms, events.highest_time_ms
            if high:
                self._note_times(low, high)
                self.times.add(low, block.uncompressed_length, 0)
            if events.first_event_position is not None:
                self.count_up_to(events.first_event_number)
                self.last_number = events.first_event_number
                # As readers take it: an event of unknown time is as old as those before it.
                self.last_time_ms = low if high else max(0, self.last_time_ms)

    def _note_times(self, low: int, high: int) -> None:
        self.lowest_time_ms = low if self.lowest_time_ms is None else min(low, self.lowest_time_ms)
        self.highest_time_ms = (
            high if self.highest_time_ms is None else max(high, self.highest_time_ms)
        )

    def count_up_to(self, number: int) -> None:
        """Events below this number have been counted now."""
        if self.first_number is None:
            self.first_number = number
        if self.last_number is not None and number > self.last_number:
            self.times.add(self.last_time_ms, 0, number - self.last_number)

    def as_json(self) -> dict[str, object]:
        return {
            "times": self.times.as_json(),
            "blocks_by_compression": list(self.blocks_by_compression.items()),
            "numbers": [self.first_number, self.last_number, self.last_time_ms],
            "bounds": [self.lowest_time_ms, self.highest_time_ms],
        }

    @classmethod
    def of_json(cls, value: Mapping[str, object]) -> "ChunkSpanStatistics":
        times, kinds = value["times"], value["blocks_by_compression"]
        numbers, bounds = value["numbers"], value["bounds"]
        assert isinstance(times, dict), f"times are an object found={times!r}"
        assert isinstance(kinds, list), f"kinds are a list found={kinds!r}"
        assert isinstance(numbers, list), f"numbers are a list found={numbers!r}"
        assert isinstance(bounds, list), f"bounds are a list found={bounds!r}"
        return cls(TimeBuckets.of_json(times), dict(kinds), *numbers, *bounds)


def read_spans(place: Tier2Location, spans: Sequence[ChunkSpan]) -> list[ChunkSpanStatistics]:
    """One request for each chunk. Raises StorageError, CorruptedDataError."""
    with LoopRunner() as runner:

        async def read() -> list[ChunkSpanStatistics]:
            async with open_for_reading(place, runner.executor) as store:
                return [await _read_span(store, span, runner.executor) for span in spans]

        return runner.run(read())


async def _read_span(
    store: ObjectStore, span: ChunkSpan, executor: Executor
) -> ChunkSpanStatistics:
    reader = container_reader(store, span.container_id, executor, indexes_only=True)
    statistics = ChunkSpanStatistics()
    try:
        for entry in span.entries:
            statistics.add_index(entry, await reader.chunk_index(entry))
    except ObjectNotFoundError:
        return ChunkSpanStatistics(moved=True)
    return statistics


def join_spans(
    record: SegmentRecord, stretches: Iterable[ChunkSpanStatistics]
) -> ChunkSpanStatistics:
    """The facts of a whole segment, from those of its stretches in offset order. O(buckets)."""
    whole = ChunkSpanStatistics()
    for facts in stretches:
        if facts.first_number is not None:
            whole.count_up_to(facts.first_number)
        whole.times.merge(facts.times)
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
    facts: ChunkSpanStatistics = field(default_factory=ChunkSpanStatistics)

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


def stream_of(segment_name: str) -> str:
    """`scope/stream`, or what a segment that is no stream's is counted with."""
    if segment_name.startswith(_SYSTEM_PREFIX):
        return STORE_SEGMENTS
    try:
        name = parse_segment(segment_name)
    except InvalidRequestError:
        return OTHER_SEGMENTS
    return f"{name.scope}/{name.stream}"
