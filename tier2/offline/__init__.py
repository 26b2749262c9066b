"""Tools for a container that need no owner: prove it, find what is lost, copy it."""
