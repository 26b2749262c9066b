"""The data source as it is, in tasks whose first attempt dies in the middle: its process kills itself with -9.

A variable of the environment, MARKS, names a directory that remembers which attempts have begun: so a test knows that
they died.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from segmentstore.spark.data_source import SegmentStoreDataSource
from segmentstore.spark.options import parse_options
from segmentstore.spark.scan.batch_reader import BatchReader
from segmentstore.spark.sink.writer import make_batch_writer
from segmentstore.spark.topics.topic_batch_reader import TopicBatchReader
from segmentstore.spark.topics.topic_options import (
    names_topics,
    parse_topic_options,
    writes_topics,
)
from segmentstore.spark.topics.topic_writer import make_topic_batch_writer

T = TypeVar("T")

MARKS = "DYING_SOURCE_MARKS"
BATCHES_BEFORE = 2
"""Of rows that an attempt has given or taken when it dies."""


def dying(items: Iterator[T], what: str) -> Iterator[T]:
    """The items; in the first attempt of a task only some of them."""
    context = TaskContext.get()
    assert context is not None, "only tasks die"
    attempt = context.attemptNumber()
    Path(os.environ[MARKS], f"{what}-{context.partitionId()}-{attempt}").touch()
    for number, item in enumerate(items):
        if attempt == 0 and number == BATCHES_BEFORE:
            os.kill(os.getpid(), signal.SIGKILL)
        yield item


class DyingReader(BatchReader):
    """Gives some batches and dies."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return dying(super().read(partition), "read")


class DyingTopicReader(TopicBatchReader):
    """The same of topics."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return dying(super().read(partition), "read-topic")


class DyingWriter(DataSourceArrowWriter):
    """Stages some batches and dies."""

    def __init__(self, writer: DataSourceArrowWriter, what: str) -> None:
        self._writer = writer
        self._what = what

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._writer.write(dying(iterator, self._what))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._writer.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._writer.abort(messages)


class DyingSource(SegmentStoreDataSource):
    """Takes the options of `segmentstore`."""

    @classmethod
    def name(cls) -> str:
        return "segmentstore-dying"

    def reader(self, schema: StructType) -> DataSourceReader:
        if names_topics(self.options):
            return DyingTopicReader(parse_topic_options(self.options))
        return DyingReader(parse_options(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DyingWriter:
        if writes_topics(self.options):
            writer: DataSourceArrowWriter = make_topic_batch_writer(self.options, schema, overwrite)
            return DyingWriter(writer, "write-topic")
        return DyingWriter(make_batch_writer(self.options, schema, overwrite), "write")


def dying_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For mapInArrow behind any reader."""
    return dying(batches, "map")
