"""Typed records in table segments, changed by atomic, conditional batches."""
