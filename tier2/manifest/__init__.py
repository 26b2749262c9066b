"""The one mutable object of a container: claimed, replaced by compare-and-set, read as one map of all its SSTs."""
