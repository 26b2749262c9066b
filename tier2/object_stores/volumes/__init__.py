"""The embedded object store as an ObjectStore."""
