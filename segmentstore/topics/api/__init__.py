"""Topics over gRPC."""
