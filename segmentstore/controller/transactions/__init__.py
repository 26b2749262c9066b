"""Transactions: written beside a stream's segments, merged into them in the order of their commits."""
