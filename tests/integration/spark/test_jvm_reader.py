"""The Java reader beside the Python one: the same streams, the same options, the same rows."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from segmentstore.client import ScalingPolicy, Store, StreamConfig
from segmentstore.spark.java_build import jvm_jar
from segmentstore.spark.options import RECORD_TAG
from tests.integration.spark.test_batch_reads import STREAM, Input, place_of
from tests.spark.live_store import LiveStore, live_store
from tests.tier2.object_stores.s3.conftest import bucket, credentials, moto_url
from tier2.format.records import Record, encode_records

__all__ = ["bucket", "credentials", "moto_url"]

pytestmark = [pytest.mark.integration, pytest.mark.slow]

STALE_PLANNER = Path(__file__).with_name("stale_planner.py")


@pytest.fixture(scope="module", autouse=True)
def jar(spark: SparkSession) -> None:
    spark.sql(f"ADD JAR {jvm_jar()}")


def frame_of(
    spark: SparkSession, form: str, live: LiveStore, options: Mapping[str, str]
) -> DataFrame:
    words = {"tier2": live.tier2, "stream": STREAM} | dict(options)
    return spark.read.format(form).options(**words).load()


def rows_of(frame: DataFrame) -> list[Row]:
    """All columns of all rows, in the order of the stream."""
    return frame.sort("segment_id", "offset").collect()


def both(spark: SparkSession, live: LiveStore, options: Mapping[str, str]) -> list[Row]:
    """The rows, which are the same from either reader."""
    ours = frame_of(spark, "segmentstore-jvm", live, options)
    theirs = frame_of(spark, "segmentstore", live, options)
    assert ours.schema == theirs.schema
    found = rows_of(ours)
    assert found == rows_of(theirs)
    return found


@pytest.mark.parametrize("kind", ["filesystem", "volumes", "s3"])
def test_raw_events_are_those_of_the_python_reader(
    spark: SparkSession,
    tmp_path: Path,
    kind: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind, options = place_of(kind, request, monkeypatch)
    given = Input()
    with live_store(tmp_path, tier2=kind) as live:
        live.do(given.fill)
        live.flush_stream(STREAM, given.segment_ids)
        live.do(lambda store: given.write(store, given.made(300)))
        with_tail = both(spark, live, options | {"controller": live.controller})
        assert sorted(row[1] for row in with_tail) == sorted(given.events)
        assert len(both(spark, live, options)) == len(given.events) - 300
        live.flush_stream(STREAM, given.segment_ids)
        live.server.kill()
        offline = options | {"mode": "offline", "maxBytesPerPartition": "128k"}
        # What was flushed meanwhile has times of its own now; all else is as it was.
        assert [row[:7] for row in both(spark, live, offline)] == [row[:7] for row in with_tail]


def records() -> Iterator[bytes]:
    random = Random(11)
    for number in range(500):
        headers = tuple(
            (f"name-{each}".encode(), random.randbytes(each * 3)) for each in range(number % 4)
        )
        record = Record(
            offset=0,
            timestamp_ms=1_700_000_000_000 + number * 1000 if number % 7 else -number,
            key=b"key-%d" % number if number % 5 else b"",
            value=random.randbytes(random.choice((0, 1, 200, 5000))),
            headers=headers,
        )
        yield encode_records([record])


@pytest.mark.parametrize("codec", ["lz4", "zstd", "none"])
def test_records_are_those_of_the_python_reader(
    spark: SparkSession, tmp_path: Path, codec: str
) -> None:
    async def fill(store: Store) -> None:
        await store.scope("plant").create()
        stream = store.stream(STREAM)
        await stream.create(StreamConfig(ScalingPolicy.fixed(2), tags=(RECORD_TAG,)))
        async with stream.writer() as writer:
            for number, event in enumerate(records()):
                await writer.write(event, key=str(number))
            # Something for the codec to do: noise alone is stored as it is.
            for number in range(500):
                await writer.write(encode_records([Record(0, number, b"k", bytes(2000))]))

    with live_store(tmp_path, options=["--set", f"tier2.codec={codec}"]) as live:
        live.do(fill)
        live.flush_stream(STREAM, [0, 1])
        rows = both(spark, live, {})
        assert len(rows) == 1000
        assert any(row[8] for row in rows)
        narrow = frame_of(spark, "segmentstore-jvm", live, {}).select("headers", "timestamp")
        assert narrow.filter("headers is not null").count() == sum(
            row[8] is not None for row in rows
        )


def test_bytes_without_events_are_those_of_the_python_reader(
    spark: SparkSession, tmp_path: Path
) -> None:
    content = Random(3).randbytes(3_000_000)
    name = "logs/file"
    with live_store(tmp_path) as live:
        for at in range(0, len(content), 700_000):
            live.append(name, content[at : at + 700_000])
        live.flush(name)
        words = {"tier2": live.tier2, "segment": name, "content": "bytes"}
        words["maxBytesPerPartition"] = "1m"
        frame = spark.read.format("segmentstore-jvm").options(**words).load()
        rows = frame.sort("offset").collect()
        assert b"".join(bytes(row["bytes"]) for row in rows) == content
        assert {row["segment"] for row in rows} == {name}
        at = 0
        for row in rows:
            assert row["offset"] == at
            at += len(row["bytes"])


def test_columns_filters_and_limits_are_left_to_the_source(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = Input()
    with live_store(tmp_path) as live:
        live.do(given.fill)
        live.flush_stream(STREAM, given.segment_ids)
        small = {"maxBytesPerPartition": "128k"}
        whole = frame_of(spark, "segmentstore-jvm", live, small)
        every = rows_of(whole)
        chosen = given.segment_ids[3]
        times = sorted(row[7] for row in every if row[4] == chosen)
        for text in (
            f"segment_id = {chosen}",
            f"segment_id IN ({chosen}, {given.segment_ids[0]}) AND offset >= 5000 AND offset < 90000",
            f"timestamp > timestamp'{times[len(times) // 2]}'",
            f"timestamp <= timestamp'{times[0]}' AND offset != 0",
        ):
            ours = whole.where(text)
            theirs = frame_of(spark, "segmentstore", live, small).where(text)
            assert rows_of(ours) == rows_of(theirs)
        narrow = whole.where(f"segment_id = {chosen}").select("offset")
        assert narrow.rdd.getNumPartitions() < whole.rdd.getNumPartitions()
        narrow.explain()
        plan = capfd.readouterr().out
        assert "columns=[segment_id, offset]" in plan or "columns=[offset, segment_id]" in plan
        assert f"[segment_id, =, [{chosen}]]" in plan
        assert whole.count() == len(every)
        assert whole.limit(7).count() == 7
        assert whole.limit(3).collect() == every[:3]


def test_options_are_refused_in_the_words_of_the_python_source(spark: SparkSession) -> None:
    form = "segmentstore-jvm"
    with pytest.raises(PySparkException, match="unknown option colour"):
        spark.read.format(form).options(tier2="/", stream="a/b", colour="red").load()
    with pytest.raises(PySparkException, match="metadata tables are those of the format"):
        spark.read.format(form).options(tier2="/", scope="a", metadata="streams").load()


def test_a_table_of_the_catalog_and_a_view_bring_their_options(
    spark: SparkSession, tmp_path: Path
) -> None:
    given = Input()
    with live_store(tmp_path) as live:
        live.do(given.fill)
        live.flush_stream(STREAM, given.segment_ids)
        options = f"OPTIONS (tier2 '{live.tier2}', stream '{STREAM}')"
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW readings USING `segmentstore-jvm` {options}")
        (counted,) = spark.sql("SELECT count(*) FROM readings").collect()
        assert counted[0] == len(given.events)
        spark.catalog.dropTempView("readings")


def planner(tmp_path: Path, *arguments: str) -> str:
    """A program that Java takes for an interpreter: it runs the stale planner whatever it is asked to run."""
    program = tmp_path / "-".join(["planner", *arguments])
    program.write_text(f"#!/bin/sh\nexec {sys.executable} {STALE_PLANNER} {' '.join(arguments)}\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize("kind", ["filesystem", "volumes"])
def test_h8_a_place_that_vanished_after_planning_is_looked_up_again(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    given = Input()
    with live_store(tmp_path, tier2=kind) as live:
        live.do(given.fill)
        live.flush_stream(STREAM, given.segment_ids)
        # What a living owner wrote to volumes is seen up to a second late.
        live.server.kill()
        expected = both(spark, live, {})
        stale = frame_of(spark, "segmentstore-jvm", live, {"python": planner(tmp_path)})
        assert rows_of(stale) == expected
        gone = frame_of(spark, "segmentstore-jvm", live, {"python": planner(tmp_path, "for-ever")})
        with pytest.raises(Py4JJavaError, match="what the current layout names cannot be read"):
            rows_of(gone)


def test_a_damaged_block_is_an_error_and_never_a_row(spark: SparkSession, tmp_path: Path) -> None:
    given = Input()
    with live_store(tmp_path) as live:
        live.do(given.fill)
        live.flush_stream(STREAM, given.segment_ids)
        live.server.kill()
        chunks = sorted(
            (path for path in Path(live.tier2).rglob("chunks/*")),
            key=lambda path: path.stat().st_size,
        )
        content = bytearray(chunks[-1].read_bytes())
        content[len(content) // 2] ^= 1
        chunks[-1].chmod(0o644)
        chunks[-1].write_bytes(content)
        with pytest.raises(Py4JJavaError, match="block fails its checksum"):
            rows_of(frame_of(spark, "segmentstore-jvm", live, {"mode": "offline"}))
