from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from segmentstore.spark.schema import BYTES_COLUMNS, EVENT_COLUMNS, arrow_schema, spark_schema


def test_arrow_and_spark_mean_the_same_types() -> None:
    for columns in (EVENT_COLUMNS, BYTES_COLUMNS, ("offset",), ("headers", "key")):
        schema = from_arrow_schema(arrow_schema(columns))
        fields = [field.replace(" ", ":", 1) for field in spark_schema(columns).split(", ")]
        assert schema.simpleString() == f"struct<{','.join(fields)}>"
        assert to_arrow_schema(schema, timezone="UTC").equals(arrow_schema(columns))
