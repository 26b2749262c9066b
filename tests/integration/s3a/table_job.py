"""A Spark job over `s3a://`, in a process of its own: a table is written, read, overwritten, renamed and removed.

    python table_job.py ENDPOINT ACCESS_KEY SECRET_KEY JARS BUCKET ROWS JAVA_OPTIONS COMMITTER...

For each committer, one after the other, it prints a line of JSON: what it has seen.
"""

import json
import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, sha2

PART_BYTES = 5 << 20
FILES = 6


def session_for(
    endpoint: str, access_key: str, secret_key: str, jars: str, java_options: str
) -> SparkSession:
    settings = {
        "endpoint": endpoint,
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
        "access.key": access_key,
        "secret.key": secret_key,
        "multipart.size": str(PART_BYTES),
        "multipart.threshold": str(PART_BYTES),
    }
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.extraJavaOptions", java_options)
        .config("spark.jars", jars)
    )
    for name, value in settings.items():
        builder = builder.config(f"spark.hadoop.fs.s3a.{name}", value)
    return builder.getOrCreate()


def use_magic_committer(spark: SparkSession) -> None:
    """Tasks upload parts of what is there only when the job completes the uploads: nothing is renamed."""
    configuration = java(spark)._jsc.hadoopConfiguration()
    configuration.set("fs.s3a.committer.name", "magic")
    configuration.set(
        "mapreduce.outputcommitter.factory.scheme.s3a",
        "org.apache.hadoop.fs.s3a.commit.S3ACommitterFactory",
    )


def java(spark: SparkSession) -> Any:
    """What is behind it, without types."""
    return spark


def use_table(spark: SparkSession, place: str, count: int) -> dict[str, object]:
    rows = spark.range(count).withColumn("text", sha2(col("id").cast("string"), 256))
    rows.repartition(FILES).write.parquet(f"{place}/table")
    table = spark.read.parquet(f"{place}/table")
    wrong = table.where(col("text") != sha2(col("id").cast("string"), 256))
    seen: dict[str, object] = {
        "rows": table.count(),
        "different": table.select("id").distinct().count(),
        "wrong": wrong.count(),
    }
    table.repartition(1).write.csv(f"{place}/large")
    rows.limit(100).write.mode("overwrite").parquet(f"{place}/table")
    seen["overwritten"] = spark.read.parquet(f"{place}/table").count()
    path = java(spark)._jvm.org.apache.hadoop.fs.Path
    files = path(place).getFileSystem(java(spark)._jsc.hadoopConfiguration())
    seen["renamed"] = files.rename(path(f"{place}/large"), path(f"{place}/moved"))
    seen["moved"] = spark.read.csv(f"{place}/moved").count()
    seen["removed"] = files.delete(path(f"{place}/moved"), True)
    seen["left"] = [status.getPath().getName() for status in files.listStatus(path(place))]
    return seen


def main(words: list[str]) -> None:
    endpoint, access_key, secret_key, jars, bucket, rows, java_options, *committers = words
    spark = session_for(endpoint, access_key, secret_key, jars, java_options)
    for committer in committers:
        if committer == "magic":
            use_magic_committer(spark)
        seen = use_table(spark, f"s3a://{bucket}/{committer}", int(rows))
        sys.stdout.write(json.dumps(seen) + "\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
