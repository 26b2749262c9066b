"""Disaster recovery and backups: a store from what its Tier 2 holds, with no server running."""
