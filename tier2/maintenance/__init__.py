"""What the owner of a container does in the background: merge, compact, swap, delete, scrub."""
