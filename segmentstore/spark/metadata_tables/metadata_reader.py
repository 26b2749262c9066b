"""Reads the metadata tables. Everything is looked up on the executors; what can be divided is read by container.

Invariants:

- `chunks`, `transactions` and `readerGroups` come from Tier 2 alone: what was not flushed is not in them.
- `streams` and `segments` come from the service or from Tier 2, as the options allow; so does the data itself.
- Options that name a scope, a stream or a segment choose rows; without them every scope is shown.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from segmentstore.codec.controller_records.record_keys import TRANSACTIONS_TABLE
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.metadata_tables.table_rows import (
    Row,
    StreamRecords,
    chunk_rows,
    published_segment_row,
    reader_group_rows,
    records_of,
    stream_columns,
    stream_row,
    stream_segment_row,
    transaction_rows,
)
from segmentstore.spark.metadata_tables.table_schemas import arrow_schema_of, table_named
from segmentstore.spark.options import SourceOptions
from segmentstore.spark.python_worker import LoopRunner
from segmentstore.spark.streams.segment_graph import StreamMetadata, StreamMissingError
from segmentstore.spark.streams.stream_source import StreamSource, open_stream_source
from segmentstore.spark.streams.tier2_catalog import Tier2StreamCatalog, Tier2Table
from segmentstore.spark.tier2_access import Tier2Reader

_BATCH_ROWS: Final = 4_096
_FROM_TIER_2_ALONE: Final = ("chunks", "transactions", "readerGroups")


@dataclass(frozen=True)
class MetadataPartition(InputPartition):
    """What one task looks up."""

    container_id: int | None = None
    """None: everything at once."""


class MetadataReader(DataSourceReader):
    """One table of one read. Raises StreamMissingError, StorageError, ClientError."""

    def __init__(self, options: SourceOptions) -> None:
        """Raises InvalidRequestError for a table that there is not, or that cannot be read from there."""
        self._options = options
        self._table = table_named(options.metadata)
        if self._table in _FROM_TIER_2_ALONE and not options.tier2:
            raise InvalidRequestError(
                f"metadata={self._table} is read from Tier 2: say with tier2 where that is"
            )

    def partitions(self) -> list[InputPartition]:
        if self._table != "chunks" or self._options.segment:
            return [MetadataPartition()]
        with LoopRunner() as runner:
            return [MetadataPartition(each) for each in runner.run(self._containers(runner))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        container_id = getattr(partition, "container_id", None)
        schema = arrow_schema_of(self._table)
        with LoopRunner() as runner:
            rows: list[Row] = []
            for row in runner.iterate(self._rows(runner, container_id)):
                rows.append(row)
                if len(rows) == _BATCH_ROWS:
                    yield pa.RecordBatch.from_pylist(rows, schema=schema)
                    rows = []
            if rows:
                yield pa.RecordBatch.from_pylist(rows, schema=schema)

    async def _containers(self, runner: LoopRunner) -> list[int]:
        async with open_stream_source(self._options, executor=runner.executor) as source:
            assert source.view is not None, "chunks without Tier 2"
            return list(range(source.view.container_count))

    async def _rows(
        self, runner: LoopRunner, container_id: int | None
    ) -> AsyncGenerator[Row, None]:
        async with open_stream_source(self._options, executor=runner.executor) as source:
            rows = MetadataRows(self._options, source)
            async with aclosing(rows.of(self._table, container_id)) as found:
                async for row in found:
                    yield row


class MetadataRows:
    """The rows that the options choose, of any table."""

    def __init__(self, options: SourceOptions, source: StreamSource) -> None:
        self._options = options
        self._source = source

    def of(self, table: str, container_id: int | None) -> AsyncGenerator[Row, None]:
        """Hold it in `aclosing`. `container_id` chooses a container where that is possible."""
        match table:
            case "streams":
                return self._streams()
            case "segments":
                return self._segments()
            case "chunks":
                return self._chunks(container_id)
            case "transactions":
                return self._transactions()
            case _:
                assert table == "readerGroups", f"a table without rows table={table!r}"
                return self._reader_groups()

    async def _streams(self) -> AsyncGenerator[Row, None]:
        published = None if self._source.view is None else Tier2StreamCatalog(self._source.view)
        async with aclosing(self._maps()) as maps:
            async for stream in maps:
                records = StreamRecords()
                if published is not None:
                    # The service may know of a scope that Tier 2 does not have yet.
                    with suppress(StreamMissingError):
                        records = await records_of(published, stream.scope, stream.stream)
                yield stream_row(stream, records)

    async def _segments(self) -> AsyncGenerator[Row, None]:
        options, view = self._options, self._source.view
        if not options.segment:
            async with aclosing(self._maps()) as maps:
                async for stream in maps:
                    for segment in stream.segments:
                        record = None if view is None else await view.find(segment.name)
                        yield stream_segment_row(stream, segment, record)
        if view is None or options.scope:
            return
        async with aclosing(view.list_segments(options.segment)) as records:
            async for found in records:
                # Without a name only those that no stream has: the others stand above.
                wanted = found.name == options.segment or not options.segment
                if wanted and (options.segment or not stream_columns(found.name)):
                    yield published_segment_row(found, container_id=view.container_id(found.name))

    async def _chunks(self, container_id: int | None) -> AsyncGenerator[Row, None]:
        options, view = self._options, self._tier2()
        if options.segment:
            container = await view.container(view.container_id(options.segment))
            found = None if container is None else await container.find(options.segment)
            if container is not None and found is not None:
                async with aclosing(chunk_rows(container, found)) as rows:
                    async for row in rows:
                        yield row
            return
        numbers = range(view.container_count) if container_id is None else [container_id]
        prefix = "/".join(part for part in (options.scope, options.stream) if part)
        for number in numbers:
            container = await view.container(number)
            if container is None:
                continue
            async with aclosing(container.list_segments(prefix, "")) as records:
                async for record in records:
                    name = record.name
                    if prefix and name != prefix and not name.startswith(f"{prefix}/"):
                        continue
                    async with aclosing(chunk_rows(container, record)) as rows:
                        async for row in rows:
                            yield row

    async def _transactions(self) -> AsyncGenerator[Row, None]:
        view, options = self._tier2(), self._options
        container = await view.container(view.container_id(TRANSACTIONS_TABLE))
        if container is None:
            return
        table = Tier2Table(container=container, name=TRANSACTIONS_TABLE)
        async with aclosing(
            transaction_rows(table, scope=options.scope, stream=options.stream)
        ) as rows:
            async for row in rows:
                yield row

    async def _reader_groups(self) -> AsyncGenerator[Row, None]:
        published, options = Tier2StreamCatalog(self._tier2()), self._options
        for scope in [options.scope] if options.scope else await published.scopes():
            async with aclosing(
                reader_group_rows(published, scope=scope, stream=options.stream)
            ) as rows:
                async for row in rows:
                    yield row

    async def _maps(self) -> AsyncGenerator[StreamMetadata, None]:
        options, source = self._options, self._source
        for scope in [options.scope] if options.scope else await source.scopes():
            for stream in [options.stream] if options.stream else await source.streams(scope):
                try:
                    found = await source.stream_metadata(scope, stream)
                except StreamMissingError:
                    if options.stream:
                        raise
                    # Deleted since it was listed.
                    continue
                yield found

    def _tier2(self) -> Tier2Reader:
        assert self._source.view is not None, f"no Tier 2 {self._options}"
        return self._source.view
