"""Spark over Tier 2 beside `spark.read.parquet` of the same rows and beside Kafka's source, in one run.

400,000 events of 1 KB that do not compress, in four segments; everything lies in the page cache, so the difference is
that of the readers. Rows per CPU-second of Spark's processes and rows per second by the clock, medians of interleaved
rounds after some that only warm up.

    python -m benchmarks.spark_scan [--events 400000] [--rounds 5] [--without-kafka]
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.spark.kafka_source import kafka_frame, kafka_jars, kafka_topic
from benchmarks.spark.session import BenchSpark, Costs, bench_spark, drain
from benchmarks.spark.streams import SCOPE, SEGMENTS, fill
from benchmarks.workbench import Row, print_rows, row
from segmentstore.client import Store
from segmentstore.spark.jobs.job_execution import SparkTaskRunner
from segmentstore.spark.jobs.verify import VerifyJob, VerifySettings
from segmentstore.spark.tier2_access import Tier2Location
from tests.spark.live_store import LiveStore, live_store

EVENTS = 400_000
ROUNDS = 5
WARM_UPS = 3
STREAM = "events"
SCAN_TARGET = 0.6
PROJECTION_TARGET = 2.0
VERIFY_TARGET = 250.0
JVM, PYTHON, PARQUET, KAFKA = "Java reader", "Python reader", "Parquet", "Kafka's source"


class Frames:
    """The same rows from everywhere."""

    def __init__(self, session: SparkSession, tier2: str, parquet: str) -> None:
        self._session = session
        self._tier2 = tier2
        self._parquet = parquet

    def stream(self, form: str, **options: str) -> DataFrame:
        words = {"tier2": self._tier2, "stream": f"{SCOPE}/{STREAM}", "mode": "offline"} | options
        return self._session.read.format(form).options(**words).load()

    def jvm(self) -> DataFrame:
        return self.stream("segmentstore-jvm")

    def python(self, **options: str) -> DataFrame:
        return self.stream("segmentstore", **options)

    def parquet(self) -> DataFrame:
        return self._session.read.parquet(self._parquet)

    def write_parquet(self) -> None:
        self.jvm().write.mode("overwrite").option("compression", "none").parquet(self._parquet)


def scans(frames: Frames) -> dict[str, Callable[[], object]]:
    return {
        PARQUET: lambda: drain(frames.parquet()),
        JVM: lambda: drain(frames.jvm()),
        PYTHON: lambda: drain(frames.python()),
        f"{JVM}, offset": lambda: drain(frames.jvm().select("offset")),
        f"{PYTHON}, offset": lambda: drain(frames.python(columns="offset")),
        f"{PARQUET}, offset": lambda: drain(frames.parquet().select("offset")),
        f"{JVM}, nothing": lambda: drain(frames.jvm().where("segment_id = -1")),
    }


def scan_rows(costs: dict[str, Costs], events: int) -> list[Row]:
    """The readers beside Parquet, then columns beside whole rows."""
    rows: list[Row] = []
    parquet = costs[PARQUET]
    for name in (JVM, PYTHON, KAFKA):
        if name not in costs:
            continue
        one = costs[name]
        rows += [
            row(
                f"{name}, scan, beside Parquet",
                events / one.cpu,
                "rows/CPUs",
                events / parquet.cpu,
            ),
            row(
                f"{name}, scan, beside Parquet, by the clock",
                events / one.wall,
                "rows/s",
                events / parquet.wall,
            ),
        ]
        if name != KAFKA:
            limit = SCAN_TARGET * events / parquet.cpu
            rows.append(
                row(f"{name}, scan, beside the target", events / one.cpu, "rows/CPUs", limit)
            )
    if KAFKA in costs:
        kafka = costs[KAFKA]
        rows.append(
            row(
                f"{JVM}, scan, beside {KAFKA}",
                events / costs[JVM].cpu,
                "rows/CPUs",
                events / kafka.cpu,
            )
        )
    nothing = costs[f"{JVM}, nothing"].cpu
    for name in (JVM, PYTHON, PARQUET):
        whole, part = costs[name], costs[f"{name}, offset"]
        times = whole.cpu / part.cpu
        rows.append(row(f"{name}, offset alone, times the scan", times, "x", PROJECTION_TARGET))
    above = (costs[JVM].cpu - nothing) / max(costs[f"{JVM}, offset"].cpu - nothing, 0.001)
    rows += [
        row(f"{JVM}, the same above an empty query", above, "x", PROJECTION_TARGET),
        row(f"{JVM}, an empty query", nothing, "CPUs", costs[JVM].cpu),
    ]
    return rows


def verify(spark: BenchSpark, tier2: str, rounds: int) -> list[Row]:
    """The job as users run it, with the events walked through."""
    scrubbed: list[int] = []

    def work() -> None:
        job = VerifyJob(
            place=Tier2Location(place=tier2),
            tasks=SparkTaskRunner(spark.session),
            settings=VerifySettings(),
        )
        summary = job.run()
        assert summary.sound, summary.damages
        scrubbed.append(summary.scrubbed_bytes)

    costs = spark.measure({"verify": work}, warm_ups=1, rounds=rounds)["verify"]
    megabytes = scrubbed[-1] / 1e6
    return [
        row("verify, a core", megabytes / costs.cpu, "MB/CPUs", VERIFY_TARGET),
        row("verify, two cores, by the clock", megabytes / costs.wall, "MB/s", 2 * VERIFY_TARGET),
    ]


def sink(
    spark: BenchSpark, frames: Frames, live: LiveStore, directory: Path, events: int, rounds: int
) -> list[Row]:
    """Exactly once into a running store, beside writing the same rows to Parquet."""

    async def make_scope(store: Store) -> None:
        await store.scope("sink").create()

    live.do(make_scope)
    given = frames.parquet().select("key", "value")
    options = {
        "controller": live.controller,
        "stream": "sink/events",
        "createIfMissing": "true",
        "segments": str(SEGMENTS),
    }

    def into_stream() -> None:
        given.write.format("segmentstore").options(**options).mode("append").save()

    def into_parquet() -> None:
        copy = str(directory / "copy")
        given.write.mode("overwrite").option("compression", "none").parquet(copy)

    costs = spark.measure({"stream": into_stream, PARQUET: into_parquet}, warm_ups=1, rounds=rounds)
    stream, parquet = costs["stream"], costs[PARQUET]
    return [
        row("sink, beside writing Parquet", events / stream.cpu, "rows/CPUs", events / parquet.cpu),
        row(
            "sink, beside writing Parquet, by the clock",
            events / stream.wall,
            "rows/s",
            events / parquet.wall,
        ),
    ]


@contextmanager
def filled(directory: Path, events: int) -> Iterator[str]:
    """The place of a Tier 2 with the events; the store that wrote them has ended."""
    with live_store(directory, options=()) as live:
        fill(live, STREAM, events)
    yield live.tier2


def measure(directory: Path, *, events: int, rounds: int, with_kafka: bool) -> list[Row]:
    jars: Sequence[str] = kafka_jars() if with_kafka else ()
    with ExitStack() as stack:
        written = directory / "written"
        written.mkdir()
        tier2 = stack.enter_context(filled(written, events))
        spark = stack.enter_context(bench_spark(directory, jars))
        frames = Frames(spark.session, tier2, str(directory / "parquet"))
        frames.write_parquet()
        cases = scans(frames)
        if jars:
            options = stack.enter_context(kafka_topic(directory / "kafka", events))
            cases[KAFKA] = partial(_drain_kafka, spark.session, options)
        rows = scan_rows(spark.measure(cases, warm_ups=WARM_UPS, rounds=rounds), events)
        rows += verify(spark, tier2, rounds)
        sunk = directory / "sunk"
        sunk.mkdir()
        live = stack.enter_context(live_store(sunk, options=()))
        rows += sink(spark, frames, live, directory, events, rounds)
    return rows


def _drain_kafka(session: SparkSession, options: Mapping[str, str]) -> None:
    drain(kafka_frame(session, options))


def main(events: int = EVENTS, rounds: int = ROUNDS, *, with_kafka: bool = True) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="segmentstore-bench-") as directory:
        rows = measure(Path(directory), events=events, rounds=rounds, with_kafka=with_kafka)
    print_rows(rows)
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--without-kafka", action="store_true")
    arguments = parser.parse_args()
    main(arguments.events, arguments.rounds, with_kafka=not arguments.without_kafka)
