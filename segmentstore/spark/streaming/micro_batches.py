"""Where the next micro-batch ends, and which bytes one consists of. Knows nothing of Spark.

    what waits in each segment
        -> `TriggerDelay`: whether a batch is worth its cost now
        -> `fair_shares`: how much of which segment
        -> `SegmentBoundaries`: the place between two events up to there
        -> the end of the batch

Invariants:

- A batch is a pair of positions, and every position lies between two events. The same pair means the same events, by
  whatever process it is asked for, as long as they are stored: nothing else is remembered.
- A batch never holds a segment together with one that follows it: what one batch holds may be read in any order.
- A position that changes nothing is not given: without events to read the end of a batch is its start.
- Every segment with a whole event that may be read is in the batch: it gets a share of at least 1, so none starves
  behind a large one. What a share of 1 means is decided where events are known: at least one whole event.
- Beyond that a limit is divided in proportion to what waits; shares together exceed the limit only if there are more
  segments than it has units. No segment gets more than waits in it, and what it does not need is divided among the
  others. The same input gives the same shares, whatever the order of the mapping.
- A stream that appears while a scope is read is first entered in a position and read from the batch after it, so that
  its beginning is a part of the checkpoint.
- What is lost is told to `DataLossPolicy` before it is passed over. A position behind the tail is loss, too: what was
  read up to there is not there any more, and what is written next would count as read. It goes back to the tail.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeAlias, TypeVar

from segmentstore.codec.controller_records.stream_records import SealedSegmentRecord
from segmentstore.codec.stream_names import creation_epoch_of
from segmentstore.contracts.errors import (
    CorruptedDataError,
    SegmentNotFoundError,
    SegmentTruncatedError,
)
from segmentstore.spark.scan.data_loss import DataLossPolicy
from segmentstore.spark.streaming.event_boundaries import Boundary
from segmentstore.spark.streams.offsets import StreamsOffset, is_ahead_of, named_in
from segmentstore.spark.streams.segment_graph import (
    Cut,
    OffsetRange,
    SegmentGraph,
    StreamMetadata,
    StreamSegmentMetadata,
)
from segmentstore.spark.tier2_access import OPEN_ATTEMPTS, OPEN_PAUSE_SECONDS

_TRUNCATIONS_MAX: Final = 3
"""Times that retention may overtake one look at the streams."""
_SEGMENTS_AT_ONCE: Final = 16
"""Segments whose boundaries are looked up side by side."""

Key = TypeVar("Key", int, tuple[str, int])
"""A segment: its id, or its stream and its id."""

SegmentKey: TypeAlias = tuple[str, int]
"""A stream's name and the id of a segment in it."""
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerSettings:
    """When a micro-batch is worth its cost."""

    bytes_min: int = 0
    """0: any byte is."""
    delay_seconds_max: float = 60.0
    """After so long a batch comes, however small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Of one micro-batch; None: no limit."""

    bytes_max: int | None = None
    rows_max: int | None = None


@dataclass(frozen=True, slots=True)
class BatchRange:
    """A part of a batch."""

    stream: StreamMetadata
    segment: StreamSegmentMetadata
    start: int
    end: int


class SegmentBoundaries(Protocol):
    """Where a batch may end in one segment."""

    async def number_at(self, offset: int) -> Boundary:
        """A boundary with its number, if it is known."""

    async def at_most(self, start: Boundary, *, target: int, end: int) -> Boundary:
        """The last boundary up to `target`, but behind one event at least; `start` if none ends up to `end`."""

    async def after_events(self, start: Boundary, *, count: int, end: Boundary) -> Boundary:
        """The boundary behind at most `count` events from `start` on, not behind `end`."""


class MicroBatchSource(Protocol):
    """The streams that a query reads."""

    async def maps(self) -> Mapping[str, StreamMetadata]:
        """Every one of them as it is now, by name."""

    def boundaries(self, segment: StreamSegmentMetadata) -> SegmentBoundaries: ...

    async def start_of(self, stream: StreamMetadata) -> Cut:
        """Where a new query begins."""

    async def stop_of(self, stream: StreamMetadata) -> Cut | None:
        """Where the query ends; None: never, or that is not known yet."""

    async def end_of_gone(self, stream: str, segment_id: int) -> SealedSegmentRecord | None:
        """What became of a segment that retention removed; None if that is not known."""


@dataclass(frozen=True, slots=True)
class _Front:
    """One stream at the start of a batch."""

    name: str
    stream: StreamMetadata
    order: SegmentGraph
    cut: Cut
    ends: Cut
    """How far each segment of the cut may be read."""
    stop: Cut | None
    went_back: bool
    """The position was behind the tail of a segment."""


class MicroBatchPlanner:
    """The batches of one query, one after the other. Every method raises what the source raises."""

    def __init__(
        self,
        *,
        source: MicroBatchSource,
        limits: BatchLimits,
        trigger: TriggerSettings,
        losses: DataLossPolicy,
    ) -> None:
        self._source = source
        self._limits = limits
        self._delay = TriggerDelay(trigger)
        self._losses = losses
        self._frozen: Mapping[str, StreamMetadata] | None = None
        self._seen: Mapping[str, StreamMetadata] = {}
        self._live: Mapping[str, StreamMetadata] = {}
        """As `_seen`, but with what came since the query was frozen."""
        self._given: dict[SegmentKey, Boundary] = {}
        self._stops: dict[str, Cut] = {}

    async def first(self) -> StreamsOffset:
        """Where a query without a checkpoint begins."""

        async def look() -> StreamsOffset:
            streams = await self._streams()
            return {name: await self._source.start_of(streams[name]) for name in sorted(streams)}

        return await _looked_again(look)

    async def freeze(self) -> None:
        """What comes from now on is not for this query: it ends with what is there (AvailableNow)."""
        self._frozen = await self._source.maps()

    async def next_end(self, start: StreamsOffset, *, limited: bool = True) -> StreamsOffset:
        """Where the batch that begins at `start` ends; `start` itself if there is none now.

        Without `limited` it holds everything that may be read now. Raises DataLossError, CorruptedDataError.
        """
        return await _looked_again(lambda: self._next_end(start, limited=limited))

    async def _next_end(self, start: StreamsOffset, *, limited: bool) -> StreamsOffset:
        streams = await self._seen_up_to(start, look=self._streams)
        fronts: list[_Front] = []
        joined: dict[str, Cut] = {}
        for name in sorted({*start, *streams}):
            if name not in streams:
                self._losses.stream_is_gone(name)
            elif name in start:
                begin = named_in(start[name], streams[name])
                fronts.append(await self._front(name, streams[name], begin))
            else:
                joined[name] = dict(streams[name].head)
        found = await self._admitted(fronts, limited=limited)
        if not found and not joined and not any(front.went_back for front in fronts):
            return start
        after: dict[str, Cut] = dict(joined)
        for front in fronts:
            cut = {each: found.get((front.name, each), front.cut[each]) for each in front.cut}
            after[front.name] = front.order.opened(cut, stop=front.stop)
        return {name: after[name] for name in sorted(after)}

    async def stretches(self, start: StreamsOffset, end: StreamsOffset) -> list[BatchRange]:
        """The bytes of a batch, in the order of streams and segments. Raises DataLossError, InvalidRequestError."""
        streams = await self._seen_up_to(start, end, look=self._maps)
        found: list[BatchRange] = []
        for name in sorted(start):
            if name not in end:
                continue
            if name not in streams:
                self._losses.stream_is_gone(name)
                continue
            stream = streams[name]
            order = SegmentGraph.of(stream)
            begin = named_in(start[name], stream, like=end[name])
            until = named_in(end[name], stream)
            await self._tell_gone(name, order, begin, until)
            if not self._losses.fails:
                begin = _not_behind(begin, until, stream)
            for each in order.between(begin, until):
                segment = stream.by_id.get(each.segment_id)
                if segment is None:
                    self._losses.segment_is_gone(name, each)
                    continue
                self._losses.compare(segment, each)
                low, high = max(each.start, segment.start_offset), min(each.end, segment.end_offset)
                if low < high:
                    found.append(BatchRange(stream, segment, low, high))
        return found

    def latest(self, position: StreamsOffset) -> StreamsOffset:
        """The ends of all segments from a position on, as far as `next_end` saw last: the difference is the lag."""
        ends: dict[str, Cut] = {}
        for name in sorted(position):
            stream = self._seen.get(name)
            if stream is None:
                continue
            order = SegmentGraph.of(stream)
            ahead = order.from_here(named_in(position[name], stream))
            ends[name] = {each: stream.by_id[each].end_offset for each in ahead}
            if not stream.scope and 0 in position[name]:
                # As the position has it: a difference is taken between what has the same name in both.
                ends[name] = {0: sum(ends[name].values())}
        return ends

    async def _seen_up_to(
        self, *positions: StreamsOffset, look: Callable[[], Awaitable[Mapping[str, StreamMetadata]]]
    ) -> Mapping[str, StreamMetadata]:
        """The streams, once this process sees as much as the one that made the positions: volumes are seen late."""
        streams = await look()
        for _ in range(OPEN_ATTEMPTS - 1):
            named = [(name, cut) for position in positions for name, cut in position.items()]
            if not any(self._is_late(*each) for each in named if each[0] in streams):
                break
            await asyncio.sleep(OPEN_PAUSE_SECONDS)
            streams = await look()
        return streams

    def _is_late(self, name: str, cut: Cut) -> bool:
        return is_ahead_of(cut, self._live[name]) or bool(self._behind(name, cut))

    async def _maps(self) -> Mapping[str, StreamMetadata]:
        self._live = await self._source.maps()
        return self._live

    def _behind(self, name: str, cut: Cut) -> dict[int, int]:
        """The segments of a cut that end before it, and where."""
        stream = self._live[name]
        segments = stream.by_id
        return {
            each: segments[each].end_offset
            for each, offset in named_in(cut, stream).items()
            if each in segments and offset > segments[each].end_offset
        }

    async def _streams(self) -> Mapping[str, StreamMetadata]:
        streams = await self._maps()
        if self._frozen is not None:
            streams = {
                name: _clipped(streams[name], frozen)
                for name, frozen in self._frozen.items()
                if name in streams
            }
        self._seen = streams
        return streams

    async def _front(self, name: str, stream: StreamMetadata, start: Cut) -> _Front:
        order = SegmentGraph.of(stream)
        stop = self._stops.get(name)
        if stop is None:
            stop = await self._source.stop_of(stream)
            if stop is not None:
                self._stops[name] = stop
        head = {each.segment_id: each.start_offset for each in stream.segments}
        at_head = {each: head.get(each, offset) for each, offset in stream.head.items()}
        await self._tell_gone(name, order, start, at_head)
        after = order.later_of(start, at_head)
        for lost in order.between(start, after):
            segment = stream.by_id.get(lost.segment_id)
            if segment is None:
                self._losses.segment_is_gone(name, lost)
            else:
                self._losses.compare(segment, lost)
        behind = self._behind(name, after)
        for each in behind:
            segment = self._live[name].by_id[each]
            self._losses.compare(segment, OffsetRange(each, after[each], after[each]))
        cut = order.opened({**after, **behind}, stop=stop)
        # A child begins at 0, or at its head if what is before was lost.
        readable: dict[int, int] = {}
        for each, offset in cut.items():
            if offset < head[each]:
                self._losses.compare(stream.by_id[each], OffsetRange(each, offset, head[each]))
            readable[each] = max(offset, head[each])
        ends = order.limited({each: stream.by_id[each].end_offset for each in readable}, stop)
        return _Front(name, stream, order, readable, ends, stop, bool(behind))

    async def _tell_gone(self, name: str, order: SegmentGraph, start: Cut, end: Cut) -> None:
        """Of segments that retention removed, those that were not read to their end are loss."""
        gone = [each for each in order.gone(start) if each not in end]
        next_epoch = 0
        for segment_id in gone:
            offset = start[segment_id]
            record = await self._source.end_of_gone(name, segment_id)
            if record is None or record.length != offset:
                length = offset if record is None else record.length or offset
                self._losses.segment_is_gone(name, OffsetRange(segment_id, offset, length))
            if record is not None:
                next_epoch = max(next_epoch, record.replacing_epoch)
        for segment_id in order.first_behind_gone(start) if next_epoch else ():
            # It does not follow directly: what was between is gone as well, and the query has not read it.
            if creation_epoch_of(segment_id) > next_epoch:
                self._losses.segment_is_gone(name, OffsetRange(segment_id, 0, 0))

    async def _admitted(self, fronts: Sequence[_Front], *, limited: bool) -> dict[SegmentKey, int]:
        """How far the batch goes in the segments that it takes something of."""
        by_key = {(front.name, each): front for front in fronts for each in front.cut}
        waiting = {key: front.ends[key[1]] - front.cut[key[1]] for key, front in by_key.items()}
        waiting = {key: amount for key, amount in waiting.items() if amount > 0}
        limits = self._limits if limited else BatchLimits()
        if limited and self._frozen is None:
            now = asyncio.get_running_loop().time()
            if not self._delay.admits(sum(waiting.values()), now=now):
                return {}
        shares = waiting
        if limits.bytes_max is not None:
            shares = fair_shares(waiting, limits.bytes_max)

        async def end_of(key: SegmentKey) -> tuple[Boundary, Boundary]:
            return await self._end_of(
                by_key[key], key, share=shares[key], numbered=limits.rows_max is not None
            )

        found = await _for_each_segment(list(shares), end_of)
        found = {key: pair for key, pair in found.items() if pair[1].offset > pair[0].offset}
        if limits.rows_max is not None:
            found = await self._within_rows(by_key, found, limits.rows_max)
        kept = {key: end for key, end in self._given.items() if key in by_key}
        self._given = kept | {key: end for key, (_, end) in found.items()}
        return {key: end.offset for key, (_, end) in found.items()}

    async def _end_of(
        self, front: _Front, key: SegmentKey, *, share: int, numbered: bool
    ) -> tuple[Boundary, Boundary]:
        segment = front.stream.by_id[key[1]]
        boundaries = self._source.boundaries(segment)
        offset, end = front.cut[key[1]], front.ends[key[1]]
        start = self._given.get(key)
        if start is None or start.offset != offset:
            start = await boundaries.number_at(offset) if numbered else Boundary(offset, None)
        found = await boundaries.at_most(start, target=min(offset + share, end), end=end)
        if found.offset == offset and segment.is_sealed and end == segment.end_offset:
            raise CorruptedDataError(
                f"a sealed segment ends inside an event segment={segment.name!r} offset={offset}"
                f" length={segment.end_offset}"
            )
        return start, found

    async def _within_rows(
        self,
        by_key: Mapping[SegmentKey, _Front],
        found: Mapping[SegmentKey, tuple[Boundary, Boundary]],
        rows_max: int,
    ) -> dict[SegmentKey, tuple[Boundary, Boundary]]:
        shares = fair_shares({key: _events_in(*pair) for key, pair in found.items()}, rows_max)

        async def end_of(key: SegmentKey) -> tuple[Boundary, Boundary]:
            start, end = found[key]
            boundaries = self._source.boundaries(by_key[key].stream.by_id[key[1]])
            return start, await boundaries.after_events(start, count=shares[key], end=end)

        return await _for_each_segment(list(shares), end_of)


async def _looked_again(look: Callable[[], Awaitable[Answer]]) -> Answer:
    """What a look at the streams gives that retention does not overtake."""
    for _ in range(_TRUNCATIONS_MAX):
        try:
            return await look()
        except (SegmentNotFoundError, SegmentTruncatedError):
            # Since it was looked at; the next look sees it as what it is, loss or none.
            continue
    return await look()


def _not_behind(start: Cut, end: Cut, stream: StreamMetadata) -> dict[int, int]:
    """The start of a batch, no further than its end where that went back to the tail."""
    begin: dict[int, int] = {}
    for each, offset in start.items():
        segment = stream.by_id.get(each)
        last = end.get(each, offset if segment is None else segment.end_offset)
        begin[each] = min(offset, last)
    return begin


def _clipped(stream: StreamMetadata, frozen: StreamMetadata) -> StreamMetadata:
    """The stream as it is, without what came to it since.

    Segments of the head stay, with nothing to read: they are in the place of those that retention removed meanwhile,
    and without them a position would name nothing for their keys.
    """
    segments: list[StreamSegmentMetadata] = []
    for each in stream.segments:
        before = frozen.by_id.get(each.segment_id)
        if before is not None:
            segments.append(
                replace(
                    each,
                    start_offset=min(each.start_offset, before.end_offset),
                    end_offset=before.end_offset,
                    is_sealed=before.is_sealed,
                    successors=tuple(one for one in each.successors if one in frozen.by_id),
                )
            )
        elif each.segment_id in stream.head:
            segments.append(
                replace(each, end_offset=each.start_offset, is_sealed=False, successors=())
            )
    return replace(stream, segments=segments)


def _events_in(start: Boundary, end: Boundary) -> int:
    """Events between two boundaries; where they were not counted, a number that they cannot exceed."""
    if start.event_number is None or end.event_number is None:
        return max(1, (end.offset - start.offset) // 8)
    return end.event_number - start.event_number


class TriggerDelay:
    """Holds small batches back until enough waits or enough time has passed."""

    def __init__(self, settings: TriggerSettings) -> None:
        self._settings = settings
        self._last: float | None = None

    def admits(self, waiting_bytes: int, *, now: float) -> bool:
        """Whether a batch comes now; `now` in seconds of a clock that never goes back.

        The first one always does: how long its bytes have waited before a restart is not known.
        """
        if waiting_bytes <= 0:
            return False
        settings = self._settings
        due = self._last is None or now - self._last >= settings.delay_seconds_max
        if not due and waiting_bytes < settings.bytes_min:
            return False
        self._last = now
        return True


def fair_shares(waiting: Mapping[Key, int], limit: int) -> dict[Key, int]:
    """For each segment how many of its waiting units (bytes or events) may be read now; `limit` >= 1.

    Segments with nothing waiting are left out. O(n log n).
    """
    wanted = {key: waiting[key] for key in sorted(waiting) if waiting[key] > 0}
    total = sum(wanted.values())
    if total <= limit:
        return wanted
    # The first unit of every segment comes off the limit, the rest is divided by what then still waits.
    rest = max(0, limit - len(wanted))
    still_waiting = total - len(wanted)
    shares: dict[Key, int] = {}
    remainders: list[tuple[int, Key]] = []
    for key, amount in wanted.items():
        share, remainder = divmod(rest * (amount - 1), still_waiting) if still_waiting else (0, 0)
        shares[key] = 1 + share
        remainders.append((-remainder, key))
    left = rest - sum(share - 1 for share in shares.values())
    # The largest remainders get one more. They are above 0, so the exact share was not whole and one more still fits.
    for _, key in sorted(remainders)[:left]:
        shares[key] += 1
    return shares


async def _for_each_segment(
    keys: Sequence[SegmentKey], work: Callable[[SegmentKey], Awaitable[Answer]]
) -> dict[SegmentKey, Answer]:
    """The work of every key, a few at a time; results in the order of the keys. The first failure ends it."""
    results: dict[SegmentKey, Answer] = {}
    waiting = list(reversed(keys))

    async def worker() -> None:
        while waiting:
            key = waiting.pop()
            results[key] = await work(key)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(_SEGMENTS_AT_ONCE, len(keys))):
                group.create_task(worker())
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return {key: results[key] for key in keys}
