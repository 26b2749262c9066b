"""Writes watermarks for streams whose writers note times.

A writer **takes part** if it noted a later time than the last watermark's lower one. Others are waited for while they
are alive and not silent for too long; then they are forgotten, and come back with their next note.

A watermark is due when some writers take part and no writer is waited for. Its times are the lowest and highest of
those that take part, its cut the latest position of any of them for every key, and never behind the cut before. Keys
that no position covers are filled with the segments of the newest epoch among those positions, from their start: a
reader has passed the cut there only when it has come that far.

Watermarks stand in the stream's mark segment, which is a revisioned stream to the readers' client. Its bytes are
events, each a watermark. The mark attribute (16 bytes, `MARK_ATTRIBUTE`) is an offset at which a client that comes new
may begin; absent means at the start offset.

Invariants:

- A watermark is computed from durable marks only, and written once: what was written last is read back from the mark
  segment by the task that goes on.
- A stream none of whose writers is left is not looked at any more, until one notes a time.
- A stream that fails is left for the next interval and holds up no other.
- Lower times grow from one watermark to the next; cuts never go back, and cover the key space.
- A watermark is appended under the length that was read before it: of two controllers one fails.
- The mark attribute moves with the append that makes it move, so it never points into the middle of an event.
- At most twice `watermarks_kept` watermarks are in the segment.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from segmentstore.codec.controller_records.stream_records import SegmentWithRange
from segmentstore.codec.controller_records.watermark_records import (
    Watermark,
    WriterMarkRecord,
)
from segmentstore.codec.event_frame import EVENT_HEADER_BYTES, NoEventError, walk_events
from segmentstore.codec.stream_names import creation_epoch_of, mark_stream
from segmentstore.contracts.errors import BadOffsetError, CorruptedDataError, SegmentStoreError
from segmentstore.contracts.identifiers import AttributeKey
from segmentstore.contracts.segments import (
    AttributeUpdate,
    ReadResultEntryKind,
    Segment,
    SegmentApi,
)
from segmentstore.controller.errors import RetryLaterError, ScopeNotFoundError, StreamNotFoundError
from segmentstore.controller.metadata.metadata_store import MetadataStore
from segmentstore.controller.settings import WatermarkSettings
from segmentstore.controller.streams.stream_cuts import CutWithRanges, highest_of, uncovered
from segmentstore.controller.streams.stream_history import (
    StreamHistory,
    all_scopes,
)
from segmentstore.controller.streams.stream_operations import StreamOperations
from segmentstore.controller.writer_marks import MARKED_INDEX, PendingTimes, WriterMarks

_LOG = logging.getLogger(__name__)

MARK_ATTRIBUTE = AttributeKey(bytes.fromhex("7df9a874246cc9d69397cdd19ead68c5"))
"""What a revisioned stream's client keeps its mark in."""

_WATERMARKS_BEHIND_MARK = 2
"""Watermarks before the newest that a client that comes new still reads."""

_NAMES_PER_READ = 100


@dataclass(frozen=True, slots=True)
class MarkedWriter:
    """A writer, its newest mark, and for how long it has not noted a later time than the last watermark."""

    name: str
    mark: WriterMarkRecord
    silent_seconds: float


@dataclass(frozen=True, slots=True)
class Participants:
    """The writers that decide about the next watermark."""

    taking_part: Sequence[MarkedWriter]
    waited_for: Sequence[str]
    forgotten: Sequence[MarkedWriter]

    @property
    def is_due(self) -> bool:
        return bool(self.taking_part) and not self.waited_for


class MarkSegment:
    """One mark segment. `load` first."""

    def __init__(
        self, *, segments: SegmentApi, name: str, watermarks_kept: int, read_bytes: int
    ) -> None:
        self._segments = segments
        self._name = name
        self._watermarks_kept = watermarks_kept
        self._read_bytes = read_bytes
        self._offsets: deque[int] = deque()
        """Where the watermarks begin."""
        self._length = 0
        self.last: Watermark | None = None

    async def load(self) -> None:
        """Read what is there. Raises SegmentNotFoundError, CorruptedDataError."""
        async with self._segments.open_segment(self._name) as segment:
            start = segment.info().start_offset
            content = await self._content(segment, start)
        self._offsets.clear()
        self.last = None
        position = 0
        try:
            for begin, end in walk_events(content):
                if end > len(content):
                    break
                self.last = Watermark.decode(content[begin + EVENT_HEADER_BYTES : end])
                self._offsets.append(start + begin)
                position = end
        except NoEventError as error:
            raise CorruptedDataError(
                f"no watermark segment={self._name!r} at={position}"
            ) from error
        if position < len(content):
            raise CorruptedDataError(f"watermark is cut off segment={self._name!r} at={position}")
        self._length = start + position

    async def append(self, watermark: Watermark) -> None:
        """Write the next one. Raises BadOffsetError if another controller wrote one: load again."""
        event = watermark.encode_event()
        offsets = [*self._offsets, self._length]
        updates: list[AttributeUpdate] = []
        if len(offsets) > _WATERMARKS_BEHIND_MARK:
            updates.append(AttributeUpdate(MARK_ATTRIBUTE, offsets[-_WATERMARKS_BEHIND_MARK - 1]))
        async with self._segments.open_segment(self._name) as segment:
            await segment.append(event, offset=self._length, attribute_updates=updates, events=1)
        self._offsets.append(self._length)
        self._length += len(event)
        self.last = watermark
        if len(self._offsets) > 2 * self._watermarks_kept:
            while len(self._offsets) > self._watermarks_kept:
                self._offsets.popleft()
            await self._segments.truncate(self._name, self._offsets[0])

    async def _content(self, segment: Segment, start: int) -> bytes:
        content = bytearray()
        length = segment.info().length
        while start + len(content) < length:
            offset = start + len(content)
            async with aclosing(
                segment.read(offset, min(self._read_bytes, length - offset))
            ) as entries:
                async for entry in entries:
                    if entry.kind not in (ReadResultEntryKind.CACHE, ReadResultEntryKind.STORAGE):
                        break
                    content += await entry.content()
        return bytes(content)


class Watermarks:
    """Works until cancelled."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        operations: StreamOperations,
        segments: SegmentApi,
        marks: WriterMarks,
        pending_times: PendingTimes,
        settings: WatermarkSettings,
    ) -> None:
        self._store = store
        self._operations = operations
        self._segments = segments
        self._marks = marks
        self._pending_times = pending_times
        self._settings = settings
        self._mark_segments: dict[tuple[str, str], MarkSegment] = {}
        self._silent_since: dict[tuple[str, str], dict[str, float]] = {}
        """Stream -> writer -> loop time at which it was first waited for."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look_at_all()
            await asyncio.sleep(self._settings.interval_seconds)

    async def look_at_all(self) -> None:
        """One pass over all streams whose writers note times."""
        try:
            await self._record_pending_times()
            async with aclosing(all_scopes(self._store)) as scopes:
                async for scope in scopes:
                    try:
                        await self._look_at_scope(scope)
                    except SegmentStoreError as error:
                        _LOG.warning("scope=%s watermarks are put off: %s", scope, error)
        except SegmentStoreError as error:
            _LOG.warning("watermarks are put off: %s", error)

    async def on_stream_deletion(self, history: StreamHistory) -> None:
        """The stream is being deleted: its marks are of no interest any more."""
        await self._marks.forget_stream(history)
        self._drop(history.scope, history.stream)

    async def look_at(self, scope: str, stream: str) -> Watermark | None:
        """Write the next watermark of one stream if it is due."""
        history = await self._operations.history(scope, stream)
        await history.state()
        segment = await self._mark_segment(scope, stream)
        deciding = await self._participants(history, segment)
        for writer in deciding.forgotten:
            await self._marks.forget(history, writer.name, writer.mark)
        if not deciding.taking_part and not deciding.waited_for:
            if await self._marks.forget_if_unmarked(history):
                self._drop(scope, stream)
            return None
        if not deciding.is_due:
            return None
        watermark = await self._watermark(history, deciding, segment.last)
        try:
            await segment.append(watermark)
        except BadOffsetError:
            self._drop(scope, stream)
            raise
        return watermark

    async def _record_pending_times(self) -> None:
        for noted in self._pending_times.take():
            try:
                await self._marks.note_time(
                    noted.scope, noted.stream, noted.writer, noted.time, noted.position
                )
            except SegmentStoreError as error:
                _LOG.info("a noted time is lost stream=%s/%s: %s", noted.scope, noted.stream, error)

    async def _look_at_scope(self, scope: str) -> None:
        after, more = "", True
        while more:
            try:
                table = await self._store.scope_table(scope)
            except (ScopeNotFoundError, RetryLaterError):
                return  # also one that is being deleted, however long that takes
            page = await table.names(MARKED_INDEX, after=after, count=_NAMES_PER_READ)
            for stream in page.names:
                after = stream
                try:
                    await self.look_at(scope, stream)
                except (ScopeNotFoundError, StreamNotFoundError):
                    self._drop(scope, stream)
                except SegmentStoreError as error:
                    _LOG.warning("stream=%s/%s has no new watermark: %s", scope, stream, error)
                # What is in memory comes without a turn of the loop.
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            more = page.more

    async def _mark_segment(self, scope: str, stream: str) -> MarkSegment:
        segment = self._mark_segments.get((scope, stream))
        if segment is None:
            marks = await self._operations.history(scope, mark_stream(stream))
            epoch = await marks.epoch((await marks.state()).current_epoch)
            segment = MarkSegment(
                segments=self._segments,
                name=marks.segment_name(epoch.segments[0].segment_id),
                watermarks_kept=self._settings.watermarks_kept,
                read_bytes=self._settings.read_bytes,
            )
            await segment.load()
            self._mark_segments[(scope, stream)] = segment
        return segment

    async def _participants(self, history: StreamHistory, segment: MarkSegment) -> Participants:
        now = asyncio.get_running_loop().time()
        configuration = (await history.configuration()).record
        timeout_ms = (
            configuration.timestamp_aggregation_timeout_ms if configuration is not None else 0
        )
        last = segment.last.lower_time if segment.last is not None else None
        silent = self._silent_since.setdefault((history.scope, history.stream), {})
        writers: list[MarkedWriter] = []
        for name, mark in (await self._marks.of_stream(history)).items():
            if last is None or mark.time > last:
                silent.pop(name, None)
            else:
                silent.setdefault(name, now)
            writers.append(MarkedWriter(name, mark, now - silent.get(name, now)))
        deciding = participants(
            writers,
            last_lower_time=last,
            silent_seconds_max=timeout_ms / 1000
            if timeout_ms > 0
            else self._settings.silent_seconds_default,
        )
        for writer in deciding.forgotten:
            silent.pop(writer.name, None)
        return deciding

    async def _watermark(
        self, history: StreamHistory, deciding: Participants, last: Watermark | None
    ) -> Watermark:
        positions = [
            await history.cut_with_ranges(writer.mark.position) for writer in deciding.taking_part
        ]
        before = last.cut if last is not None else None
        segments = [segment for cut in [*positions, before or {}] for segment in cut]
        newest = max((creation_epoch_of(each.segment_id) for each in segments), default=0)
        epoch = await history.epoch(newest)
        times = [writer.mark.time for writer in deciding.taking_part]
        return Watermark(
            lower_time=min(times),
            upper_time=max(times),
            cut=joined_cut(
                positions,
                before=before,
                newest=[each.with_range for each in epoch.segments],
            ),
            scope=history.scope,
            stream=history.stream,
        )

    def _drop(self, scope: str, stream: str) -> None:
        self._mark_segments.pop((scope, stream), None)
        self._silent_since.pop((scope, stream), None)


def participants(
    writers: Sequence[MarkedWriter], *, last_lower_time: int | None, silent_seconds_max: float
) -> Participants:
    """Sort the writers of a stream."""
    taking_part: list[MarkedWriter] = []
    waited_for: list[str] = []
    forgotten: list[MarkedWriter] = []
    for writer in writers:
        if last_lower_time is None or writer.mark.time > last_lower_time:
            taking_part.append(writer)
        elif writer.mark.alive and writer.silent_seconds < silent_seconds_max:
            waited_for.append(writer.name)
        else:
            forgotten.append(writer)
    return Participants(taking_part, waited_for, forgotten)


def joined_cut(
    positions: Sequence[CutWithRanges],
    *,
    before: CutWithRanges | None,
    newest: Sequence[SegmentWithRange],
) -> Mapping[SegmentWithRange, int]:
    """The latest of all positions, the cut before among them; gaps are filled from `newest`, a whole epoch.

    `newest` is the epoch in which the newest of the segments in question was created: nothing in it has been replaced
    by any of them, so what it adds never lies before a position. Segments that overlap what is added give way to it.
    """
    cut = highest_of([*positions, *([before] if before is not None else [])])
    # Every round adds segments of one epoch, of which there are finitely many, and removes older ones only.
    for _ in range(len(newest) + 1):
        gaps = uncovered(cut)
        if not gaps:
            return cut
        fillers: dict[SegmentWithRange, int] = {
            segment: 0
            for segment in newest
            if any(segment.low < high and low < segment.high for low, high in gaps)
        }
        cut = highest_of([cut, fillers])
    raise AssertionError(f"gaps are never filled cut={cut} newest={newest}")
