"""`df.write.format("segmentstore")`: all rows of a write, once, together.

With txnAppId and txnVersion a write that is repeated (the same version, or an older one) adds nothing, for as long as
the stream lives. Without them every write is one of its own; it is still whole or not there.
"""

from collections.abc import Iterator, Mapping
from random import Random

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.runtime.entropy import system_random
from segmentstore.spark.sink.row_columns import check_columns
from segmentstore.spark.sink.sink_plan import SinkPlan, make_plan
from segmentstore.spark.sink.staging import abort_stages, commit_stages, stage_rows
from segmentstore.spark.sink_options import SinkOptions, parse_sink_options


def make_batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> "SegmentStoreBatchWriter":
    """On the driver. Raises InvalidRequestError, StreamMissingError, and what the client raises."""
    parsed = checked_options(options, schema, overwrite)
    return SegmentStoreBatchWriter(make_plan(parsed), parsed, random=system_random())


def checked_options(options: Mapping[str, str], schema: StructType, overwrite: bool) -> SinkOptions:
    """The options, if what is to be written fits them. Raises InvalidRequestError."""
    if overwrite:
        raise InvalidRequestError("a stream is only appended to: mode append, outputMode append")
    parsed = parse_sink_options(options)
    check_columns(
        {field.name: field.dataType.simpleString() for field in schema.fields},
        routing_key_column=parsed.routing_key_column,
    )
    return parsed


class SegmentStoreBatchWriter(DataSourceArrowWriter):
    """Made on the driver, copied into every task and into whatever process commits."""

    def __init__(self, plan: SinkPlan, options: SinkOptions, *, random: Random) -> None:
        self._plan = plan
        self._is_versioned = bool(options.transaction_app_id)
        self._application_id = (
            f"app:{options.transaction_app_id}"
            if self._is_versioned
            else f"write:{random.randbytes(16).hex()}"
        )
        self._version = options.transaction_version

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """One attempt of one task."""
        return stage_rows(self._plan, iterator, wall_clock=SystemWallClock())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks have written."""
        commit_stages(
            self._plan,
            messages,
            application_id=self._application_id,
            version=self._version,
            forgettable=not self._is_versioned,
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """A task has failed for good, or the commit was not answered: what was committed stays."""
        abort_stages(self._plan, messages)
