"""A demonstration of Spark over the store that checks itself: `make demo-spark`.

Loads every line of the running interpreter's standard library into a stream (routing key: its module), counts words
with a streaming query while part of the stream is not in Tier 2 yet, exports the stream to Parquet, kills the service
with -9, and counts again from Tier 2 alone and from the Parquet files. Ends with 1 if the three counts differ.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from segmentstore.cli.http_client import HttpClient
from segmentstore.cli.load import SegmentPlan, plan_load
from segmentstore.cli.output import Row, print_rows
from segmentstore.cli.server_process import ServerProcess
from segmentstore.cli.spark_session import open_spark, require_spark
from segmentstore.client import ScalingPolicy, StreamConfig, connect
from segmentstore.contracts.errors import SegmentStoreError
from segmentstore.demo.store import expect, library, megabytes, say

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STREAM = "demo/lines"
SEGMENTS = 4
TOP_WORDS = 8
_NOT_LIBRARY = "site-packages"
_BATCH_BYTES = 16 << 20
_READ_BYTES = 8 << 20
_CHEAP_JAVA = "-XX:+UseSerialGC"


@dataclass(frozen=True, slots=True)
class WordCount:
    """One way of counting, and what came out."""

    source: str
    lines: int
    words: int
    distinct: int
    fingerprint: str
    """Of every word with its count: equal only if all of them are."""
    seconds: float

    @property
    def result(self) -> tuple[int, int, int, str]:
        """What has to be equal."""
        return self.lines, self.words, self.distinct, self.fingerprint


class SparkDemo:
    """The steps, in order."""

    def __init__(
        self, directory: Path, plans: Sequence[SegmentPlan], spark: "SparkSession"
    ) -> None:
        self._directory = directory
        self._plans = plans
        self._spark = spark
        self._server = ServerProcess(directory / "data")
        self._lines = 0
        self._words = 0

    def run(self) -> None:
        """All steps. Raises DemoFailedError."""
        with self._server:
            say("start", self._server.ready_line)
            asyncio.run(self._load())
            streamed = self._count_streaming()
            self._export()
            asyncio.run(self._flush())
            self._server.kill()
        say("kill -9", "the service is gone; what follows reads Tier 2 and files alone")
        offline = self._count("offline, from Tier 2 alone", self._offline_lines())
        parquet = self._count("the Parquet files", self._parquet_lines())
        self._compare([streamed, offline, parquet])

    @property
    def _controller(self) -> str:
        (address,) = [
            word.removeprefix("controller=")
            for word in self._server.ready_line.split()
            if word.startswith("controller=")
        ]
        return f"tcp://{address}"

    @property
    def _source(self) -> dict[str, str]:
        return {
            "tier2": str(self._server.data_directory),
            "controller": self._controller,
            "stream": STREAM,
        }

    async def _load(self) -> None:
        started = time.perf_counter()
        size = 0
        async with connect(self._controller) as store:
            await store.scope("demo").create()
            stream = store.stream(STREAM)
            await stream.create(StreamConfig(scaling=ScalingPolicy.fixed(SEGMENTS)))
            async with stream.writer() as writer:
                for plan in self._plans:
                    for line in lines_of(plan):
                        await writer.write(line, key=plan.name)
                        self._lines += 1
                        self._words += len(line.split())
                        size += len(line)
        seconds = time.perf_counter() - started
        say(
            "load",
            f"{self._lines:,} lines of {len(self._plans)} modules, {megabytes(size)} from {library()}, "
            f"durable at {self._lines / seconds:,.0f} events/s",
        )

    def _count_streaming(self) -> WordCount:
        """A streaming query in micro-batches; some of the stream is in Tier 2, the rest comes from the service."""
        from pyspark.sql import functions as sql

        started = time.perf_counter()
        lines = (
            self._spark.readStream.format("segmentstore")
            .options(
                **self._source, startingOffsets="earliest", maxBytesPerTrigger=str(_BATCH_BYTES)
            )
            .load()
        )
        query = (
            words_of(lines)
            .groupBy("word")
            .agg(sql.count("*").alias("count"), sql.sum("is_line").alias("lines"))
            .writeStream.outputMode("complete")
            .format("memory")
            .queryName("words")
            .option("checkpointLocation", str(self._directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        batches = [progress for progress in query.recentProgress if progress.numInputRows]
        rows = sum(progress.numInputRows for progress in batches)
        counted = counted_words(
            "streaming query", self._spark.table("words"), time.perf_counter() - started
        )
        say("stream", f"{rows:,} events in {len(batches)} micro-batches, {counted.seconds:.1f} s")
        return counted

    def _export(self) -> None:
        from segmentstore.spark.jobs.export import ExportJob, ExportSettings
        from segmentstore.spark.jobs.output_directory import open_output

        summary = ExportJob(
            spark=self._spark,
            source_options=self._source,
            directory=open_output(self._spark, str(self._parquet)),
            settings=ExportSettings(batch_bytes=_BATCH_BYTES, text=True),
        ).run()
        say("export", f"{summary.rows:,} events in {len(summary.batches)} batches of Parquet")
        rows: list[Row] = [
            {
                "batch": each.batch,
                "segments": each.segments,
                "events": each.rows,
                "stream_bytes": each.stream_bytes,
                "files": each.files,
                "seconds": round(each.seconds, 1),
            }
            for each in summary.batches
        ]
        print_rows(rows, "table")

    async def _flush(self) -> None:
        async with HttpClient(self._server.address) as client:
            await client.flush_all()
        say("flush", "everything is in Tier 2")

    @property
    def _parquet(self) -> Path:
        return self._directory / "parquet"

    def _offline_lines(self) -> "DataFrame":
        return (
            self._spark.read.format("segmentstore")
            .option("tier2", str(self._server.data_directory))
            .option("mode", "offline")
            .option("stream", STREAM)
            .load()
        )

    def _parquet_lines(self) -> "DataFrame":
        return self._spark.read.parquet(str(self._parquet))

    def _count(self, source: str, lines: "DataFrame") -> WordCount:
        from pyspark.sql import functions as sql

        started = time.perf_counter()
        table = (
            words_of(lines)
            .groupBy("word")
            .agg(sql.count("*").alias("count"), sql.sum("is_line").alias("lines"))
        )
        return counted_words(source, table, 0.0, started=started)

    def _compare(self, counts: Sequence[WordCount]) -> None:
        rows: list[Row] = [
            {
                "counted from": count.source,
                "lines": count.lines,
                "words": count.words,
                "distinct": count.distinct,
                "fingerprint": count.fingerprint,
                "seconds": round(count.seconds, 1),
            }
            for count in counts
        ]
        print_rows(rows, "table")
        expect(len({count.result for count in counts}) == 1, "the three counts differ")
        first = counts[0]
        expect(first.lines == self._lines, f"{self._lines} lines were written")
        expect(first.words == self._words, f"{self._words} words were written")
        self._show_top_words()

    def _show_top_words(self) -> None:
        top = self._spark.sql(
            f"select word, count from words where word != '' order by count desc, word limit {TOP_WORDS}"
        )
        print_rows([{"word": row["word"], "count": row["count"]} for row in top.collect()], "table")


def lines_of(plan: SegmentPlan) -> list[bytes]:
    """The lines of a module without their ends."""
    content = b"".join(
        plan.read(offset, min(_READ_BYTES, plan.length - offset))
        for offset in range(0, plan.length, _READ_BYTES)
    )
    return content.removesuffix(b"\n").split(b"\n")


def words_of(lines: "DataFrame") -> "DataFrame":
    """A row for each word, and one of the empty word for each line, so that lines are counted as well."""
    from pyspark.sql import functions as sql

    text = lines.select(sql.col("value").cast("string").alias("text"))
    words = sql.filter(sql.split("text", r"\s+"), lambda word: word != "")
    with_line = sql.concat(sql.array(sql.lit("")), words)
    return text.select(sql.explode(with_line).alias("word")).withColumn(
        "is_line", sql.when(sql.col("word") == "", 1).otherwise(0)
    )


def counted_words(
    source: str, table: "DataFrame", seconds: float, *, started: float | None = None
) -> WordCount:
    """The sums over a table of words, their counts, and lines."""
    from pyspark.sql import functions as sql

    row = table.agg(
        sql.sum("lines").alias("lines"),
        (sql.sum("count") - sql.sum("lines")).alias("words"),
        (sql.count("*") - 1).alias("distinct"),
        sql.hex(sql.bit_xor(sql.xxhash64("word", "count"))).alias("fingerprint"),
    ).first()
    assert row is not None, "sums have one row"
    if started is not None:
        seconds = time.perf_counter() - started
    return WordCount(
        source, row["lines"], row["words"], row["distinct"], row["fingerprint"], seconds
    )


@click.command()
@click.option("--master", default="local[2]", show_default=True, help="Spark's master.")
def main(master: str) -> None:
    """Run in a temporary directory; exit 1 if what was shown is not so."""
    plans = plan_load([library()], prefix="", by_package=True, include=["*.py"])
    plans = [plan for plan in plans if plan.name != _NOT_LIBRARY]
    try:
        require_spark()
    except SegmentStoreError as error:
        click.echo(f"demo failed: {error}", err=True)
        sys.exit(1)
    from pyspark.errors import PySparkException

    with tempfile.TemporaryDirectory(prefix="segmentstore-demo-spark-") as directory:
        try:
            settings = (
                f"spark.driver.extraJavaOptions={_CHEAP_JAVA}",
                "spark.sql.shuffle.partitions=4",
                f"spark.local.dir={directory}/spark",
                f"spark.sql.warehouse.dir={directory}/warehouse",
            )
            with open_spark("demo", master=master, configuration=settings) as session:
                say("spark", f"Spark {session.version}, {master}")
                SparkDemo(Path(directory), plans, session).run()
        except (SegmentStoreError, PySparkException) as error:
            click.echo(f"demo failed: {error}", err=True)
            sys.exit(1)
    say("done", "three ways of counting, one result")


if __name__ == "__main__":
    main()
