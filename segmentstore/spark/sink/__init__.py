"""Writes of Spark into streams, each batch exactly once."""
