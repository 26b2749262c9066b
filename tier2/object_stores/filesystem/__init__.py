"""An object store in a directory: one file for each object, durable on return, shared by processes of one host."""
