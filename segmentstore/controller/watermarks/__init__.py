"""Watermarks: times that writers note, tied to positions for readers."""
