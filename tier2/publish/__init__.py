"""One flush of a container: planned, uploaded, and published as the next version of its manifest."""
