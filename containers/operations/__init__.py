"""The operation types and their bytes."""
