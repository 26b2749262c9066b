"""Spark over the store: the data source and the jobs of the data pipeline."""
