"""The streaming writer outside of a query."""

import pickle

import pytest

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.sink.writer import SegmentStoreStreamWriter, SinkPlan, StagedCommitMessage

NOWHERE = SinkPlan(
    controller="tcp://127.0.0.1:1",
    stream="s/a",
    as_records=False,
    routing_key_column="key",
    lease_seconds=60.0,
)


def test_a_task_that_does_not_know_its_query_writes_nothing() -> None:
    with pytest.raises(InvalidRequestError, match="query's id"):
        SegmentStoreStreamWriter(NOWHERE).write(iter([]))


def test_a_batch_without_tasks_needs_nobody() -> None:
    writer: SegmentStoreStreamWriter = pickle.loads(pickle.dumps(SegmentStoreStreamWriter(NOWHERE)))
    writer.commit([], 0)
    writer.commit([None], 0)
    writer.abort([None, StagedCommitMessage("", 0, 0, "q")], 0)
