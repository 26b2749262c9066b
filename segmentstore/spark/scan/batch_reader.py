"""The batch reader: plans on the driver, reads on the executors.

Spark refuses every read through a reader that overrides `pushFilters` as long as its setting
spark.sql.python.filterPushdown.enabled is false, which is the default. So it is not overridden: the attribute is an
object that Spark takes for the inherited method where it looks for an override, and that is called where filters are
pushed. Both ways are held by a test.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from segmentstore.spark.options import SourceOptions
from segmentstore.spark.python_worker import InlineExecutor, LoopRunner, freeze_imports
from segmentstore.spark.scan.partitions import SegmentRange
from segmentstore.spark.scan.range_reader import read_range, read_settings
from segmentstore.spark.scan.scan_planner import NO_BOUNDS, bounds_of, plan_scan
from segmentstore.spark.streams.stream_source import open_stream_source


class BatchReader(DataSourceReader):
    """One batch read. Travels to the executors by pickle: plain values only."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._settings = read_settings(options)
        self.bounds = NO_BOUNDS
        """What may be left out because of filters."""
        self.pushFilters = _PushedFilters(self)  # type: ignore[method-assign]  # see the module

    def partitions(self) -> list[InputPartition]:
        """Ranges to read. Raises DataLossError, StreamMissingError, StorageError, ClientError."""
        with LoopRunner(executor=InlineExecutor()) as runner:
            ranges = list[InputPartition](runner.run(self._plan(runner)))
        freeze_imports()
        return ranges

    async def _plan(self, runner: LoopRunner) -> list[SegmentRange]:
        async with open_stream_source(self._options, executor=runner.executor) as source:
            return await plan_scan(source, self._options, self.bounds)

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """The rows of one range. Spark makes up one partition where there are none."""
        if isinstance(partition, SegmentRange):
            yield from read_range(partition, self._settings)


class _PushedFilters:
    """Takes filters for a reader; all of them are handed back, since what is left out is whole blocks only."""

    def __init__(self, reader: BatchReader) -> None:
        # As an attribute of the object: one of the class would be bound to it, and be another thing.
        self.__func__ = DataSourceReader.pushFilters
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        self._reader.bounds = bounds_of(filters)
        return filters
