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
from pyspark.sql.datasource import DataSourceArrowWriter, InputPartition, WriterCommitMessage
from pyspark.sql.types import StructType

from segmentstore.spark.data_source import SegmentStoreDataSource
from segmentstore.spark.options import parse_options
from segmentstore.spark.scan.batch_reader import BatchReader
from segmentstore.spark.sink.writer import make_batch_writer

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


class DyingWriter(DataSourceArrowWriter):
    """Stages some batches and dies."""

    def __init__(self, writer: DataSourceArrowWriter) -> None:
        self._writer = writer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._writer.write(dying(iterator, "write"))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._writer.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._writer.abort(messages)


class DyingSource(SegmentStoreDataSource):
    """Takes the options of `segmentstore`."""

    @classmethod
    def name(cls) -> str:
        return "segmentstore-dying"

    def reader(self, schema: StructType) -> DyingReader:
        return DyingReader(parse_options(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DyingWriter:
        return DyingWriter(make_batch_writer(self.options, schema, overwrite))


def dying_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For mapInArrow behind any reader."""
    return dying(batches, "map")
