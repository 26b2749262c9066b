"""What lies below a manifest: keys and values, the bytes of SSTs, and a cached reader of them."""
