"""What one attempt of a task does: its rows into a stage of its own; and what the driver does with all stages.

Invariants:

- An attempt has a stage for itself: what a failed or slower attempt of the same task wrote is never mixed in, and is
  thrown away by the driver, by the attempt itself, or in the end by the lease.
- When an attempt returns, everything that it wrote is durable.
- Rows are read while earlier ones are on their way; what is on its way is bounded by the client's settings.
"""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from segmentstore.client.settings import ClientSettings
from segmentstore.client.staged_transactions import Stage, StagedTransactions
from segmentstore.client.store import connect
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.runtime.clock import WallClock
from segmentstore.spark.loop_runner import LoopRunner
from segmentstore.spark.sink.row_columns import rows_of
from segmentstore.spark.sink.row_frames import blocks_of
from segmentstore.spark.sink.sink_plan import SinkPlan

_SLICE_BYTES = 64 << 20
_ABORTS_AT_ONCE = 16
_COMMIT_SECONDS = 3600.0
"""A commit takes seconds, and longer while its store is recovering; giving up earlier would only repeat it."""


@dataclass(frozen=True)
class StagedRows(WriterCommitMessage):
    """What an attempt hands to the driver."""

    stage_id: str
    """Empty: there were no rows, and there is no stage."""
    rows: int
    size_bytes: int
    """Of the framed events."""
    query_id: str = ""
    """Of the streaming query that the task belongs to."""


def stage_rows(
    plan: SinkPlan, batches: Iterator[pa.RecordBatch], *, wall_clock: WallClock, query_id: str = ""
) -> StagedRows:
    """Write all rows of one attempt. Raises SegmentStoreError, and what the iterator raises."""
    with LoopRunner() as runner:
        work = _stage_rows(plan, batches, wall_clock, query_id, runner.executor)
        return runner.run(work)


def commit_stages(
    plan: SinkPlan,
    messages: Sequence[WriterCommitMessage | None],
    *,
    application_id: str,
    version: int,
    forgettable: bool = False,
) -> bool:
    """Commit everything that the attempts staged, as one; whether it added something. Raises SegmentStoreError.

    Returns when all of it can be read. A replay adds nothing.
    """
    stages = _stages_of(messages)
    if not stages and forgettable:
        return False
    with LoopRunner() as runner:
        return runner.run(_commit(plan, stages, application_id, version, forgettable))


def abort_stages(plan: SinkPlan, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Throw away what was staged. Of stages that were committed nothing changes. Raises SegmentStoreError."""
    stages = _stages_of(messages)
    if stages:
        with LoopRunner() as runner:
            runner.run(_abort(plan, stages))


async def _stage_rows(
    plan: SinkPlan,
    batches: Iterator[pa.RecordBatch],
    wall_clock: WallClock,
    query_id: str,
    executor: Executor,
) -> StagedRows:
    loop = asyncio.get_running_loop()
    batch = await loop.run_in_executor(executor, next, batches, None)
    while batch is not None and not len(batch):
        batch = await loop.run_in_executor(executor, next, batches, None)
    if batch is None:
        return StagedRows("", 0, 0, query_id)
    settings = ClientSettings()
    async with connect(plan.controller, settings=settings) as store:
        staged = store.stream(plan.stream).staged()
        stage = await staged.begin(lease_seconds=plan.lease_seconds)
        rows = size_bytes = 0
        try:
            async with stage:
                while batch is not None:
                    for piece in _slices(batch):
                        size_bytes += await _write(
                            plan, stage, piece, wall_clock.now_ms(), settings.block_bytes_max
                        )
                    rows += len(batch)
                    batch = await loop.run_in_executor(executor, next, batches, None)
        except BaseException:
            await _abort_quietly(staged, stage.id)
            raise
        return StagedRows(stage.id, rows, size_bytes, query_id)


async def _write(
    plan: SinkPlan, stage: Stage, batch: pa.RecordBatch, now_ms: int, block_bytes: int
) -> int:
    rows = rows_of(batch, routing_key_column=plan.routing_key_column, now_ms=now_ms)
    size_bytes = 0
    for block in blocks_of(rows, stage.ranges, as_records=plan.as_records, block_bytes=block_bytes):
        size_bytes += len(block.content)
        await stage.write(block.segment_id, block.content, events=block.events)
    return size_bytes


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Parts whose columns fit Arrow's 32-bit offsets by far, if rows are not extremely uneven."""
    parts = -(-batch.nbytes // _SLICE_BYTES) or 1
    rows = max(1, -(-len(batch) // parts))
    for start in range(0, len(batch), rows):
        yield batch.slice(start, rows)


async def _commit(
    plan: SinkPlan, stages: Sequence[str], application_id: str, version: int, forgettable: bool
) -> bool:
    async with connect(plan.controller) as store:
        committed = (
            await store.stream(plan.stream)
            .staged()
            .commit(
                application_id,
                version,
                stages,
                forgettable=forgettable,
                wait_seconds=_COMMIT_SECONDS,
            )
        )
    return not committed.is_duplicate


async def _abort(plan: SinkPlan, stages: Sequence[str]) -> None:
    async with connect(plan.controller) as store:
        staged = store.stream(plan.stream).staged()
        for start in range(0, len(stages), _ABORTS_AT_ONCE):
            some = stages[start : start + _ABORTS_AT_ONCE]
            await asyncio.gather(*(_abort_quietly(staged, each) for each in some))


async def _abort_quietly(staged: StagedTransactions, stage_id: str) -> None:
    try:
        await staged.abort(stage_id)
    except SegmentStoreError:
        # The lease ends the stage as well.
        return


def _stages_of(messages: Sequence[WriterCommitMessage | None]) -> list[str]:
    """In the order of the partitions; a failed task has no message."""
    return [
        message.stage_id
        for message in messages
        if isinstance(message, StagedRows) and message.stage_id
    ]
