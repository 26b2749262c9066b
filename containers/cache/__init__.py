"""Cache storage and its manager."""
