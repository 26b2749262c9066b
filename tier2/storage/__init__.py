"""Tier 2 of one container: one root, sorted runs and chunks below it, published together, read with every checksum."""
