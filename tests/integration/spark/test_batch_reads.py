"""Batch reads through real Spark: what comes out is what went in, whoever had it at the time."""

import asyncio
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from random import Random

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from segmentstore.client import ScalingPolicy, Store, StreamConfig
from tests.spark.live_store import LiveStore, live_store
from tests.tier2.object_stores.s3.conftest import bucket, credentials, moto_url
from tests.tier2.object_stores.s3.real_server import gateway_url, new_bucket

__all__ = ["bucket", "credentials", "gateway_url", "moto_url"]

pytestmark = [pytest.mark.integration, pytest.mark.slow]

STREAM = "plant/readings"
BIG_EVENT_BYTES = 9 << 20
TRUNCATED_EVENTS = 200


def hash_of(events: Iterable[bytes]) -> str:
    whole = hashlib.sha256()
    for event in sorted(hashlib.sha256(event).digest() for event in events):
        whole.update(event)
    return whole.hexdigest()


@dataclass
class Input:
    """What was written and is still there, and where the stream was cut."""

    events: list[bytes] = field(default_factory=list)
    random: Random = field(default_factory=lambda: Random(7))
    segment_ids: list[int] = field(default_factory=list)

    def made(self, count: int) -> list[bytes]:
        events = [
            b"%d " % (len(self.events) + number)
            + self.random.randbytes(self.random.choice((0, 1, 10, 100, 1000, 10_000)))
            for number in range(count)
        ]
        self.events += events
        return events

    async def fill(self, store: Store) -> None:
        """Two segments, a transaction, a truncation, a scale, and an event that spans blocks."""
        stream = store.stream(STREAM)
        await store.scope("plant").create()
        await stream.create(StreamConfig(ScalingPolicy.fixed(2)))
        await self.write(store, self.made(600))
        async with stream.transaction() as transaction:
            for number, event in enumerate(self.made(50)):
                await transaction.write(event, key=str(number))
        await self.truncate(store, TRUNCATED_EVENTS)
        self.segment_ids += [each.segment_id for each in await stream.segments()]
        await stream.scale_to(3)
        self.segment_ids += [each.segment_id for each in await stream.segments()]
        big = self.random.randbytes(BIG_EVENT_BYTES)
        self.events.append(big)
        await self.write(store, [big])
        await self.write(store, self.made(400))

    async def write(self, store: Store, events: Sequence[bytes]) -> None:
        async with store.stream(STREAM).writer() as writer:
            for number, event in enumerate(events):
                await writer.write(event, key=str(number % 17))

    async def truncate(self, store: Store, count: int) -> None:
        """Drop the first events that a reader is given."""
        stream = store.stream(STREAM)
        async with stream.read() as reader:
            for _ in range(count):
                self.events.remove((await anext(reader)).data)
            cut = reader.cut()
        await stream.truncate(cut)

    async def from_service(self, store: Store) -> list[bytes]:
        stream = store.stream(STREAM)
        tail = await stream.tail()
        async with stream.read(stop_at=tail) as reader:
            return [(await anext(reader)).data for _ in range(len(self.events))]


def read(spark: SparkSession, live: LiveStore, options: Mapping[str, str]) -> DataFrame:
    words = {"tier2": live.tier2, "stream": STREAM} | dict(options)
    return spark.read.format("segmentstore").options(**words).load()


def values(frame: DataFrame) -> list[bytes]:
    return [bytes(row["value"]) for row in frame.select("value").collect()]


def first_numbers(frame: DataFrame) -> dict[int, int]:
    """The first number of each segment, when all of a segment follow it without a gap."""
    rows = sorted(frame.select("segment_id", "offset", "event_number").collect())
    found: dict[int, int] = {}
    for segment_id, some in groupby(rows, lambda row: row["segment_id"]):
        numbers = [row["event_number"] for row in some]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), segment_id
        found[segment_id] = numbers[0]
    return found


def place_of(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, dict[str, str]]:
    """Tier 2 of that kind for a store, and what readers need to be told besides."""
    if not kind.startswith("s3"):
        return kind, {}
    if kind == "s3 in memory":
        endpoint = request.getfixturevalue("moto_url")
        name = request.getfixturevalue("bucket")
    else:
        assert kind == "s3 on a real server", kind
        request.getfixturevalue("credentials")
        endpoint = request.getfixturevalue("gateway_url")
        name = asyncio.run(new_bucket(endpoint))
    monkeypatch.setenv("SEGMENTSTORE_S3_ENDPOINT_URL", endpoint)
    return f"s3://{name}/store", {"endpoint": endpoint}


@pytest.mark.parametrize("kind", ["filesystem", "volumes", "s3 in memory", "s3 on a real server"])
def test_h78_batch_is_service_is_input_and_stays_so_after_the_service_died(
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
        expected = hash_of(given.events)
        assert hash_of(live.do(given.from_service)) == expected

        both = read(spark, live, options | {"controller": live.controller})
        assert hash_of(values(both)) == expected
        numbers = first_numbers(both)
        assert sum(numbers[each] for each in given.segment_ids[:2]) == TRUNCATED_EVENTS
        assert all(numbers[each] == 0 for each in given.segment_ids[2:])

        published = read(spark, live, options)
        assert hash_of(values(published)) == hash_of(given.events[:-300])

        live.flush_stream(STREAM, given.segment_ids)
        live.server.kill()
        offline = options | {"mode": "offline", "maxBytesPerPartition": "256k"}
        frame = read(spark, live, offline)
        assert hash_of(values(frame)) == expected
        assert first_numbers(frame) == numbers
        live.server.start()


def test_filters_give_the_same_rows_pushed_or_not(spark: SparkSession, tmp_path: Path) -> None:
    given = Input()
    with live_store(tmp_path) as live:
        live.do(given.fill)
        live.flush_stream(STREAM, given.segment_ids)
        small = {"maxBytesPerPartition": "128k"}
        whole = read(spark, live, small)
        rows = whole.select("segment_id", "offset", "timestamp").collect()
        chosen = given.segment_ids[3]
        times = sorted(row["timestamp"] for row in rows if row["segment_id"] == chosen)
        filters = [
            f"segment_id = {chosen}",
            f"segment_id IN ({chosen}, {given.segment_ids[0]}) AND offset >= 5000 AND offset < 90000",
            f"timestamp >= timestamp'{times[len(times) // 2]}'",
            f"timestamp <= timestamp'{times[0]}' AND offset != 0",
        ]
        partitions: dict[str, list[int]] = {}
        counts: dict[str, list[Sequence[object]]] = {}
        for enabled in ("false", "true"):
            spark.conf.set("spark.sql.python.filterPushdown.enabled", enabled)
            try:
                for text in filters:
                    frame = read(spark, live, small).where(text)
                    partitions.setdefault(enabled, []).append(frame.rdd.getNumPartitions())
                    found = frame.select("segment_id", "offset", "value").collect()
                    counts.setdefault(enabled, []).append(sorted(map(tuple, found)))
            finally:
                spark.conf.unset("spark.sql.python.filterPushdown.enabled")
        assert counts["true"] == counts["false"]
        assert all(counts["true"])
        assert partitions["true"][0] < partitions["false"][0]
        assert partitions["true"][1] < partitions["false"][1]


def test_what_is_lost_is_an_error_that_names_it_or_is_left_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    given = Input()
    with live_store(tmp_path) as live:
        live.do(given.fill)
        live.flush_stream(STREAM, given.segment_ids)
        lost = {"startingOffsets": '{"0": 0}'}
        with pytest.raises(AnalysisException, match=r"plant/readings/0.#epoch.0.*asked=\[0, "):
            read(spark, live, lost).count()
        left = read(spark, live, lost | {"failOnDataLoss": "false"})
        assert hash_of(values(left)) == hash_of(given.events)


def test_whole_scopes_single_segments_and_bytes(spark: SparkSession, tmp_path: Path) -> None:
    with live_store(tmp_path) as live:

        async def fill(store: Store) -> None:
            await store.scope("plant").create()
            for name in ("plant/a", "plant/b"):
                await store.stream(name).create(StreamConfig())
                async with store.stream(name).writer() as writer:
                    for number in range(100):
                        await writer.write(b"%s %d" % (name.encode(), number), key="k")

        live.do(fill)
        live.append("logs/app", b"line\n" * 1000)
        live.flush("plant/a/0.#epoch.0", "plant/b/0.#epoch.0", "logs/app")
        source = spark.read.format("segmentstore").option("tier2", live.tier2)
        scope = source.option("scope", "plant").load()
        counts = {row["stream"]: row["count"] for row in scope.groupBy("stream").count().collect()}
        assert counts == {"a": 100, "b": 100}

        source = spark.read.format("segmentstore").option("tier2", live.tier2)
        single = source.option("segment", "plant/a/0.#epoch.0").schema("offset bigint").load()
        assert sorted(row["offset"] for row in single.collect())[:2] == [0, 17]

        spark.sql(
            "CREATE TEMPORARY VIEW log USING segmentstore "
            f"OPTIONS (tier2 '{live.tier2}', segment 'logs/app', content 'bytes')"
        )
        (row,) = spark.sql("SELECT offset, length(bytes) AS length FROM log").collect()
        assert (row["offset"], row["length"]) == (0, 5000)
        spark.catalog.dropTempView("log")
