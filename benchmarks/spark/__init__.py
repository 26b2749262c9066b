"""Spark over Tier 2 beside Parquet and beside Kafka's source: `spark_scan`, `spark_scale` and `spark_plan` run it."""
