"""Retention: streams lose their oldest bytes by age, by size, or when everybody has read them."""
