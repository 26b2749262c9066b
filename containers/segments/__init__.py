"""From a segment's name to an active segment: its handle, queries, merges by name, retention."""
