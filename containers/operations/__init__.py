"""What a container promises, as objects and as bytes: operations, their records, and snapshots of metadata."""
