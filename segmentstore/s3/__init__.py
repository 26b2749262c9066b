"""S3 over the volumes: buckets, objects, versions, locks and multipart uploads for clients of that protocol."""
