"""Nouns, errors and doors that every room shares. Imports only the standard library."""
