"""Writes of Spark to topics, each batch exactly once: what Spark calls, the stages, their commit and the relay.

    task      each attempt writes its rows, as batches of records, into a stage of its own
    driver    one call commits the stages of all tasks together; then they are relayed to the topics (record_relay.py)

`df.write` writes all its rows together. With txnAppId and txnVersion a write that is repeated (the same version, or an
older one) adds nothing; without them it is one of its own, and its staging stream is deleted behind it. Each topic has
versions of its own, as a stream has, until it is deleted: a batch that goes to two topics may have one version in both.
Only rows that name their topics themselves have versions that are of all topics together.

`df.writeStream` writes each micro-batch under the query's id and the batch's number, which stand in the checkpoint. The
staging stream is the query's: it stays, empty between batches.

Invariants:

- When an attempt returns, everything that it wrote is durable in its stage. What a failed or slower attempt wrote is
  never mixed in.
- A commit returns when every record is durable in its topic.
"""

import asyncio
import hashlib
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from segmentstore.client.errors import AlreadyExistsError, NotFoundError
from segmentstore.client.store import Store
from segmentstore.client.stream_config import ScalingPolicy, StreamConfig
from segmentstore.client.transaction import Stage
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.runtime.clock import SystemWallClock, WallClock
from segmentstore.runtime.entropy import system_random
from segmentstore.spark.python_worker import LoopRunner
from segmentstore.spark.service_connection import connect_service
from segmentstore.spark.sink.writer import (
    SinkPlan,
    StagedCommitMessage,
    abort_quietly,
    abort_stages,
    batch_id_of_task,
    commit_stages,
    query_id_of_task,
)
from segmentstore.spark.topics.record_encoder import (
    RecordEncoder,
    TargetBatch,
    TopicTarget,
    check_topic_columns,
    topics_of,
)
from segmentstore.spark.topics.record_relay import RecordRelay, encode_staged, staging_slot
from segmentstore.spark.topics.topic_catalogue import TopicMissingError
from segmentstore.spark.topics.topic_service import TopicService
from segmentstore.spark.topics.topic_sink_options import (
    TopicSinkOptions,
    parse_topic_sink_options,
)
from segmentstore.topics.produce import compression_of_config

_STAGING_SEGMENTS = 4
_DEFAULT_BATCH_BYTES_MAX = 1_048_588


def make_topic_batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> "TopicBatchWriter":
    """On the driver. Raises InvalidRequestError; with txnAppId TopicMissingError, and what the client raises."""
    parsed = _checked_options(options, schema, overwrite)
    if not parsed.transaction_app_id:
        return TopicBatchWriter(parsed, f"write:{system_random().randbytes(16).hex()}")
    with LoopRunner() as runner:
        application_id = runner.run(_versioned_application(parsed, parsed.transaction_app_id))
    return TopicBatchWriter(parsed, application_id)


def make_topic_stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> "TopicStreamWriter":
    """On the driver. Raises InvalidRequestError."""
    parsed = _checked_options(options, schema, overwrite)
    if parsed.transaction_app_id:
        raise InvalidRequestError(
            "txnAppId and txnVersion are for batch writes; a streaming query has an id and numbers of its own"
        )
    return TopicStreamWriter(parsed)


def _checked_options(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> TopicSinkOptions:
    if overwrite:
        raise InvalidRequestError("a topic is only appended to: mode append, outputMode append")
    parsed = parse_topic_sink_options(options)
    check_topic_columns(
        {field.name: field.dataType.simpleString() for field in schema.fields}, topic=parsed.topic
    )
    return parsed


class TopicBatchWriter(DataSourceArrowWriter):
    """Made on the driver, copied into every task and into whatever process commits."""

    def __init__(self, options: TopicSinkOptions, application_id: str) -> None:
        """`application_id`: whose version the write is."""
        self._options = options
        self._is_versioned = bool(options.transaction_app_id)
        self._application_id = application_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """One attempt of one task."""
        version = self._options.transaction_version
        return _stage_rows(self._options, iterator, self._application_id, version)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks have written."""
        write = _TopicWrite(self._options, self._application_id)
        write.commit(messages, self._options.transaction_version)
        if not self._is_versioned:
            write.delete_staging()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """A task has failed for good, or the commit was not answered: what was committed stays."""
        write = _TopicWrite(self._options, self._application_id)
        write.abort(messages)
        if not self._is_versioned:
            write.delete_staging()


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """Made on the driver, copied into every task and into whatever process commits."""

    def __init__(self, options: TopicSinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """One attempt of one task of a micro-batch."""
        query_id = query_id_of_task()
        version = batch_id_of_task()
        return _stage_rows(
            self._options, iterator, _application_of(query_id), version, query_id=query_id
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """All tasks of the micro-batch have written."""
        write = self._write_of(messages)
        if write is not None:
            write.commit(messages, batchId)

    def abort(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: ARG002, N803  # the signature of Spark
    ) -> None:
        """The micro-batch has failed, maybe behind its commit: what was committed stays."""
        write = self._write_of(messages)
        if write is not None:
            write.abort(messages)

    def _write_of(self, messages: list[WriterCommitMessage | None]) -> "_TopicWrite | None":
        """None without a task: nothing was written, and nothing can be replayed."""
        query_ids = {each.query_id for each in messages if isinstance(each, StagedCommitMessage)}
        if not query_ids:
            return None
        assert len(query_ids) == 1, f"tasks of several queries in one batch {sorted(query_ids)}"
        return _TopicWrite(self._options, _application_of(query_ids.pop()))


def _application_of(query_id: str) -> str:
    return f"query:{query_id}"


async def _versioned_application(options: TopicSinkOptions, transaction_app_id: str) -> str:
    """Another one for each topic, and for one that was made again. Raises TopicMissingError, ClientError."""
    if not options.topic:
        return f"app:{transaction_app_id}"
    async with TopicService(options.kafka) as service:
        topic_id = await service.topic_id(options.topic)
    # A digest, as both together may be longer than the id of an application.
    digest = hashlib.sha256(transaction_app_id.encode()).hexdigest()[:32]
    return f"app:{topic_id.hex}:{digest}"


@dataclass(frozen=True, slots=True)
class _TopicWrite:
    """What the driver does for one batch."""

    options: TopicSinkOptions
    application_id: str

    def commit(self, messages: list[WriterCommitMessage | None], version: int) -> None:
        """Commit everything that the attempts staged, and relay it. Raises SegmentStoreError."""
        try:
            commit_stages(
                staging_plan(self.options, self.application_id),
                messages,
                application_id=self.application_id,
                version=version,
            )
        except NotFoundError:
            if any(isinstance(each, StagedCommitMessage) and each.stage_id for each in messages):
                raise
            return  # nothing was ever staged, so there is no stream
        with LoopRunner() as runner:
            runner.run(self._relay())

    async def _relay(self) -> None:
        async with connect_service(self.options) as store:
            relay = RecordRelay(
                store.stream(staging_stream(self.options, self.application_id)),
                kafka=self.options.kafka,
                application_id=self.application_id,
            )
            await relay.relay()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Throw away what was staged."""
        abort_stages(staging_plan(self.options, self.application_id), messages)

    def delete_staging(self) -> None:
        """Nothing will be written there any more."""
        with LoopRunner() as runner:
            runner.run(self._delete_staging())

    async def _delete_staging(self) -> None:
        async with connect_service(self.options) as store:
            stream = store.stream(staging_stream(self.options, self.application_id))
            with suppress(NotFoundError):
                await stream.seal()
                await stream.delete()


def settled_version_of(given: Mapping[str, str], transaction_app_id: str) -> int | None:
    """The newest txnVersion of an application whose rows are in their topics: None if there is none, or no such topic.

    What a commit left behind in the staging stream is sent on first. Raises InvalidRequestError, SegmentStoreError.
    """
    options = parse_topic_sink_options(given)
    with LoopRunner() as runner:
        return runner.run(_settled_version(options, transaction_app_id))


async def _settled_version(options: TopicSinkOptions, transaction_app_id: str) -> int | None:
    try:
        application_id = await _versioned_application(options, transaction_app_id)
    except TopicMissingError:
        return None
    async with connect_service(options) as store:
        stream = store.stream(staging_stream(options, application_id))
        version = await stream.staged().last_version(application_id)
        await RecordRelay(stream, kafka=options.kafka, application_id=application_id).relay()
        return version


def staging_stream(options: TopicSinkOptions, application_id: str) -> str:
    """`scope/stream` of what an application stages."""
    digest = hashlib.sha256(application_id.encode()).hexdigest()[:32]
    return f"{options.staging_scope}/topics-{digest}"


def staging_plan(options: TopicSinkOptions, application_id: str) -> SinkPlan:
    """Where the stages are, for what commits and aborts them."""
    return SinkPlan(
        controller=options.controller,
        stream=staging_stream(options, application_id),
        as_records=False,
        routing_key_column="key",
        lease_seconds=options.staging_lease_seconds,
        tls_authority=options.tls_authority,
        tls_server_name=options.tls_server_name,
    )


def _stage_rows(
    options: TopicSinkOptions,
    batches: Iterator[pa.RecordBatch],
    application_id: str,
    version: int,
    *,
    query_id: str = "",
) -> StagedCommitMessage:
    """Write all rows of one attempt. Raises SegmentStoreError, and what the iterator raises."""
    context = TaskContext.get()
    task = _StagingTask(
        options,
        application_id,
        version=version,
        query_id=query_id,
        first_partition=0 if context is None else context.partitionId(),
        wall_clock=SystemWallClock(),
    )
    with LoopRunner() as runner:
        return runner.run(task.run(batches, runner.executor))


class _StagingTask:
    """One attempt of one task."""

    def __init__(
        self,
        options: TopicSinkOptions,
        application_id: str,
        *,
        version: int,
        query_id: str,
        first_partition: int,
        wall_clock: WallClock,
    ) -> None:
        self._options = options
        self._stream = staging_stream(options, application_id)
        self._version = version
        self._query_id = query_id
        self._wall_clock = wall_clock
        self._encoder = RecordEncoder(topic=options.topic, first_partition=first_partition)
        self._targets: dict[str, TopicTarget] = {}
        self._rows = 0
        self._size = 0

    async def run(
        self, batches: Iterator[pa.RecordBatch], executor: Executor
    ) -> StagedCommitMessage:
        """All rows."""
        loop = asyncio.get_running_loop()
        batch = await loop.run_in_executor(executor, next, batches, None)
        while batch is not None and not len(batch):
            batch = await loop.run_in_executor(executor, next, batches, None)
        if batch is None:
            return StagedCommitMessage("", 0, 0, self._query_id)
        async with (
            TopicService(self._options.kafka) as service,
            connect_service(self._options) as store,
        ):
            await self._find_targets(service, batch)
            await _ensure_stream(store, self._stream)
            staged = store.stream(self._stream).staged()
            stage = await staged.begin(lease_seconds=self._options.staging_lease_seconds)
            try:
                async with stage:
                    while batch is not None:
                        await self._find_targets(service, batch)
                        for each in self._encoder.add(
                            batch, self._targets, now_ms=self._wall_clock.now_ms()
                        ):
                            await self._write(stage, each)
                        batch = await loop.run_in_executor(executor, next, batches, None)
                    for each in self._encoder.finish():
                        await self._write(stage, each)
            except BaseException:
                await abort_quietly(staged, stage.id)
                raise
        return StagedCommitMessage(stage.id, self._rows, self._size, self._query_id)

    async def _write(self, stage: Stage, batch: TargetBatch) -> None:
        slot = staging_slot(batch.topic, batch.partition, slots=len(stage.ranges))
        event = encode_staged(batch, self._version)
        await stage.write(stage.ranges[slot].segment_id, event, events=1)
        self._rows += batch.records
        self._size += len(event)

    async def _find_targets(self, service: TopicService, batch: pa.RecordBatch) -> None:
        """Of the topics that were not met before. Raises TopicMissingError."""
        for name in topics_of(batch, topic=self._options.topic):
            if name in self._targets:
                continue
            partitions, config = await service.partitions_and_config(name)
            limit = config.get("max.message.bytes", "")
            self._targets[name] = TopicTarget(
                partitions=partitions,
                batch_bytes_max=int(limit) if limit.isdigit() else _DEFAULT_BATCH_BYTES_MAX,
                compression=compression_of_config(config),
            )


async def _ensure_stream(store: Store, name: str) -> None:
    """Other tasks may be faster."""
    stream = store.stream(name)
    try:
        await stream.config()
    except NotFoundError:
        with suppress(AlreadyExistsError):
            await store.scope(stream.name.scope).create()
        with suppress(AlreadyExistsError):
            await stream.create(StreamConfig(scaling=ScalingPolicy.fixed(_STAGING_SEGMENTS)))
