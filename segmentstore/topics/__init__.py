"""Record topics: partitions of batches with offsets, consumer groups, and ids of producers. See DESIGN.md."""
