"""The service: shared words at its bottom, the process at its top. Imports nothing."""
