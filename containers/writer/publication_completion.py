"""What follows a publication that is durable: aggregators let go of it, and the container is told.

Invariant: a segment and the sources that left with it are told of in one stretch, so nobody sees half a merge.
"""

import asyncio
from collections.abc import Sequence

from containers.writer.backlog import Backlog
from containers.writer.data_source import FlushSource
from containers.writer.reconciler import Reconciler
from containers.writer.segment_aggregator import SegmentAggregator
from containers.writer.segment_flush import SegmentFlush
from containers.writer.settings import WriterSettings


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
        for number, flush in enumerate(flushes, 1):
            if number % self._settings.slice_count == 0:
                await asyncio.sleep(0)
            published_bytes += sum(item.length for item in flush.slices())
            self._complete_segment(flush, started)
            self._backlog.drop_if_empty(flush.aggregator)
        return published_bytes

    def _complete_segment(self, flush: SegmentFlush, started: float) -> None:
        aggregator, record = flush.aggregator, flush.record
        if flush.deleted:
            aggregator.complete(flush.item_count, None, started)
            for absorbed in flush.absorbed:
                self._remove(absorbed.aggregator)
            self._remove(aggregator)
            return
        assert record is not None, f"nothing was published of {aggregator.segment!r}"
        aggregator.complete(flush.item_count, record, started)
        self._reconciler.remember(record)
        self._source.published(
            aggregator.segment_id,
            storage_length=record.length,
            sealed=record.sealed,
            sequence_number=record.sequence_number,
        )
        for absorbed in flush.absorbed:
            self._source.merge_completed(absorbed.target_id, absorbed.aggregator.segment_id)
            self._remove(absorbed.aggregator)

    def _remove(self, aggregator: SegmentAggregator) -> None:
        aggregator.finished = True
        self._reconciler.forget(aggregator.segment_id)
        self._source.segment_removed(aggregator.segment_id)
