"""One Spark for a benchmark, and what work on it costs.

CPU-seconds are those of the Python that drives Spark, of the JVM, and of everything that the JVM started, ended
processes included: Python workers, and the process that plans for the Java reader. Servers are no part of it.
"""

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.peers.systems import family
from benchmarks.workbench import median
from segmentstore.spark.jvm.jar_build import jvm_jar

_ROOT = Path(__file__).parents[2]
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_OWN_AND_CHILDREN = slice(11, 15)
"""In /proc/PID/stat behind the name: user and system time, and those of children that have ended."""


@dataclass(slots=True)
class Costs:
    """What the rounds of one case took."""

    cpu_seconds: list[float] = field(default_factory=list)
    wall_seconds: list[float] = field(default_factory=list)

    @property
    def cpu(self) -> float:
        return median(self.cpu_seconds)

    @property
    def wall(self) -> float:
        return median(self.wall_seconds)


class BenchSpark:
    """A running session."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        gateway = session.sparkContext._gateway
        assert gateway is not None, "a classic session has a gateway"
        self._jvm_id: int = gateway.proc.pid

    def measure(
        self, cases: Mapping[str, Callable[[], object]], *, warm_ups: int, rounds: int
    ) -> dict[str, Costs]:
        """Rounds of all cases in turn, so that all see the same machine; the first ones are not counted."""
        costs = {name: Costs() for name in cases}
        for number in range(warm_ups + rounds):
            for name, work in cases.items():
                cpu, wall = self._cpu_seconds(), time.perf_counter()
                work()
                if number >= warm_ups:
                    costs[name].wall_seconds.append(time.perf_counter() - wall)
                    costs[name].cpu_seconds.append(self._cpu_seconds() - cpu)
        return costs

    def _cpu_seconds(self) -> float:
        ticks = 0
        for process in family(self._jvm_id):
            try:
                stat = Path(f"/proc/{process}/stat").read_text()
            except FileNotFoundError:
                continue
            fields = stat.rpartition(")")[2].split()
            ticks += sum(int(field) for field in fields[_OWN_AND_CHILDREN])
        return ticks / _TICKS_PER_SECOND + time.process_time()


def drain(frame: DataFrame) -> None:
    """Make every row and throw it away."""
    frame.write.format("noop").mode("overwrite").save()


@contextmanager
def bench_spark(directory: Path, jars: Sequence[str] = ()) -> Iterator[BenchSpark]:
    """local[2] with the Java reader."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")])
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = (
            SparkSession.builder.master("local[2]")
            .appName("segmentstore-benchmark")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.memory", "2g")
            .config("spark.jars", ",".join([str(jvm_jar()), *jars]))
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.log.level", "ERROR")
            .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
            .config("spark.local.dir", str(directory / "local"))
            .getOrCreate()
        )
    try:
        yield BenchSpark(session)
    finally:
        session.stop()
