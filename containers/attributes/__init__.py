"""Attribute updates judged, and extended attributes within a bound."""
