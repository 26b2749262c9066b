"""The records in which the controller keeps scopes and streams: what a reader needs to find a stream's bytes."""
