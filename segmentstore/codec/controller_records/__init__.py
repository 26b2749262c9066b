"""Controller records."""
