"""A Spark that gives each task four attempts, of which the first one dies: reads with both readers, and writes;
a stream and a topic.

    python -m tests.integration.spark.retried_tasks TIER2 CONTROLLER FROM TO JAR KAFKA TOPIC

It is a program of its own because the attempts are a matter of the master, and there is one Spark for each process.
Prints, as JSON, the SHA-256 of each value that each reader gave.
"""

import hashlib
import json
import sys

from pyspark.sql import DataFrame, SparkSession

from tests.integration.spark.class_archive import java_options
from tests.integration.spark.dying_source import DyingSource, dying_rows

ATTEMPTS = 4


def main(
    tier2: str, controller: str, source: str, target: str, jar: str, kafka: str, topic: str
) -> None:
    spark = (
        SparkSession.builder.master(f"local[2,{ATTEMPTS}]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", java_options())
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
        .config("spark.log.level", "OFF")
        .config("spark.jars", jar)
        .getOrCreate()
    )
    spark.dataSource.register(DyingSource)

    def read(form: str) -> DataFrame:
        words = {"tier2": tier2, "controller": controller, "stream": source}
        return spark.read.format(form).options(**words).load().select("value")

    dying = read("segmentstore-dying")
    mapped = read("segmentstore-jvm").mapInArrow(dying_rows, "value binary")
    found = {
        name: [hashlib.sha256(row["value"]).hexdigest() for row in frame.collect()]
        for name, frame in {"python": dying, "java": mapped}.items()
    }
    rows = read("segmentstore-jvm").repartition(3)
    rows.write.format("segmentstore-dying").mode("append").options(
        controller=controller, stream=target
    ).save()
    rows.write.format("segmentstore-dying").mode("append").options(
        controller=controller, kafka=kafka, topic=topic
    ).save()
    records = spark.read.format("segmentstore-dying").options(kafka=kafka, topic=topic).load()
    found["topic"] = [
        hashlib.sha256(row["value"]).hexdigest() for row in records.select("*").collect()
    ]
    spark.stop()
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
