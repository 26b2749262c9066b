"""How a Spark of the tests starts cheaply: from an archive of its classes, with the first compiler alone.

    .pytest_cache/spark-classes-<digest>.jsa

A JVM maps the archive instead of reading and checking fifteen thousand classes, which halves its CPU time until the
first answers. The archive is made once for each checkout by a Spark that does a little of everything; it fits one JVM
and one directory of jars, which are in its digest. A JVM that finds it unfit goes on without it.

    python -m tests.integration.spark.class_archive FILE    makes one
"""

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

from tests.kept_tools import made_by_one

_ROOT = Path(__file__).parents[3]
_CHEAP = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
_MAKE_SECONDS_MAX = 300


@functools.cache
def java_options() -> str:
    """For `spark.driver.extraJavaOptions`."""
    java = shutil.which("java") or ""
    facts = (os.path.realpath(java), pyspark.__file__, pyspark.__version__, _CHEAP)
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    kept = _ROOT / ".pytest_cache" / f"spark-classes-{digest}.jsa"
    with made_by_one(kept):
        if not kept.exists():
            _make(kept)
    # A JVM that knows nothing of archives has left none.
    return f'{_CHEAP} "-XX:SharedArchiveFile={kept}" {_QUIET}' if kept.stat().st_size else _CHEAP


def _make(kept: Path) -> None:
    """A file in any case, so that it is tried once. One that takes too long is not waited for: it only saves time."""
    made = kept.with_suffix(".new")
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        suppress(subprocess.TimeoutExpired),
    ):
        subprocess.run(
            [sys.executable, "-m", "tests.integration.spark.class_archive", str(made)],
            cwd=directory,
            env=os.environ
            | {"PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_MAKE_SECONDS_MAX,
            check=False,
        )
    made.touch()
    made.rename(kept)


def main(made: str) -> None:
    """Spark, and a little of what the tests do with it; the JVM writes the archive when it ends."""
    options = f'{_CHEAP} "-XX:ArchiveClassesAtExit={made}" {_QUIET}'
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", options)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    numbers = spark.range(100).selectExpr("id % 7 AS seventh", "id")
    numbers.groupBy("seventh").count().orderBy("seventh").collect()
    numbers.mapInArrow(lambda batches: batches, "seventh bigint, id bigint").count()
    numbers.write.parquet("numbers")
    spark.read.parquet("numbers").count()
    spark.stop()
    gateway = SparkContext._gateway
    assert gateway is not None, "a classic session has a gateway"
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_MAKE_SECONDS_MAX)


if __name__ == "__main__":
    main(sys.argv[1])
