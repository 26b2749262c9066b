"""The HTTP server: Durable Streams at /v1/stream, the segment verbs at /v1/segments, /health and /metrics."""
