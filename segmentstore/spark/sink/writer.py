"""Writes of Spark into a stream, each batch exactly once: what Spark calls, the plan, the stages and their commit.

    driver    looks at the stream, or creates it -> SinkPlan: plain values that every task gets
    task      each attempt writes its rows into a stage of its own (a transaction with a lease)
    driver    one call commits the stages of all tasks together, or throws them away; the controller compares
              the version (controller/transactions/staged_commits.py)

`df.write.format("segmentstore")` writes all its rows together. With txnAppId and txnVersion a write that is repeated
(the same version, or an older one) adds nothing, until the stream is deleted. Without them every write is one of its
own; it is still whole or not there.

`df.writeStream.format("segmentstore")` writes each micro-batch under the query's id and the batch's number. The id
stands in the checkpoint. A query that is started again from it replays the batch that it had not written down, with
other stages: the stream knows the batch by its number, and the replay adds nothing.

Invariants:

- An attempt has a stage for itself: what a failed or slower attempt of the same task wrote is never mixed in, and is
  thrown away by the driver, by the attempt itself, or in the end by the lease.
- When an attempt returns, everything that it wrote is durable.
- Rows are read while earlier ones are on their way; what is on its way is bounded by the client's settings.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from random import Random

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from segmentstore.client.errors import AlreadyExistsError, NotFoundError
from segmentstore.client.settings import ClientSettings
from segmentstore.client.store import Store
from segmentstore.client.stream_config import StreamConfig
from segmentstore.client.transaction import Stage, StagedTransactions
from segmentstore.contracts.errors import InvalidRequestError, SegmentStoreError
from segmentstore.runtime.clock import SystemWallClock, WallClock
from segmentstore.runtime.entropy import system_random
from segmentstore.spark.options import RECORD_TAG
from segmentstore.spark.python_worker import LoopRunner
from segmentstore.spark.service_connection import connect_service
from segmentstore.spark.sink.event_encoder import blocks_of, check_columns, rows_of
from segmentstore.spark.sink.sink_options import SinkContent, SinkOptions, parse_sink_options
from segmentstore.spark.streams.segment_graph import StreamMissingError

_SLICE_BYTES = 64 << 20
_ABORTS_AT_ONCE = 16
COMMIT_SECONDS = 3600.0
"""A commit takes seconds, and longer while its store is recovering; giving up earlier would only repeat it."""
_APPLICATION_PREFIX = "app:"
_QUERY_ID_PROPERTY = "sql.streaming.queryId"
_BATCH_ID_PROPERTY = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """Where events go and as what."""

    controller: str
    stream: str
    """`scope/stream`."""
    as_records: bool
    routing_key_column: str
    lease_seconds: float
    tls_authority: str = ""
    tls_server_name: str = ""


@dataclass(frozen=True)
class StagedCommitMessage(WriterCommitMessage):
    """What an attempt hands to the driver."""

    stage_id: str
    """Empty: there were no rows, and there is no stage."""
    rows: int
    size_bytes: int
    """Of the framed events."""
    query_id: str = ""
    """Of the streaming query that the task belongs to."""


def make_batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> "SegmentStoreBatchWriter":
    """On the driver. Raises InvalidRequestError, StreamMissingError, and what the client raises."""
    parsed = checked_options(options, schema, overwrite)
    return SegmentStoreBatchWriter(make_plan(parsed), parsed, random=system_random())


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
            f"{_APPLICATION_PREFIX}{options.transaction_app_id}"
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


class SegmentStoreStreamWriter(DataSourceStreamArrowWriter):
    """Made on the driver, copied into every task and into whatever process commits."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """One attempt of one task of a micro-batch."""
        return stage_rows(
            self._plan, iterator, wall_clock=SystemWallClock(), query_id=query_id_of_task()
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """All tasks of the micro-batch have written."""
        query_ids = {each.query_id for each in messages if isinstance(each, StagedCommitMessage)}
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


def query_id_of_task() -> str:
    """Of the streaming query that the task of this process belongs to. Raises InvalidRequestError."""
    return _property_of_task(_QUERY_ID_PROPERTY, "query's id")


def batch_id_of_task() -> int:
    """Of the micro-batch that the task of this process belongs to. Raises InvalidRequestError."""
    return int(_property_of_task(_BATCH_ID_PROPERTY, "batch's number"))


def _property_of_task(name: str, what: str) -> str:
    context = TaskContext.get()
    found: str | None = None
    if context is not None:
        found = context.getLocalProperty(name)
    if not found:
        raise InvalidRequestError(f"a task of a streaming write does not know its {what}")
    return found


def make_plan(options: SinkOptions) -> SinkPlan:
    """Look at the stream, or create it if it is missing and the options say so.

    Raises StreamMissingError; InvalidRequestError if the content does not fit the stream; and what the client raises.
    """
    with LoopRunner() as runner:
        return runner.run(_make_plan(options))


async def _make_plan(options: SinkOptions) -> SinkPlan:
    async with connect_service(options) as store:
        config = await _find_or_create_stream(store, options)
    holds_records = RECORD_TAG in config.tags
    if holds_records and options.content is SinkContent.RAW:
        raise InvalidRequestError(
            f"the stream holds records and content=raw would write something else "
            f"stream={options.stream_name!r}"
        )
    return SinkPlan(
        controller=options.controller,
        stream=options.stream_name,
        as_records=holds_records or options.content is SinkContent.RECORD,
        routing_key_column=options.routing_key_column,
        lease_seconds=options.staging_lease_seconds,
        tls_authority=options.tls_authority,
        tls_server_name=options.tls_server_name,
    )


async def _find_or_create_stream(store: Store, options: SinkOptions) -> StreamConfig:
    stream = store.stream(options.stream_name)
    try:
        return await stream.config()
    except NotFoundError as error:
        if not options.create_if_missing:
            raise StreamMissingError(
                f"there is no such stream; createIfMissing=true creates it "
                f"stream={options.stream_name!r}"
            ) from error
    if options.scope not in await store.scopes():
        # Another job may be faster; the stream may still be missing then.
        with suppress(AlreadyExistsError):
            await store.scope(options.scope).create()
    try:
        await stream.create(options.stream_config)
    except AlreadyExistsError:
        return await stream.config()
    return options.stream_config


def stage_rows(
    plan: SinkPlan, batches: Iterator[pa.RecordBatch], *, wall_clock: WallClock, query_id: str = ""
) -> StagedCommitMessage:
    """Write all rows of one attempt. Raises SegmentStoreError, and what the iterator raises."""
    with LoopRunner() as runner:
        work = _stage_rows(plan, batches, wall_clock, query_id, runner.executor)
        return runner.run(work)


async def _stage_rows(
    plan: SinkPlan,
    batches: Iterator[pa.RecordBatch],
    wall_clock: WallClock,
    query_id: str,
    executor: Executor,
) -> StagedCommitMessage:
    loop = asyncio.get_running_loop()
    batch = await loop.run_in_executor(executor, next, batches, None)
    while batch is not None and not len(batch):
        batch = await loop.run_in_executor(executor, next, batches, None)
    if batch is None:
        return StagedCommitMessage("", 0, 0, query_id)
    settings = ClientSettings()
    async with connect_service(plan, settings) as store:
        staged = store.stream(plan.stream).staged()
        stage = await staged.begin(lease_seconds=plan.lease_seconds)
        rows = size_bytes = 0
        try:
            async with stage:
                while batch is not None:
                    for piece in _slices_of(batch):
                        size_bytes += await _write_slice(
                            plan, stage, piece, wall_clock.now_ms(), settings.block_bytes_max
                        )
                    rows += len(batch)
                    batch = await loop.run_in_executor(executor, next, batches, None)
        except BaseException:
            await abort_quietly(staged, stage.id)
            raise
        return StagedCommitMessage(stage.id, rows, size_bytes, query_id)


async def _write_slice(
    plan: SinkPlan, stage: Stage, batch: pa.RecordBatch, now_ms: int, block_bytes: int
) -> int:
    rows = rows_of(batch, routing_key_column=plan.routing_key_column, now_ms=now_ms)
    size_bytes = 0
    for block in blocks_of(rows, stage.ranges, as_records=plan.as_records, block_bytes=block_bytes):
        size_bytes += len(block.content)
        await stage.write(block.segment_id, block.content, events=block.events)
    return size_bytes


def _slices_of(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Parts whose columns fit Arrow's 32-bit offsets by far, if rows are not extremely uneven."""
    parts = -(-batch.nbytes // _SLICE_BYTES) or 1
    rows = max(1, -(-len(batch) // parts))
    for start in range(0, len(batch), rows):
        yield batch.slice(start, rows)


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
    stages = _stage_ids(messages)
    if not stages and forgettable:
        return False
    with LoopRunner() as runner:
        return runner.run(_commit_stages(plan, stages, application_id, version, forgettable))


async def _commit_stages(
    plan: SinkPlan, stages: Sequence[str], application_id: str, version: int, forgettable: bool
) -> bool:
    async with connect_service(plan) as store:
        committed = (
            await store.stream(plan.stream)
            .staged()
            .commit(
                application_id,
                version,
                stages,
                forgettable=forgettable,
                wait_seconds=COMMIT_SECONDS,
            )
        )
    return not committed.is_duplicate


def last_version_of(options: Mapping[str, str], transaction_app_id: str) -> int | None:
    """The newest txnVersion that the stream knows of an application: None if it knows none, or is not there.

    Raises InvalidRequestError, SegmentStoreError.
    """
    parsed = parse_sink_options(options)
    with LoopRunner() as runner:
        return runner.run(_last_version(parsed, transaction_app_id))


async def _last_version(options: SinkOptions, transaction_app_id: str) -> int | None:
    async with connect_service(options) as store:
        staged = store.stream(options.stream_name).staged()
        return await staged.last_version(f"{_APPLICATION_PREFIX}{transaction_app_id}")


def abort_stages(plan: SinkPlan, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Throw away what was staged. Of stages that were committed nothing changes. Raises SegmentStoreError."""
    stages = _stage_ids(messages)
    if stages:
        with LoopRunner() as runner:
            runner.run(_abort_stages(plan, stages))


async def _abort_stages(plan: SinkPlan, stages: Sequence[str]) -> None:
    async with connect_service(plan) as store:
        staged = store.stream(plan.stream).staged()
        for start in range(0, len(stages), _ABORTS_AT_ONCE):
            some = stages[start : start + _ABORTS_AT_ONCE]
            await asyncio.gather(*(abort_quietly(staged, each) for each in some))


async def abort_quietly(staged: StagedTransactions, stage_id: str) -> None:
    """Throw a stage away; what fails is left to its lease."""
    try:
        await staged.abort(stage_id)
    except SegmentStoreError:
        # The lease ends the stage as well.
        return


def _stage_ids(messages: Sequence[WriterCommitMessage | None]) -> list[str]:
    """In the order of the partitions; a failed task has no message."""
    return [
        message.stage_id
        for message in messages
        if isinstance(message, StagedCommitMessage) and message.stage_id
    ]
