"""The `segmentstore` command."""
