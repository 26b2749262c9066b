"""`df.writeStream.format("segmentstore")`: each micro-batch once, under the query's id and the batch's number.

The query's id stands in the checkpoint. A query that is started again from it replays the batch that it had not written
down, with other stages: the stream knows the batch by its number, and the replay adds nothing.
"""

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.runtime.clock import SystemWallClock
from segmentstore.spark.sink.batch_writer import checked_options
from segmentstore.spark.sink.sink_plan import SinkPlan, make_plan
from segmentstore.spark.sink.staging import (
    StagedRows,
    abort_stages,
    commit_stages,
    stage_rows,
)

_QUERY_ID = "sql.streaming.queryId"


def make_stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> "SegmentStoreStreamWriter":
    """On the driver. Raises InvalidRequestError, StreamMissingError, and what the client raises."""
    parsed = checked_options(options, schema, overwrite)
    if parsed.transaction_app_id:
        raise InvalidRequestError(
            "txnAppId and txnVersion are for batch writes; a streaming query has an id and numbers of its own"
        )
    return SegmentStoreStreamWriter(make_plan(parsed))


class SegmentStoreStreamWriter(DataSourceStreamArrowWriter):
    """Made on the driver, copied into every task and into whatever process commits."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """One attempt of one task of a micro-batch."""
        context = TaskContext.get()
        query_id = context.getLocalProperty(_QUERY_ID) if context is not None else None
        if not query_id:
            raise InvalidRequestError("a task of a streaming write does not know its query's id")
        return stage_rows(self._plan, iterator, wall_clock=SystemWallClock(), query_id=query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """All tasks of the micro-batch have written."""
        query_ids = {each.query_id for each in messages if isinstance(each, StagedRows)}
        if not query_ids:
            return  # a batch without a task: nothing was written, and nothing can be replayed
        assert len(query_ids) == 1, f"tasks of several queries in one batch {sorted(query_ids)}"
        commit_stages(
            self._plan, messages, application_id=f"query:{query_ids.pop()}", version=batchId
        )

    def abort(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: ARG002, N803  # the signature of Spark
    ) -> None:
        """The micro-batch has failed, maybe behind its commit: what was committed stays."""
        abort_stages(self._plan, messages)
