"""Object stores behind the door in segmentstore/contracts/object_store.py: memory for tests, files for one host."""
