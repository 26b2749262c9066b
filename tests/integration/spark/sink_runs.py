"""Runs the writers of the sink as Spark does: pickled to tasks, pickled messages back, another copy commits."""

import asyncio
import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, StructField, StructType

from segmentstore.client import ScalingPolicy, StreamConfig, connect
from segmentstore.spark.sink.writer import make_batch_writer

KEYED = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])


class TaskFailedError(Exception):
    """What happens to tasks."""


def batch_of(rows: Sequence[tuple[bytes | None, bytes]]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "key": pa.array([key for key, _ in rows], pa.binary()),
            "value": pa.array([value for _, value in rows], pa.binary()),
        }
    )


def rows_named(name: str, count: int) -> list[tuple[bytes | None, bytes]]:
    """Rows with values that tell where they come from."""
    return [(b"key %d" % (n % 17), f"{name} {n}".encode()) for n in range(count)]


def failing(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """All of them, and then a failure."""
    yield from batches
    raise TaskFailedError


def writer_for(options: Mapping[str, str]) -> DataSourceArrowWriter:
    return make_batch_writer(options, KEYED, False)


def task(writer: DataSourceArrowWriter, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
    copy: DataSourceArrowWriter = pickle.loads(pickle.dumps(writer))
    message: WriterCommitMessage = pickle.loads(pickle.dumps(copy.write(batches)))
    return message


def commit(writer: DataSourceArrowWriter, messages: Sequence[WriterCommitMessage | None]) -> None:
    copy: DataSourceArrowWriter = pickle.loads(pickle.dumps(writer))
    copy.commit(list(messages))


def abort(writer: DataSourceArrowWriter, messages: Sequence[WriterCommitMessage | None]) -> None:
    copy: DataSourceArrowWriter = pickle.loads(pickle.dumps(writer))
    copy.abort(list(messages))


def events_in(controller: str, stream: str) -> "Counter[bytes]":
    """Every event that a reader finds now."""
    return asyncio.run(_events_in(controller, stream))


async def _events_in(controller: str, stream: str) -> "Counter[bytes]":
    found: Counter[bytes] = Counter()
    async with connect(controller) as store:
        target = store.stream(stream)
        async with target.read(stop_at=await target.tail()) as events:
            async for event in events:
                found[event.data] += 1
    return found


def make_stream(controller: str, stream: str, *, segments: int) -> None:
    asyncio.run(_make_stream(controller, stream, segments))


def scale_to(controller: str, stream: str, segments: int) -> None:
    asyncio.run(_scale_to(controller, stream, segments))


def stream_config(controller: str, stream: str) -> StreamConfig:
    return asyncio.run(_stream_config(controller, stream))


async def _stream_config(controller: str, stream: str) -> StreamConfig:
    async with connect(controller) as store:
        return await store.stream(stream).config()


async def _make_stream(controller: str, stream: str, segments: int) -> None:
    async with connect(controller) as store:
        scope = stream.split("/")[0]
        if scope not in await store.scopes():
            await store.scope(scope).create()
        await store.stream(stream).create(StreamConfig(scaling=ScalingPolicy.fixed(segments)))


async def _scale_to(controller: str, stream: str, segments: int) -> None:
    async with connect(controller) as store:
        await store.stream(stream).scale_to(segments)
