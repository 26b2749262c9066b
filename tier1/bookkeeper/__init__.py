"""The durable data log on Apache BookKeeper."""
