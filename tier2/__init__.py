"""Storage: chunked segments under one root per container, over an object store."""
