"""What the container believes: segment and container metadata, pending and committed."""
