"""Measurements: each beside a limit or a peer of the same run."""
