"""The data pipeline as Spark jobs: export, import, verify, compact, stats."""
