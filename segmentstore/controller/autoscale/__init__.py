"""Automatic scaling by measured rates."""
