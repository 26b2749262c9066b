"""Lets Spark find the data source `segmentstore` by itself: it imports every top-level module named pyspark_*."""
