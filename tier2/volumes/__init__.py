"""The embedded object store: objects in append-only volumes, an index beside them that can always be rebuilt."""
