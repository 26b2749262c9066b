"""One publication: which segments, how much of each, their bytes checked; and what follows when it is durable.

`PublicationBuilder` turns aggregators into a publication. The plan of a segment is made and its bytes are fetched
without an await between, so that no deletion comes between; between segments other tasks run. Then every run's bytes
are compared with the checksum taken when they were received, and only if all are right a publication comes out.

`PublicationCompletion` follows a publication that is durable: aggregators let go of what was published, and the
container is told.

Order in a publication: segments that leave come first, then the others in the order of their oldest operation. A
recreated name may still be published before its predecessor has left (which may wait for a merge into this very
segment); Tier 2's catalog names the newest segment of a name, and a departure leaves a newer one alone.

Memory: views of the cache, plus a copy of each run that lies in more than one cache block. At most one publication's
bytes, outside the cache, so that a flush never waits for cache room.

Invariant: the container is told of a segment and of the sources that left with it without an await between, so no
reader sees half a merge; of those of a deleted segment in slices, since no read sees any of it.
"""

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor

from crc32c import crc32c

from containers.container_settings import WriterSettings
from containers.writer.backlog import Backlog
from containers.writer.data_source import FlushSource
from containers.writer.reconciler import Reconciler
from containers.writer.segment_aggregator import SegmentAggregator
from containers.writer.segment_flush import RunPiece, RunSlice, SegmentFlush, fold
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.identifiers import BufferView, SegmentId, SequenceNumber
from segmentstore.contracts.storage import DataPiece, MergePiece, Publication, SegmentPublication

_CHECKED_BATCHES_MAX = 2
"""Batches in the executor at a time."""


class PublicationBuilder:
    """Plans and fills one publication at a time."""

    def __init__(
        self, *, source: FlushSource, settings: WriterSettings, executor: Executor | None
    ) -> None:
        self._source = source
        self._settings = settings
        self._executor = executor

    # --- which segments, and how much of each -------------------------------------------------

    async def plan(
        self, candidates: Sequence[SegmentAggregator], *, up_to: SequenceNumber, bytes_max: int
    ) -> list[SegmentFlush]:
        """Fold what fits, in the order given, and mark it as in flight. Segments without their base are left out.

        Raises DataCorruptionError; what is marked then stays marked, because the container halts.
        """
        settings = self._settings
        flushes: list[SegmentFlush] = []
        room = bytes_max
        in_turn = 0
        for candidate in candidates:
            in_turn += 1
            if in_turn >= settings.slice_count:
                await asyncio.sleep(0)
                in_turn = 0
            # Re-checked after every await: it may have been merged away or finished.
            if candidate.finished or candidate.merged_into is not None or candidate.awaits_removal:
                continue
            aggregator = candidate.flush_target(
                bytes_max=bytes_max,
                depth_max=settings.merge_depth_max,
                items_max=settings.segment_items_max,
            )
            if not aggregator.base_known:
                continue
            if min(aggregator.pending_bytes, bytes_max) > room:
                continue
            flush = self._plan_segment(aggregator, up_to, bytes_max)
            if flush is None:
                continue
            flushes.append(flush)
            in_turn += flush.item_count
            room -= sum(item.length for item in flush.slices())
            if len(flushes) == settings.publication_segments_max:
                break
        return flushes

    def _plan_segment(
        self, aggregator: SegmentAggregator, up_to: SequenceNumber, bytes_max: int
    ) -> SegmentFlush | None:
        count = aggregator.count_to_take(
            up_to=up_to,
            bytes_max=bytes_max,
            depth_max=self._settings.merge_depth_max,
            items_max=self._settings.segment_items_max,
            may_exceed=bytes_max >= self._settings.publication_bytes_max,
        )
        if count == 0:
            return None
        flush = fold(aggregator, count)
        for item in flush.slices():
            item.fetch(self._source.data)
        aggregator.in_flight = flush.item_count
        return flush

    # --- their bytes --------------------------------------------------------------------------

    async def build(
        self,
        flushes: Sequence[SegmentFlush],
        *,
        highest_segment_id: SegmentId,
        highest_sequence_number: SequenceNumber,
    ) -> Publication:
        """Check every byte, then put the publication together. Raises DataCorruptionError."""
        await self._check_bytes(flushes)
        leaving: list[SegmentPublication] = []
        staying: list[SegmentPublication] = []
        for number, flush in enumerate(flushes, 1):
            if number % self._settings.slice_count == 0:
                await asyncio.sleep(0)
            for publication in self.publications_of(flush):
                (leaving if publication.deleted else staying).append(publication)
        return Publication(
            segments=leaving + staying,
            highest_segment_id=highest_segment_id,
            highest_sequence_number=highest_sequence_number,
        )

    def publications_of(self, flush: SegmentFlush) -> Iterator[SegmentPublication]:
        """A segment and the sources that leave with it: together, or a crash would show half a merge."""
        for merged in flush.merged_sources:
            if merged.record is not None:
                yield SegmentPublication(record=merged.record, deleted=True)
        if flush.record is not None:
            yield SegmentPublication(
                record=flush.record,
                pieces=[_filled_piece(piece) for piece in flush.pieces],
                attributes=flush.attributes,
                deleted=flush.deleted,
            )

    async def _check_bytes(self, flushes: Iterable[SegmentFlush]) -> None:
        """Two batches at a time: the way to the executor and back is as long as the check of one."""
        loop = asyncio.get_running_loop()
        under_way: deque[Future[RunSlice | None]] = deque()
        wrong: RunSlice | None = None
        for batch, batch_bytes in self._batches(flushes):
            if batch_bytes <= self._settings.inline_check_bytes_max:
                wrong = check_and_join(batch)
                await asyncio.sleep(0)
            else:
                under_way.append(loop.run_in_executor(self._executor, check_and_join, batch))
                if len(under_way) == _CHECKED_BATCHES_MAX:
                    wrong = await under_way.popleft()
            if wrong is not None:
                break
        # Also after a failure: no thread reads the cache any more when this has returned.
        while under_way:
            found = await under_way.popleft()
            wrong = wrong or found
        if wrong is not None:
            raise DataCorruptionError(
                f"bytes in memory are not those received segment_id={wrong.owner_id}"
                f" offset={wrong.owner_offset} length={wrong.length}"
                f" expected={wrong.checksum if wrong.checksum is not None else 'none'}"
            )

    def _batches(self, flushes: Iterable[SegmentFlush]) -> Iterator[tuple[list[RunSlice], int]]:
        batch: list[RunSlice] = []
        batch_bytes = 0
        for flush in flushes:
            for item in flush.slices():
                batch.append(item)
                batch_bytes += item.length
                if (
                    batch_bytes >= self._settings.check_batch_bytes
                    or len(batch) >= self._settings.slice_count
                ):
                    yield batch, batch_bytes
                    batch, batch_bytes = [], 0
        if batch:
            yield batch, batch_bytes


def check_and_join(batch: Sequence[RunSlice]) -> RunSlice | None:
    """Make every slice's bytes one buffer; gives the first whose length or checksum is wrong. Runs in the executor."""
    for item in batch:
        content: BufferView
        content = item.views[0] if len(item.views) == 1 else b"".join(item.views)
        if len(content) != item.length:
            return item
        if item.checksum is not None:
            checksum = item.published_head_checksum
            for view in item.dropped_head_views:
                checksum = crc32c(view, checksum)
            if crc32c(content, checksum) != item.checksum:
                return item
        item.dropped_head_views = ()
        item.views = (content,)
    return None


def _filled_piece(piece: RunPiece | MergePiece) -> DataPiece | MergePiece:
    if isinstance(piece, MergePiece):
        return piece
    return DataPiece(
        piece.offset,
        [view for item in piece.slices for view in item.views],
        [item.events for item in piece.slices] if any(i.events for i in piece.slices) else None,
    )


class PublicationCompletion:
    """Completes one publication at a time."""

    def __init__(
        self,
        *,
        source: FlushSource,
        backlog: Backlog,
        reconciler: Reconciler,
        settings: WriterSettings,
    ) -> None:
        self._source = source
        self._backlog = backlog
        self._reconciler = reconciler
        self._settings = settings

    async def complete(self, flushes: Sequence[SegmentFlush], started: float) -> int:
        """Tell of each segment in one stretch, of all of them in slices; how many bytes were published."""
        published_bytes = 0
        in_turn = 0
        for flush in flushes:
            in_turn += 1 + flush.item_count
            if in_turn >= self._settings.slice_count:
                await asyncio.sleep(0)
                in_turn = 0
            published_bytes += sum(item.length for item in flush.slices())
            if flush.deleted:
                await self._complete_deletion(flush, started)
            else:
                self._complete_segment(flush, started)
            self._backlog.drop_if_empty(flush.aggregator)
        return published_bytes

    async def _complete_deletion(self, flush: SegmentFlush, started: float) -> None:
        """In slices: no read sees any of it, and there may be very many sources."""
        flush.aggregator.complete(flush.item_count, None, started)
        for number, merged in enumerate(flush.merged_sources, 1):
            if number % self._settings.slice_count == 0:
                await asyncio.sleep(0)
            self._remove(merged.aggregator)
        self._remove(flush.aggregator)

    def _complete_segment(self, flush: SegmentFlush, started: float) -> None:
        aggregator, record = flush.aggregator, flush.record
        assert record is not None, f"nothing was published of {aggregator.segment!r}"
        aggregator.complete(flush.item_count, record, started)
        self._reconciler.remember(record)
        self._source.published(
            aggregator.segment_id,
            storage_length=record.length,
            sealed=record.sealed,
            sequence_number=record.sequence_number,
        )
        for merged in flush.merged_sources:
            self._source.merge_completed(merged.target_id, merged.aggregator.segment_id)
            self._remove(merged.aggregator)
        self._backlog.skip_dead_bytes(aggregator)

    def _remove(self, aggregator: SegmentAggregator) -> None:
        aggregator.finished = True
        self._reconciler.forget(aggregator.segment_id)
        self._source.segment_removed(aggregator.segment_id)
