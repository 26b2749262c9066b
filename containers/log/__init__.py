"""From an operation to its acknowledgement: accepted, framed, durable in Tier 1, applied in memory; log truncation."""
