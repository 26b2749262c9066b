"""The native pieces of the volumes; each has a twin in Python (`segmentstore/runtime/native`)."""
