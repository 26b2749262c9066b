"""Topics for Spark: their records as rows, and rows as their records."""
