"""Record topics: named logs of records in partitions, each of them a segment of record batches."""
