"""Goal: streaming queries of real Spark give every event once, through restarts, crashes, scaling and truncation.

Method: queries run until they have read what is there (availableNow) and are started again from their checkpoint. What
crashes is the function that takes the batches, right before or right after it has kept one: Spark then does not know
that the batch is done and asks for it again.
"""

import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from segmentstore.spark.streams.offsets import lag_bytes
from tests.integration.spark.live_streams import LiveStreams, live_streams, numbered

STARTS_MAX = 5
"""Spark gives the Python process of a query ten seconds to come up, a number that no setting changes, and says so if a
busy machine needs longer. What it imports until then (0.3 s of CPU) is Spark, numpy and Arrow, and nothing of ours."""

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveStreams]:
    with live_streams(tmp_path_factory.mktemp("streaming")) as store:
        yield store


def stream_of(spark: SparkSession, live: LiveStreams, name: str, **options: str) -> DataFrame:
    words = {"tier2": live.place, "controller": live.controller, "stream": name}
    words |= {"startingOffsets": "earliest"} | options
    return spark.readStream.format("segmentstore").options(**words).load()


def run(
    frame: DataFrame, checkpoint: Path, take: Callable[[DataFrame, int], None]
) -> StreamingQuery:
    """The query, after it has read what is there. Raises StreamingQueryException."""
    return ended(frame.writeStream.foreachBatch(take), checkpoint)


def ended(writer: DataStreamWriter, checkpoint: Path) -> StreamingQuery:
    """As run(), into any sink."""
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    return started(writer, lambda query: query.awaitTermination())


def started(writer: DataStreamWriter, wait: Callable[[StreamingQuery], object]) -> StreamingQuery:
    """A query whose Python process came up, and that was waited for."""
    for _ in range(STARTS_MAX):
        query = writer.start()
        try:
            wait(query)
        except StreamingQueryException as error:
            if not was_too_slow(error):
                raise
        else:
            return query
    raise AssertionError(f"no Python process of Spark's came up in time starts={STARTS_MAX}")


def was_too_slow(error: StreamingQueryException) -> bool:
    """Whether the query's Python process did not come up in time, so that nothing was done. See STARTS_MAX."""
    return "failed to connect back" in str(error)


class CrashingSink:
    """Keeps a batch under its number; crashes the first time that it sees one, before or after keeping it."""

    def __init__(self) -> None:
        self.batches: dict[int, list[bytes]] = {}
        self._seen: set[int] = set()

    def take(self, frame: DataFrame, batch_id: int) -> None:
        first_time = batch_id not in self._seen
        self._seen.add(batch_id)
        if first_time and batch_id % 2:
            raise RuntimeError("crash in front of the sink's commit")
        events = sorted(bytes(row["value"]) for row in frame.select("value").collect())
        assert self.batches.setdefault(batch_id, events) == events, "a replay holds other events"
        if first_time:
            raise RuntimeError("crash between the sink's commit and Spark's")

    def events(self) -> list[bytes]:
        return sorted(event for batch in self.batches.values() for event in batch)


def test_every_event_comes_once_through_crashes_at_every_batch_and_scaling_in_the_middle(
    spark: SparkSession, live: LiveStreams, tmp_path: Path
) -> None:
    live.create("plant/crashing", segments=2)
    live.write("plant/crashing", numbered("a", 150))
    live.flush()
    frame = stream_of(spark, live, "plant/crashing", maxRowsPerTrigger="100")
    sink = CrashingSink()
    crashes = 0
    for attempt in count():
        if attempt == 2:
            live.scale("plant/crashing", 3)
            live.write("plant/crashing", numbered("b", 90))
        try:
            run(frame, tmp_path / "checkpoint", sink.take)
        except StreamingQueryException:
            crashes += 1
            continue
        if attempt > 2:
            break
    assert sink.events() == numbered("a", 150) + numbered("b", 90)
    assert crashes == len(sink.batches) == 3


def test_stream_to_stream_is_exactly_once_when_sparks_commit_is_lost_behind_the_sinks(
    spark: SparkSession, live: LiveStreams, tmp_path: Path
) -> None:
    live.create("plant/source", segments=2)
    live.create("plant/target", segments=2)
    live.write("plant/source", numbered("a", 120))
    frame = stream_of(spark, live, "plant/source", maxRowsPerTrigger="50")
    checkpoint = tmp_path / "checkpoint"
    for _ in range(2):
        events = frame.selectExpr("cast(segment_id as string) as key", "value")
        sink = events.writeStream.format("segmentstore")
        ended(sink.options(controller=live.controller, stream="plant/target"), checkpoint)
        newest = max(int(each.name) for each in (checkpoint / "commits").glob("[0-9]*"))
        # As if the driver had died between the two commits: the next run has to do the batch again.
        (checkpoint / "commits" / str(newest)).unlink()
        (checkpoint / "commits" / f".{newest}.crc").unlink(missing_ok=True)
        live.write("plant/source", numbered("b", 30))
    expected = numbered("a", 120) + numbered("b", 30)
    assert sorted(live.read("plant/target")) == sorted(expected)


def test_limits_the_ending_position_and_the_lag_are_seen_in_the_progress(
    spark: SparkSession, live: LiveStreams, tmp_path: Path
) -> None:
    live.create("plant/limited")
    live.write("plant/limited", numbered("a", 100))
    event_bytes = 8 + len(numbered("a", 1)[0])
    frame = stream_of(
        spark,
        live,
        "plant/limited",
        maxBytesPerTrigger=str(30 * event_bytes),
        endingOffsets=json.dumps({"0": 70 * event_bytes}),
        columns="offset",
    )
    offsets: list[int] = []
    query = run(
        frame,
        tmp_path / "checkpoint",
        lambda batch, _: offsets.extend(row["offset"] for row in batch.collect()),
    )
    assert offsets == [number * event_bytes for number in range(70)]
    progress = [each for each in query.recentProgress if each.numInputRows]
    assert [each.numInputRows for each in progress] == [30, 30, 10]
    source = progress[0].sources[0]
    lag = lag_bytes(
        end_offset=json.loads(source.endOffset), latest_offset=json.loads(source.latestOffset)
    )
    assert lag == 70 * event_bytes


def test_a_running_query_follows_the_tail_that_is_not_flushed(
    spark: SparkSession, live: LiveStreams, tmp_path: Path
) -> None:
    live.create("plant/tail", segments=2)
    live.write("plant/tail", numbered("a", 40))
    events: list[bytes] = []
    writer = (
        stream_of(spark, live, "plant/tail", checkpointGroup="tail-query")
        .writeStream.foreachBatch(
            lambda frame, _: events.extend(bytes(row["value"]) for row in frame.collect())
        )
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="0 seconds")
    )
    query = started(writer, lambda query: query.processAllAvailable())
    try:
        assert sorted(events) == numbered("a", 40)
        live.write("plant/tail", numbered("b", 40))
        query.processAllAvailable()
        assert sorted(events) == numbered("a", 40) + numbered("b", 40)
    finally:
        query.stop()


def test_a_query_that_comes_too_late_fails_with_what_it_missed_or_goes_on_without(
    spark: SparkSession, live: LiveStreams, tmp_path: Path
) -> None:
    live.create("plant/late")
    live.write("plant/late", numbered("a", 20))
    event_bytes = 8 + len(numbered("a", 1)[0])
    events: list[bytes] = []

    def take(frame: DataFrame, _: int) -> None:
        events.extend(bytes(row["value"]) for row in frame.collect())

    run(stream_of(spark, live, "plant/late"), tmp_path / "checkpoint", take)
    live.write("plant/late", numbered("b", 20))
    live.truncate("plant/late", {0: 30 * event_bytes})
    with pytest.raises(StreamingQueryException, match=rf"head={30 * event_bytes}"):
        run(stream_of(spark, live, "plant/late"), tmp_path / "checkpoint", take)
    lenient = stream_of(spark, live, "plant/late", failOnDataLoss="false")
    run(lenient, tmp_path / "checkpoint", take)
    assert events == numbered("a", 20) + numbered("b", 20)[10:]
