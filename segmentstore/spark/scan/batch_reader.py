"""The batch reader: plans on the driver, reads on the executors."""

from collections.abc import Iterator
from concurrent.futures import Executor

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from segmentstore.spark.options import SourceOptions
from segmentstore.spark.python_worker import run_plan
from segmentstore.spark.scan.partitions import SegmentRange
from segmentstore.spark.scan.pushed_filters import PushedFilters
from segmentstore.spark.scan.range_reader import read_range
from segmentstore.spark.scan.scan_planner import NO_BOUNDS, bounds_of, plan_scan
from segmentstore.spark.streams.stream_source import open_stream_source


class BatchReader(DataSourceReader):
    """One batch read. Travels to the executors by pickle: plain values only."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self.bounds = NO_BOUNDS
        """What may be left out because of filters."""
        self.pushFilters = PushedFilters(self, bounds_of)  # type: ignore[method-assign]  # see its module

    def partitions(self) -> list[InputPartition]:
        """Ranges to read. Raises DataLossError, StreamMissingError, StorageError, ClientError."""
        return list[InputPartition](run_plan(self._plan))

    async def _plan(self, executor: Executor) -> list[SegmentRange]:
        async with open_stream_source(self._options, executor=executor) as source:
            return await plan_scan(source, self._options, self.bounds)

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """The rows of one range. Spark makes up one partition where there are none."""
        if isinstance(partition, SegmentRange):
            yield from read_range(partition, self._options)
