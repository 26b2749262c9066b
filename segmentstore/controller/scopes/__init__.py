"""Scopes: the namespaces of streams, reader groups and key-value tables."""
