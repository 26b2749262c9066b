"""The segment file format: chunks of compressed, checksummed blocks, and the record encoding. Bytes only, no I/O."""
