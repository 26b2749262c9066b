"""How scans grow: CPU-seconds and seconds per gigabyte of 1 KB events at 0.1, 1 and 5 GB, with both readers, and of the
same rows in Parquet; and how much less it takes to read offsets alone.

What does not grow with the data (planning, starting a job) is in it, and makes the smallest one the dearest per
gigabyte; what a query of Spark's own takes that reads nothing (`SparkSession.range(0)`) is told apart. The smallest
stream is read a few times before, since a young JVM spends more on compiling Spark's planner than on reading it.

    python -m benchmarks.spark_scale [--gigabytes 0.1,1,5]
"""

import argparse
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame

from benchmarks.spark.session import BenchSpark, Costs, bench_spark, drain
from benchmarks.spark.streams import SCOPE, VALUE_BYTES, fill
from benchmarks.workbench import Row, print_rows, row
from tests.spark.live_store import live_store

GIGABYTES = (0.1, 1.0, 5.0)
ROUNDS = 3
WARM_UPS = 2
WARM_UPS_SMALLEST = 15
PROJECTION_TARGET = 2.0
NOTHING = "nothing"
READERS = {"Java reader": "segmentstore-jvm", "Python reader": "segmentstore"}


def scan(spark: BenchSpark, form: str, tier2: str, stream: str) -> None:
    drain(frame(spark, form, tier2, stream))


def scan_offsets(spark: BenchSpark, form: str, tier2: str, stream: str) -> None:
    """The Java reader is told by Spark what is wanted, the Python reader by an option."""
    option = {} if form.endswith("jvm") else {"columns": "offset"}
    drain(frame(spark, form, tier2, stream, **option).select("offset"))


def frame(spark: BenchSpark, form: str, tier2: str, stream: str, **option: str) -> DataFrame:
    words = {"tier2": tier2, "stream": f"{SCOPE}/{stream}", "mode": "offline", **option}
    return spark.session.read.format(form).options(**words).load()


def measure(directory: Path, gigabytes: Sequence[float]) -> list[Row]:
    written = directory / "written"
    written.mkdir()
    names = {size: f"events-{size}".replace(".", "-") for size in gigabytes}
    with live_store(written, options=()) as live:
        for size, name in names.items():
            fill(live, name, int(size * 1e9 / VALUE_BYTES))
    rows: list[Row] = []
    with bench_spark(directory) as spark:
        for reader, form in READERS.items():
            place = (spark, form, live.tier2)
            cases = {name: partial(scan, *place, name) for name in names.values()}
            cases |= {
                _offsets(name): partial(scan_offsets, *place, name) for name in names.values()
            }
            cases[NOTHING] = partial(_nothing, spark)
            smallest = names[min(names)]
            young = {name: cases[name] for name in (smallest, _offsets(smallest), NOTHING)}
            spark.measure(young, warm_ups=WARM_UPS_SMALLEST, rounds=0)
            costs = spark.measure(cases, warm_ups=WARM_UPS, rounds=ROUNDS)
            sizes = {size: costs[name] for size, name in names.items()}
            rows += _rows(reader, sizes, costs[NOTHING])
            rows += [
                row(
                    f"{reader}, {size} GB, offset alone, times the scan",
                    costs[name].cpu / costs[_offsets(name)].cpu,
                    "x",
                    PROJECTION_TARGET,
                )
                for size, name in names.items()
            ]
        rows += _parquet_rows(spark, live.tier2, names, directory)
    return rows


def _parquet_rows(
    spark: BenchSpark, tier2: str, names: dict[float, str], directory: Path
) -> list[Row]:
    """What the same rows, uncompressed, cost Spark's own source: no smaller scan of anything can be flatter."""
    places = {size: str(directory / f"{name}.parquet") for size, name in names.items()}
    for size, place in places.items():
        rows = frame(spark, READERS["Java reader"], tier2, names[size])
        rows.write.option("compression", "none").parquet(place)
    cases = {place: partial(_scan_parquet, spark, place) for place in places.values()}
    smallest = places[min(places)]
    young = {smallest: cases[smallest], NOTHING: partial(_nothing, spark)}
    spark.measure(young, warm_ups=WARM_UPS_SMALLEST, rounds=0)
    costs = spark.measure({**cases, **young}, warm_ups=WARM_UPS, rounds=ROUNDS)
    return _rows("Parquet", {size: costs[place] for size, place in places.items()}, costs[NOTHING])


def _scan_parquet(spark: BenchSpark, place: str) -> None:
    drain(spark.session.read.parquet(place))


def _nothing(spark: BenchSpark) -> None:
    drain(spark.session.range(0).toDF("offset"))


def _offsets(name: str) -> str:
    return f"{name}, offset"


def _rows(reader: str, costs: dict[float, Costs], nothing: Costs) -> list[Row]:
    """Each size beside the largest: flat is 1."""
    largest = max(costs)
    above = {size: (one.cpu - nothing.cpu) / size for size, one in costs.items()}
    rows: list[Row] = []
    for size, one in costs.items():
        rows += [
            row(f"{reader}, {size} GB", one.cpu / size, "CPUs/GB", costs[largest].cpu / largest),
            row(
                f"{reader}, {size} GB, above a query that reads nothing",
                above[size],
                "CPUs/GB",
                above[largest],
            ),
            row(
                f"{reader}, {size} GB, by the clock",
                one.wall / size,
                "s/GB",
                costs[largest].wall / largest,
            ),
        ]
    return rows


def main(gigabytes: Sequence[float] = GIGABYTES) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="segmentstore-bench-") as directory:
        rows = measure(Path(directory), gigabytes)
    print_rows(rows)
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", default=",".join(map(str, GIGABYTES)))
    main([float(size) for size in parser.parse_args().gigabytes.split(",")])
