"""Streams as micro-batches: how much of which segment comes next, in which order, and what is remembered of it."""
