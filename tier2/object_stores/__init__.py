"""Object stores behind segmentstore/contracts/object_store.py: memory, a directory, volumes, a bucket of S3."""
