"""The native pieces of codecs; each has a twin in Python (segmentstore/runtime/native)."""
