"""Streams as reads see them: which segments there are, in which order, and positions in them."""
