"""The way back after a crash: the log is replayed over what Tier 2 has."""
