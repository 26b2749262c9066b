"""Read index, read results, tail reads, Tier-2 fetches."""
