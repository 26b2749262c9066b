"""Memory for bytes that Tier 2 lacks and for what was read or written lately, shared by all containers."""
