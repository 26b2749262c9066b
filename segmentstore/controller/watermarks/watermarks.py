"""Writes watermarks for streams whose writers note times.

Invariants:

- A watermark is computed from durable marks only, and written once: what was written last is read back from the mark
  segment by whoever goes on.
- A stream none of whose writers is left is not looked at any more, until one notes a time.
- A stream that fails is left for the next interval and holds up no other.
"""

import asyncio
import logging
from contextlib import aclosing

from segmentstore.codec.stream_names import creation_epoch_of, mark_stream
from segmentstore.codec.stream_records.watermark import KeyedSegment, Watermark
from segmentstore.contracts.errors import BadOffsetError, SegmentStoreError
from segmentstore.contracts.segments import SegmentApi
from segmentstore.controller.errors import (
    RetryLaterError,
    ScopeNotFoundError,
    StreamNotFoundError,
)
from segmentstore.controller.metadata.metadata_store import MetadataStore
from segmentstore.controller.reader_groups.subscribers import keyed_cut
from segmentstore.controller.retention.stream_walk import all_scopes
from segmentstore.controller.streams.stream_history import StreamHistory
from segmentstore.controller.streams.stream_operations import StreamOperations
from segmentstore.controller.watermarks.mark_segment import MarkSegment
from segmentstore.controller.watermarks.noted_times import NotedTimes
from segmentstore.controller.watermarks.settings import WatermarkSettings
from segmentstore.controller.watermarks.watermark_choice import (
    MarkedWriter,
    Participants,
    joined_cut,
    participants,
)
from segmentstore.controller.watermarks.writer_marks import MARKED_INDEX, WriterMarks

_LOG = logging.getLogger(__name__)

_NAMES_PER_READ = 100


class Watermarks:
    """Works until cancelled."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        operations: StreamOperations,
        segments: SegmentApi,
        marks: WriterMarks,
        noted_times: NotedTimes,
        settings: WatermarkSettings,
    ) -> None:
        self._store = store
        self._operations = operations
        self._segments = segments
        self._marks = marks
        self._noted_times = noted_times
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
            await self._record_noted_times()
            async with aclosing(all_scopes(self._store)) as scopes:
                async for scope in scopes:
                    await self._look_at_scope(scope)
        except SegmentStoreError as error:
            _LOG.warning("watermarks are put off: %s", error)

    async def clean(self, history: StreamHistory) -> None:
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
            await self._marks.forget_stream(history)
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

    async def _record_noted_times(self) -> None:
        for noted in self._noted_times.take():
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
            await keyed_cut(history, dict(writer.mark.position)) for writer in deciding.taking_part
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
                newest=[
                    KeyedSegment(each.segment_id, each.low, each.high) for each in epoch.segments
                ],
            ),
            scope=history.scope,
            stream=history.stream,
        )

    def _drop(self, scope: str, stream: str) -> None:
        self._mark_segments.pop((scope, stream), None)
        self._silent_since.pop((scope, stream), None)
