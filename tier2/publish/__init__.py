"""Publish."""
