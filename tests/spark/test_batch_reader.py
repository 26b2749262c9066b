import pickle

import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSourceReader, EqualTo, InputPartition
from pyspark.sql.types import LongType, StringType, StructField, StructType

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.data_source import SegmentStoreDataSource
from segmentstore.spark.options import parse_options
from segmentstore.spark.scan.batch_reader import BatchReader
from segmentstore.spark.scan.data_loss import DataLossError
from segmentstore.spark.scan.scan_planner import PushedBounds
from tests.spark.segment_blocks import part_of

OPTIONS = {"tier2": "/nowhere", "stream": "plant/readings"}


def test_spark_takes_the_filters_for_not_overridden_and_still_hands_them_over() -> None:
    reader = BatchReader(parse_options(OPTIONS))
    # What Spark 4.3 looks at before it refuses a reader whose pushed filters are turned off.
    assert getattr(reader.pushFilters, "__func__", None) is DataSourceReader.pushFilters
    filters = [EqualTo(("segment_id",), 3)]
    assert reader.pushFilters(list(filters)) == filters
    assert reader.bounds == PushedBounds(segment_ids=frozenset({3}))


def test_readers_ranges_and_errors_travel_by_pickle() -> None:
    pickled = cloudpickle.dumps(BatchReader(parse_options(OPTIONS)))  # type: ignore[no-untyped-call]  # not ours
    reader = pickle.loads(pickled)
    assert isinstance(reader, BatchReader)
    part = part_of(3, 9)
    assert pickle.loads(pickle.dumps(part)) == part
    error = DataLossError("s/t/0", start=1, end=2, head=3, tail=4)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.head) == (str(error), 3)


def test_the_partition_that_spark_makes_up_where_there_are_none_has_no_rows() -> None:
    reader = BatchReader(parse_options(OPTIONS))
    assert list(reader.read(InputPartition(None))) == []


def test_a_schema_given_by_the_user_chooses_columns_and_may_not_change_their_types() -> None:
    source = SegmentStoreDataSource(OPTIONS)
    assert source.schema().startswith("key binary, value binary")
    offsets = StructType([StructField("offset", LongType()), StructField("stream", StringType())])
    assert isinstance(source.reader(offsets), BatchReader)
    for schema in (
        StructType([StructField("offset", StringType())]),
        StructType([StructField("position", LongType())]),
    ):
        with pytest.raises(InvalidRequestError):
            source.reader(schema)


def test_the_source_is_found_by_the_name_that_spark_looks_for() -> None:
    from pyspark_segmentstore import DefaultSource

    assert DefaultSource.name() == "segmentstore"
