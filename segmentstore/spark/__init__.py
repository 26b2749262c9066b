"""Spark over the store: the data source and the jobs of the data pipeline."""

from segmentstore.spark.jvm.jar_build import jvm_jar

__all__ = ["jvm_jar"]
