"""Table segments: keys, values and versions over a segment and its extended attributes."""
