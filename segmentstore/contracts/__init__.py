"""Nouns, errors and interfaces that every package shares; imports only the standard library."""
