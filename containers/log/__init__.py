"""Data frames, operation processor, in-memory log, checkpoints, throttling, recovery."""
