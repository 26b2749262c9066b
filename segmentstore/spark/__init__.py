"""Spark over the store: the data source `segmentstore`, its Java reader, and the jobs of the data pipeline."""

from pathlib import Path


def jvm_jar() -> Path:
    """The jar of the format `segmentstore-jvm` for `spark.jars`, built if it is not there yet.

    Raises InvalidRequestError without a JDK, or if the sources do not compile against the installed Spark.
    """
    # Every Python process of Spark imports this package and few need the jar: the import takes 16 to 18 ms of CPU.
    from segmentstore.spark.jvm.jar_build import jvm_jar as built_jar

    return built_jar()
