"""The same events in a Kafka topic, and Spark's source for it.

The newest release of the source that Maven Central has is older than the Spark used here; it runs all the same. Of the
token provider, which only clusters with Kerberos use, there is an older release still.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.peers.systems import TOPIC, KafkaBroker
from benchmarks.spark.streams import SEGMENTS, VALUE_BYTES
from tests.integration.java_libraries import class_path

POM = Path(__file__).parent / "pom.xml"


def kafka_jars() -> list[str]:
    """The source and what it needs, from Maven; nothing where Maven cannot fetch it."""
    try:
        return class_path(POM).split(":")
    except AssertionError as error:
        print(f"  Kafka's source is left out: {str(error)[:200]}")
        return []


@contextmanager
def kafka_topic(directory: Path, events: int) -> Iterator[Mapping[str, str]]:
    """A broker with so many events of noise, and the options that read them."""
    broker = KafkaBroker(directory)
    try:
        broker.write(size=VALUE_BYTES, count=events)
        yield {
            "kafka.bootstrap.servers": broker.address,
            "subscribe": TOPIC,
            "startingOffsets": "earliest",
            "endingOffsets": "latest",
            "minPartitions": str(SEGMENTS),
        }
    finally:
        broker.stop()


def kafka_frame(session: SparkSession, options: Mapping[str, str]) -> DataFrame:
    return session.read.format("kafka").options(**options).load()
