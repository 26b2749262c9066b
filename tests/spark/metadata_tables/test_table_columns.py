import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.metadata_tables.table_schemas import (
    TABLES,
    arrow_schema_of,
    metadata_schema,
    table_named,
)


@pytest.mark.parametrize("table", TABLES)
def test_what_is_sent_is_what_spark_is_told(table: str) -> None:
    sent = arrow_schema_of(table)
    told = from_arrow_schema(sent)
    assert to_arrow_schema(told, timezone="UTC") == sent
    words = ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in told)
    assert metadata_schema(table) == words


@pytest.mark.parametrize("table", TABLES)
def test_a_row_without_values_is_a_row(table: str) -> None:
    batch = pa.RecordBatch.from_pylist([{}], schema=arrow_schema_of(table))
    assert batch.num_rows == 1


def test_tables_are_named_in_any_case() -> None:
    assert [table_named(word) for word in ("STREAMS", "readergroups")] == [
        "streams",
        "readerGroups",
    ]


def test_an_unknown_table_is_refused_with_the_names_of_all() -> None:
    with pytest.raises(InvalidRequestError, match="chunks, transactions, readerGroups"):
        metadata_schema("indexes")
