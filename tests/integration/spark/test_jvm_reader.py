"""The Java reader beside the Python one: the same streams, the same options, the same rows."""

import struct
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from segmentstore.client import ScalingPolicy, Store, StreamConfig
from segmentstore.codec.record_fields import Record
from segmentstore.spark.jvm.jar_build import jvm_jar
from segmentstore.spark.options import RECORD_TAG
from tests.integration.spark.test_batch_reads import STREAM, Input, place_of
from tests.spark.live_store import LiveStore, live_store
from tests.tier2.object_stores.s3.conftest import bucket, credentials, moto_url
from tests.tier2.object_stores.s3.real_server import gateway_url
from tier2.format.records import encode_records

__all__ = ["bucket", "credentials", "gateway_url", "moto_url"]

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


@pytest.mark.parametrize("kind", ["filesystem", "volumes", "s3 in memory", "s3 on a real server"])
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
        # Columns that need no bytes, or the headers of events, in ranges that begin and end inside chunks.
        for columns in (
            ["segment_id", "event_number"],
            ["timestamp", "stream"],
            ["segment_id", "offset", "event_number", "timestamp"],
        ):
            small = options | {"maxBytesPerPartition": "128k"}
            ours = frame_of(spark, "segmentstore-jvm", live, small).select(columns)
            theirs = frame_of(spark, "segmentstore", live, small).select(columns)
            assert Counter(ours.collect()) == Counter(theirs.collect())
        live.flush_stream(STREAM, given.segment_ids)
        live.server.kill()
        offline = options | {"mode": "offline", "maxBytesPerPartition": "128k"}
        # What was flushed meanwhile has times of its own now; all else is as it was.
        assert [row[:7] for row in both(spark, live, offline)] == [row[:7] for row in with_tail]


def test_an_event_that_tier_2_has_the_beginning_of_is_completed_by_the_service(
    spark: SparkSession, tmp_path: Path
) -> None:
    event = Random(5).randbytes(100_000)
    framed = struct.pack(">ii", 0, len(event)) + event
    with live_store(tmp_path) as live:

        async def fill(store: Store) -> None:
            await store.scope("plant").create()
            await store.stream(STREAM).create(StreamConfig(ScalingPolicy.fixed(1)))
            async with store.stream(STREAM).writer() as writer:
                for number in range(100):
                    await writer.write(b"%d" % number, key="one")

        live.do(fill)
        segment = f"{STREAM}/0.#epoch.0"
        for flushed_bytes in (5, 60_000):
            live.append(segment, framed[:flushed_bytes])
            live.flush(segment)
            published = both(spark, live, {})
            cut_off = both(spark, live, {"controller": live.controller})
            assert published == cut_off
            live.append(segment, framed[flushed_bytes:])
            whole = both(spark, live, {"controller": live.controller})
            assert whole[:-1] == published
            assert whole[-1]["value"] == event
            live.flush(segment)


def test_files_that_are_not_to_be_mapped_are_read(spark: SparkSession, tmp_path: Path) -> None:
    given = Input()
    gateway = spark.sparkContext._gateway
    assert gateway is not None, "a classic session has a gateway"
    # The settings that the running Spark looks at, not the copy that it hands out.
    settings = spark.sparkContext._jsc.sc().conf()
    maps = Path("/proc", str(gateway.proc.pid), "maps")
    with live_store(tmp_path) as live:
        live.do(given.fill)
        live.flush_stream(STREAM, given.segment_ids)
        settings.set("spark.segmentstore.mapFiles", "false")
        try:
            rows = both(spark, live, {"maxBytesPerPartition": "1m"})
            assert sorted(bytes(row[1]) for row in rows) == sorted(given.events)
            assert live.tier2 not in maps.read_text()
        finally:
            settings.remove("spark.segmentstore.mapFiles")


def records() -> Iterator[bytes]:
    random = Random(11)
    for number in range(500):
        headers = tuple((f"name-{each}", random.randbytes(each * 3)) for each in range(number % 4))
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
        form = spark.read.format("segmentstore-jvm").options(tier2=live.tier2, stream=STREAM)
        given_schema = form.schema("value binary, segment_id bigint").load()
        assert Counter(given_schema.collect()) == Counter(
            whole.select("value", "segment_id").collect()
        )
        for schema in ("value string", "colour bigint"):
            with pytest.raises(PySparkException, match="a schema has the source's own types"):
                form.schema(schema).load()
        assert whole.limit(7).count() == 7
        assert whole.limit(3).collect() == every[:3]


def test_a_filter_on_offsets_makes_up_no_events_in_what_is_not_flushed(
    spark: SparkSession, tmp_path: Path
) -> None:
    inner = struct.pack(">ii", 0, 4) + b"FAKE"
    events = [inner, inner, b"plain text", b"last"]

    async def fill(store: Store) -> None:
        await store.scope("plant").create()
        await store.stream(STREAM).create(StreamConfig(ScalingPolicy.fixed(1)))
        async with store.stream(STREAM).writer() as writer:
            for event in events:
                await writer.write(event, key="one")

    with live_store(tmp_path) as live:
        live.do(fill)
        options = {"controller": live.controller}
        whole = [(row["offset"], bytes(row["value"])) for row in both(spark, live, options)]
        assert whole == list(zip((0, 20, 40, 58), events, strict=True))
        for least in (20, 28, 41):
            frame = frame_of(spark, "segmentstore-jvm", live, options)
            rows = rows_of(frame.where(f"offset >= {least}"))
            found = [(row["offset"], bytes(row["value"])) for row in rows]
            assert found == [row for row in whole if row[0] >= least]


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
        damaged = frame_of(spark, "segmentstore-jvm", live, {"mode": "offline"})
        with pytest.raises(Py4JJavaError, match="block fails its checksum"):
            rows_of(damaged)


def three_chunks(live: LiveStore) -> Sequence[bytes]:
    """Fill the stream with 300 events of 1000 bytes, 100 in each chunk; the events. The store ends."""
    events = [Random(number).randbytes(1000) for number in range(300)]

    async def create(store: Store) -> None:
        await store.scope("plant").create()
        await store.stream(STREAM).create(StreamConfig(ScalingPolicy.fixed(1)))

    async def write(store: Store, some: Sequence[bytes]) -> None:
        async with store.stream(STREAM).writer() as writer:
            for event in some:
                await writer.write(event, key="one")

    live.do(create)
    for first in range(0, len(events), 100):
        live.do(partial(write, some=events[first : first + 100]))
        live.flush_stream(STREAM, [0])
    live.server.kill()
    return events


def damage(live: LiveStore, event: bytes, place: int, mask: bytes = b"\1") -> None:
    """Turn over the bits of the mask in a stored event; place 0 is the first byte behind its header."""
    (path,) = (path for path in Path(live.tier2).rglob("chunks/*") if event in path.read_bytes())
    content = bytearray(path.read_bytes())
    for byte, bits in enumerate(mask, content.index(event) + place):
        content[byte] ^= bits
    path.chmod(0o644)
    path.write_bytes(content)


def test_rows_are_counted_by_the_index_without_their_bytes(
    spark: SparkSession, tmp_path: Path
) -> None:
    with live_store(tmp_path) as live:
        events = three_chunks(live)
        damage(live, events[150], 0)
        frame = frame_of(spark, "segmentstore-jvm", live, {"mode": "offline"})
        assert frame.count() == len(events)
        assert frame.where("segment_id = 0").limit(150).count() == 150
        numbers = frame.select("event_number", "segment_id").collect()
        assert sorted(tuple(row) for row in numbers) == [(each, 0) for each in range(len(events))]
        with pytest.raises(Py4JJavaError, match="block fails its checksum"):
            frame.select("value").collect()


def test_positions_come_from_headers_that_agree_with_the_index(
    spark: SparkSession, tmp_path: Path
) -> None:
    with live_store(tmp_path) as live:
        events = three_chunks(live)
        damage(live, events[150], 0)
        frame = frame_of(spark, "segmentstore-jvm", live, {"mode": "offline"})
        places = [tuple(row) for row in frame.select("offset", "event_number").collect()]
        assert places == [(number * 1008, number) for number in range(len(events))]
        checked = frame_of(spark, "segmentstore-jvm", live, {"verifyChecksums": " ALL"})
        with pytest.raises(Py4JJavaError, match="block fails its checksum"):
            checked.select("offset").collect()


@pytest.mark.parametrize(
    ("number", "place", "mask"),
    [
        pytest.param(150, -8, b"\1", id="a type"),
        pytest.param(150, -4, b"\x80", id="a negative length"),
        pytest.param(150, -1, b"\1", id="a length that leads between events"),
        pytest.param(150, -2, b"\x04\x30", id="a length that takes in the next event"),
        pytest.param(199, -1, b"\1", id="a length that leads out of the block"),
    ],
)
def test_a_damaged_header_is_found_where_only_positions_are_asked_for(
    spark: SparkSession, tmp_path: Path, number: int, place: int, mask: bytes
) -> None:
    with live_store(tmp_path) as live:
        damage(live, three_chunks(live)[number], place, mask)
        frame = frame_of(spark, "segmentstore-jvm", live, {"mode": "offline"})
        with pytest.raises(Py4JJavaError, match="block fails its checksum"):
            frame.select("offset").collect()
