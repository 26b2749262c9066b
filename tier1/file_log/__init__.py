"""The log of a single host: journal files in one directory, group commit, a lock and an epoch."""
