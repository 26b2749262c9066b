"""Lets Spark find the data source `segmentstore` by itself: it imports every top-level module named pyspark_*."""

from segmentstore.spark.data_source import SegmentStoreDataSource as DefaultSource

__all__ = ["DefaultSource"]
