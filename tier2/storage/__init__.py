"""Tier 2 of one container: one root, sorted runs and chunks below it, published together and read with every checksum."""
