"""Segment containers: one container is one failure domain."""
