"""Writes through real Spark: each batch once, whatever is repeated."""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from tests.integration.pravega_clients.store_process import StoreProcess
from tests.integration.spark.sink_runs import events_in, make_stream, scale_to, stream_config
from tier2.format.records import decode_records

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ROWS = 1000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    with StoreProcess(tmp_path_factory.mktemp("sink") / "data") as server:
        yield server


def numbers(spark: SparkSession, name: str, partitions: int = 4) -> DataFrame:
    """Rows with a key and a value that tells where it comes from."""
    rows = spark.range(0, ROWS, 1, partitions)
    return rows.selectExpr("cast(id % 17 as string) as key", f"concat('{name} ', id) as value")


def expected(*names: str) -> "Counter[bytes]":
    return Counter(f"{name} {n}".encode() for name in names for n in range(ROWS))


def write(frame: DataFrame, server: StoreProcess, stream: str, **options: str) -> None:
    writer = frame.write.format("segmentstore").mode("append")
    writer.options(controller=server.uri, stream=f"s/{stream}", **options).save()


def test_a_batch_is_appended_once_for_each_version(
    spark: SparkSession, server: StoreProcess
) -> None:
    make_stream(server.uri, "s/batch", segments=3)
    write(numbers(spark, "plain"), server, "batch")
    write(numbers(spark, "plain"), server, "batch")
    for name, version in (("first", "5"), ("again", "5"), ("next", "6")):
        write(numbers(spark, name), server, "batch", txnAppId="job", txnVersion=version)
    assert events_in(server.uri, "s/batch") == expected("plain", "plain", "first", "next")


def test_what_was_written_is_numbered_and_read_back_with_its_columns(
    spark: SparkSession, server: StoreProcess
) -> None:
    options = {"createIfMissing": "true", "segments": "2", "content": "record"}
    for name in ("a", "b"):
        write(numbers(spark, name), server, "there", **options)
    rows = (
        spark.read.format("segmentstore")
        .option("tier2", str(server.data_directory))
        .option("controller", server.uri)
        .option("stream", "s/there")
        .load()
        .select("segment_id", "event_number", "key", "value")
        .collect()
    )
    assert Counter(bytes(row.value) for row in rows) == expected("a", "b")
    for segment_id in range(2):
        counted = sorted(row.event_number for row in rows if row.segment_id == segment_id)
        assert counted == list(range(len(counted)))
    # What was read from one stream is written to another as it is.
    copied = spark.read.format("segmentstore").option("tier2", str(server.data_directory))
    copied = copied.option("controller", server.uri).option("stream", "s/there")
    write(copied.load(), server, "copy", **options)
    records = [
        record for event in events_in(server.uri, "s/copy") for record in decode_records(event)
    ]
    assert Counter(record.value for record in records) == expected("a", "b")
    keys = {record.value: record.key for record in records}
    assert all(keys[bytes(row.value)] == bytes(row.key) for row in rows)


def test_a_job_that_fails_leaves_nothing_and_may_be_run_again(
    spark: SparkSession, server: StoreProcess
) -> None:
    make_stream(server.uri, "s/broken", segments=2)

    broken = numbers(spark, "a").selectExpr(
        "key", "if(value = 'a 999', cast(raise_error('the last row') as string), value) as value"
    )
    with pytest.raises(PySparkException):
        write(broken, server, "broken", txnAppId="job", txnVersion="1")
    assert events_in(server.uri, "s/broken") == Counter()
    write(numbers(spark, "a"), server, "broken", txnAppId="job", txnVersion="1")
    assert events_in(server.uri, "s/broken") == expected("a")


def test_a_stream_of_records_is_created_and_holds_them(
    spark: SparkSession, server: StoreProcess
) -> None:
    moment = datetime(2026, 11, 21, 12, 0, 0, 123_000, UTC)
    frame = spark.createDataFrame(
        [
            Row(key=b"k", value=b"v", timestamp=moment, headers=[Row(name="h", value=b"1")]),
            Row(key=None, value=b"w", timestamp=None, headers=None),
        ],
        "key binary, value binary, timestamp timestamp, "
        "headers array<struct<name:string,value:binary>>",
    )
    write(frame, server, "records", createIfMissing="true", segments="2", content="record")
    records = {
        record.value or b"": record
        for event in events_in(server.uri, "s/records")
        for record in decode_records(event)
    }
    assert sorted(records) == [b"v", b"w"]
    assert records[b"v"].key == b"k"
    assert records[b"v"].timestamp_ms == int(moment.timestamp() * 1000)
    assert records[b"v"].headers == (("h", b"1"),)
    assert records[b"w"].headers == ()
    assert stream_config(server.uri, "s/records").scaling.segments_min == 2


def test_what_cannot_be_written_is_said_before_anything_is(
    spark: SparkSession, server: StoreProcess
) -> None:
    make_stream(server.uri, "s/refused", segments=1)
    frame = numbers(spark, "a")
    with pytest.raises(PySparkException, match="rows have columns that are not written"):
        write(frame.selectExpr("value", "key as sensor"), server, "refused")
    with pytest.raises(PySparkException, match="txnAppId and txnVersion go together"):
        write(frame, server, "refused", txnAppId="job")
    with pytest.raises(PySparkException, match="only appended to"):
        frame.write.format("segmentstore").mode("overwrite").options(
            controller=server.uri, stream="s/refused"
        ).save()
    assert events_in(server.uri, "s/refused") == Counter()


class FileQuery:
    """A streaming query that writes lines of files, one file in each micro-batch."""

    def __init__(
        self, spark: SparkSession, server: StoreProcess, directory: Path, stream: str
    ) -> None:
        self.spark = spark
        self.server = server
        self.input = directory / "input"
        self.checkpoint = directory / "checkpoint"
        self.stream = stream
        self.input.mkdir()

    def add(self, name: str, rows: int = 100) -> None:
        (self.input / name).write_text("".join(f"{name} {n}\n" for n in range(rows)))

    def run(self) -> None:
        lines = self.spark.readStream.format("text").option("maxFilesPerTrigger", 1)
        frame = lines.load(str(self.input)).selectExpr(
            "value", "cast(length(value) as string) as key"
        )
        query = (
            frame.writeStream.format("segmentstore")
            .option("controller", self.server.uri)
            .option("stream", self.stream)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def batches(self) -> list[int]:
        """Those that Spark has written down as committed."""
        return sorted(int(each.name) for each in self._commits() if each.name.isdigit())

    def lose_last_commit(self) -> None:
        """As if the driver had died between the sink's commit and Spark's."""
        last = self.batches()[-1]
        for each in self._commits():
            if each.name in (str(last), f".{last}.crc"):
                each.unlink()

    def query_id(self) -> str:
        found: str = json.loads((self.checkpoint / "metadata").read_text())["id"]
        return found

    def _commits(self) -> list[Path]:
        return list((self.checkpoint / "commits").iterdir())


def lines(*names: str) -> "Counter[bytes]":
    return Counter(f"{name} {n}".encode() for name in names for n in range(100))


def test_a_micro_batch_that_is_replayed_behind_its_commit_is_there_once(
    spark: SparkSession, server: StoreProcess, tmp_path: Path
) -> None:
    make_stream(server.uri, "s/lines", segments=2)
    query = FileQuery(spark, server, tmp_path, "s/lines")
    for name in ("a", "b"):
        query.add(name)
    query.run()
    assert query.batches() == [0, 1]
    query.lose_last_commit()
    # The batch is replayed into segments that did not exist when it was committed.
    scale_to(server.uri, "s/lines", 3)
    query.add("c")
    query.run()
    assert query.batches() == [0, 1, 2]
    assert events_in(server.uri, "s/lines") == lines("a", "b", "c")
    query.lose_last_commit()
    query.run()
    assert events_in(server.uri, "s/lines") == lines("a", "b", "c")
