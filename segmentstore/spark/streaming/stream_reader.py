"""The streaming reader as Spark calls it: positions in and out, ranges for the tasks, and what is told to the store.

Spark keeps one reader for the life of a query in a process beside the driver, and makes others from its pickle for the
tasks. So what is open (a loop, Tier 2, connections) is opened with the first call that needs it and never travels.

Invariants:

- The position that Spark keeps in its checkpoint is all that a query remembers: after a restart `partitions` is called
  with two of them, before anything else, and gives the same events.
- `commit` is advisory, and not called for the last batch of a query: nothing depends on it.
"""

from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.spark.block_range import SegmentRange
from segmentstore.spark.loop_runner import LoopRunner
from segmentstore.spark.options import Content, SourceOptions
from segmentstore.spark.range_reading import read_range, read_settings
from segmentstore.spark.scan_plan import RangeMaker, Stretch, cut_stretches, range_bytes
from segmentstore.spark.stream_source import StreamSource, open_stream_source
from segmentstore.spark.streaming.admission import TriggerSettings
from segmentstore.spark.streaming.checkpoint_offsets import decode_offset, encode_offset
from segmentstore.spark.streaming.data_losses import DataLosses
from segmentstore.spark.streaming.micro_batches import BatchLimits, MicroBatches, StreamsOffset
from segmentstore.spark.streaming.query_source import QuerySource

if TYPE_CHECKING:
    import pyarrow as pa

    from segmentstore.spark.streaming.progress_publishing import ProgressPublisher


class SegmentStoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query's reader. Its methods raise DataLossError, StreamMissingError, StorageError, ClientError."""

    def __init__(self, options: SourceOptions) -> None:
        """Raises InvalidRequestError for options that a stream cannot have."""
        _check(options)
        self._options = options
        self._settings = read_settings(options)
        self._query: _OpenQuery | None = None
        self._first: StreamsOffset | None = None
        self._last: StreamsOffset | None = None

    def __reduce__(self) -> "tuple[type[SegmentStoreStreamReader], tuple[SourceOptions]]":
        return type(self), (self._options,)

    def initialOffset(self) -> dict[str, object]:  # noqa: N802  # Spark's name
        # Asked for twice before the first batch; both answers have to be the same.
        if self._first is None:
            query = self._opened()
            self._first = query.runner.run(query.batches.first())
        return self._encode(self._first)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        options = self._options
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.max_rows_per_trigger is not None:
            return ReadMaxRows(options.max_rows_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        query = self._opened()
        query.runner.run(query.batches.freeze())

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802  # Spark's name
        query = self._opened()
        is_limited = not isinstance(limit, ReadAllAvailable) or isinstance(
            self.getDefaultReadLimit(), ReadAllAvailable
        )
        end = query.runner.run(query.batches.next_end(self._decode(start), limited=is_limited))
        self._last = end
        return self._encode(end)

    def reportLatestOffset(self) -> dict[str, object] | None:  # noqa: N802  # Spark's name
        if self._query is None or self._last is None:
            return None
        return self._encode(self._query.batches.latest(self._last))

    def partitions(
        self, start: dict[str, object], end: dict[str, object]
    ) -> Sequence[InputPartition]:
        query = self._opened()
        return query.runner.run(query.ranges(self._decode(start), self._decode(end)))

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The rows of one range. Spark makes up one partition where there are none."""
        if isinstance(partition, SegmentRange):
            yield from read_range(partition, self._settings)

    def commit(self, end: dict[str, object]) -> None:
        if self._options.checkpoint_group:
            query = self._opened()
            query.runner.run(query.publish(self._decode(end)))

    def stop(self) -> None:
        query, self._query = self._query, None
        if query is not None:
            query.close()

    def _opened(self) -> "_OpenQuery":
        if self._query is None:
            self._query = _OpenQuery(self._options)
        return self._query

    @property
    def _single(self) -> str | None:
        """The one stream or segment of the query; None for a whole scope."""
        options = self._options
        return options.segment or (options.stream_name if options.stream else None)

    def _encode(self, position: StreamsOffset) -> dict[str, object]:
        return encode_offset(position, single=self._single)

    def _decode(self, content: dict[str, object]) -> StreamsOffset:
        return decode_offset(content, single=self._single)


class _OpenQuery:
    """What a reader holds open between Spark's calls."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._open = AsyncExitStack()
        self.runner = LoopRunner()
        try:
            self._source = self.runner.run(self._enter())
        except BaseException:
            self.runner.close()
            raise
        self.batches = MicroBatches(
            source=QuerySource(self._source, wall_clock=SystemWallClock()),
            limits=BatchLimits(
                bytes_max=options.max_bytes_per_trigger, rows_max=options.max_rows_per_trigger
            ),
            trigger=TriggerSettings(
                bytes_min=options.min_bytes_per_trigger,
                delay_seconds_max=options.max_trigger_delay_seconds,
            ),
            losses=DataLosses(fail_on_data_loss=options.fail_on_data_loss),
        )

    async def ranges(self, start: StreamsOffset, end: StreamsOffset) -> list[SegmentRange]:
        """What the tasks of one batch read."""
        stretches = await self.batches.stretches(start, end)
        target_bytes = range_bytes(self._options, sum(each.end - each.start for each in stretches))
        ranges: list[SegmentRange] = []
        for each in stretches:
            maker = RangeMaker(
                scope=each.stream.scope,
                stream=each.stream.stream,
                content=self._source.content_of(each.stream),
            )
            ranges += await cut_stretches(
                self._source.view,
                maker,
                [Stretch(each.segment, each.start, each.end)],
                target_bytes=target_bytes,
            )
        return ranges

    async def publish(self, position: StreamsOffset) -> None:
        """Tell the query's group what was committed. Never raises the store's errors."""
        if self._publisher is not None:
            await self._publisher.publish(position)

    def close(self) -> None:
        try:
            self.runner.run(self._open.aclose())
        finally:
            self.runner.close()

    async def _enter(self) -> StreamSource:
        options = self._options
        self._publisher = _publisher_of(options) if options.checkpoint_group else None
        if self._publisher is not None:
            self._open.push_async_callback(self._publisher.close)
        return await self._open.enter_async_context(
            open_stream_source(options, executor=self.runner.executor)
        )


def _publisher_of(options: SourceOptions) -> "ProgressPublisher":
    # Only those who ask the service need its client library.
    from segmentstore.spark.streaming.progress_publishing import ProgressPublisher

    return ProgressPublisher.at(
        options.controller, scope=options.scope, group=options.checkpoint_group
    )


def _check(options: SourceOptions) -> None:
    if options.metadata:
        raise InvalidRequestError(
            "a metadata table is read in a batch: spark.read, not spark.readStream"
        )
    if options.checkpoint_group and not (options.uses_service and options.scope):
        raise InvalidRequestError(
            "checkpointGroup tells the service how far a query of streams came: it needs controller and scope"
        )
    if options.content is Content.BYTES and options.max_rows_per_trigger is not None:
        raise InvalidRequestError(
            "maxRowsPerTrigger counts events; a segment of bytes has none: use maxBytesPerTrigger"
        )
