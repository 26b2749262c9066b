"""Tier 2: the segments of a container as chunks and SSTs below one manifest, in an object store."""
