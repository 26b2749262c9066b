"""The native pieces of the file format; each has a twin in Python (segmentstore/runtime/native)."""
