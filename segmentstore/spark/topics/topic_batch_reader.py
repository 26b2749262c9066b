"""The batch reader of topics: plans on the driver, reads on the executors."""

from collections.abc import Iterator
from concurrent.futures import Executor

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from segmentstore.spark.python_worker import run_plan
from segmentstore.spark.scan.pushed_filters import PushedFilters
from segmentstore.spark.scan.scan_planner import NO_BOUNDS
from segmentstore.spark.topics.partition_reader import read_topic_range
from segmentstore.spark.topics.topic_offsets import EARLIEST
from segmentstore.spark.topics.topic_options import TopicReadOptions
from segmentstore.spark.topics.topic_ranges import (
    TopicRange,
    split_stretches,
    stretches_between,
    topic_bounds_of,
)
from segmentstore.spark.topics.topic_source import open_topic_source


class TopicBatchReader(DataSourceReader):
    """One batch read. Travels to the executors by pickle: plain values only."""

    def __init__(self, options: TopicReadOptions) -> None:
        self._options = options
        self.bounds = NO_BOUNDS
        """What may be left out because of filters."""
        self.pushFilters = PushedFilters(self, topic_bounds_of)  # type: ignore[method-assign]  # see its module

    def partitions(self) -> list[InputPartition]:
        """Ranges to read. Raises DataLossError, TopicMissingError, StorageError, ClientError."""
        return list[InputPartition](run_plan(self._plan))

    async def _plan(self, executor: Executor) -> list[TopicRange]:
        options = self._options
        async with open_topic_source(options, executor=executor) as source:
            partitions = await source.partitions()
            stretches = stretches_between(
                partitions,
                starts=await source.starts(partitions, default=EARLIEST),
                ends=await source.ends(partitions),
                fail_on_data_loss=options.fail_on_data_loss,
            )
            return await split_stretches(
                source,
                stretches,
                bounds=self.bounds,
                bytes_max=options.max_bytes_per_partition,
                count_min=options.min_partitions,
            )

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """The rows of one range. Spark makes up one partition where there are none."""
        if isinstance(partition, TopicRange):
            yield from read_topic_range(partition, self._options)
