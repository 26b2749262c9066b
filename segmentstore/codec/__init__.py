"""Bytes in, bytes out; no I/O."""
