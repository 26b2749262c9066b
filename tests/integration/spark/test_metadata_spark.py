"""The metadata tables through real Spark: each is found by its name, and answers SQL."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from segmentstore.spark.metadata_tables.table_schemas import TABLES
from tests.integration.spark.live_streams import LiveStreams, live_streams, numbered

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveStreams]:
    with live_streams(tmp_path_factory.mktemp("metadata")) as store:
        store.create("plant/readings", segments=2)
        store.write("plant/readings", numbered("a", 200))
        store.scale("plant/readings", 1)
        store.flush()
        yield store


@pytest.mark.parametrize("table", TABLES)
def test_a_metadata_table_is_a_view_in_sql(
    spark: SparkSession, live: LiveStreams, table: str
) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW found USING segmentstore"
        f" OPTIONS (tier2 '{live.place}', mode 'offline', metadata '{table}', scope 'plant')"
    )
    rows = spark.sql("SELECT * FROM found").collect()
    expected = {"streams": 1, "segments": 3, "transactions": 0, "readerGroups": 0}
    assert len(rows) == expected.get(table, len(rows))
    assert set(spark.table("found").columns) == {name for name, _ in TABLES[table]}


def test_chunks_add_up_to_what_the_stream_says_it_holds(
    spark: SparkSession, live: LiveStreams
) -> None:
    options = {"tier2": live.place, "mode": "offline", "stream": "plant/readings"}
    source = spark.read.format("segmentstore").options(**options)
    stream = source.option("metadata", "streams").load().first()
    chunks = source.option("metadata", "chunks").load()
    total = chunks.selectExpr("sum(end_offset - start_offset) as bytes").first()
    assert stream is not None
    assert total is not None
    assert total["bytes"] == stream["bytes"]
