"""Tier 1: the durable data logs. One container writes one log; an acknowledged entry survives anything."""
