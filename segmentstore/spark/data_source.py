"""The data source `segmentstore` as Spark sees it. What it makes lives in files of its own, imported when needed."""

from dataclasses import replace
from functools import cached_property

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.options import SourceOptions, parse_options
from segmentstore.spark.python_worker import freeze_imports
from segmentstore.spark.schema import arrow_schema, parse_columns, spark_schema
from segmentstore.spark.topics.topic_columns import (
    TOPIC_COLUMNS,
    topic_arrow_schema,
    topic_spark_schema,
)
from segmentstore.spark.topics.topic_options import (
    TopicReadOptions,
    names_topics,
    parse_topic_options,
    writes_topics,
)


class SegmentStoreDataSource(DataSource):
    """`spark.read.format("segmentstore")` and its three siblings."""

    @classmethod
    def name(cls) -> str:
        return "segmentstore"

    def schema(self) -> str:
        """The columns asked for, or those of a metadata table."""
        if names_topics(self.options):
            freeze_imports()
            return topic_spark_schema(self._topic_options.columns)
        options = self._read_options
        if options.metadata:
            from segmentstore.spark.metadata_tables.table_schemas import metadata_schema

            return metadata_schema(options.metadata)
        freeze_imports()
        return spark_schema(options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        if names_topics(self.options):
            from segmentstore.spark.topics.topic_batch_reader import TopicBatchReader

            return TopicBatchReader(_of_topic_schema(self._topic_options, schema))
        options = self._read_options
        if options.metadata:
            from segmentstore.spark.metadata_tables.metadata_reader import MetadataReader

            return MetadataReader(options)
        from segmentstore.spark.scan.batch_reader import BatchReader

        return BatchReader(_of_schema(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        if names_topics(self.options):
            from segmentstore.spark.topics.topic_stream_reader import TopicStreamReader

            return TopicStreamReader(_of_topic_schema(self._topic_options, schema))
        from segmentstore.spark.streaming.stream_reader import SegmentStoreStreamReader

        return SegmentStoreStreamReader(_of_schema(self._read_options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if writes_topics(self.options):
            from segmentstore.spark.topics.topic_writer import make_topic_batch_writer

            return make_topic_batch_writer(self.options, schema, overwrite)
        from segmentstore.spark.sink.writer import make_batch_writer

        return make_batch_writer(self.options, schema, overwrite)

    def streamWriter(  # noqa: N802  # Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        if writes_topics(self.options):
            from segmentstore.spark.topics.topic_writer import make_topic_stream_writer

            return make_topic_stream_writer(self.options, schema, overwrite)
        from segmentstore.spark.sink.writer import make_stream_writer

        return make_stream_writer(self.options, schema, overwrite)

    @cached_property
    def _read_options(self) -> SourceOptions:
        return parse_options(self.options)

    @cached_property
    def _topic_options(self) -> TopicReadOptions:
        return parse_topic_options(self.options)


def _of_schema(options: SourceOptions, schema: StructType) -> SourceOptions:
    """A schema that the user gave chooses columns, as the option does. Raises InvalidRequestError."""
    names = tuple(schema.names)
    if names == options.columns:
        return options
    columns = parse_columns(",".join(names), options.known_columns)
    _check_types(schema, arrow_schema(columns))
    return replace(options, columns=columns)


def _of_topic_schema(options: TopicReadOptions, schema: StructType) -> TopicReadOptions:
    """As _of_schema. Raises InvalidRequestError."""
    names = tuple(schema.names)
    if names == options.columns:
        return options
    columns = parse_columns(",".join(names), TOPIC_COLUMNS)
    _check_types(schema, topic_arrow_schema(columns))
    return replace(options, columns=columns)


def _check_types(given: StructType, own: pa.Schema) -> None:
    """Raises InvalidRequestError."""
    expected = from_arrow_schema(own)
    if [field.dataType for field in expected.fields] != [field.dataType for field in given.fields]:
        raise InvalidRequestError(
            f"a schema has the source's own types expected={expected.simpleString()} given={given.simpleString()}"
        )
