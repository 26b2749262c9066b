"""Where things of the endpoint are in the engine.

    s3/b/BUCKET          the record of a bucket                      bucket_record
    s3/o/BUCKET/KEY      an object: its versions are the engine's

Invariants: bucket names hold no slash, so keys of two buckets never mix; within a bucket the order of the engine is
that of the keys' bytes, which is S3's; nothing of it begins as the keys of a segment store do (`tier2/`).
"""

BUCKETS = b"s3/b/"
_OBJECTS = b"s3/o/"
BEYOND = b"\xff"
"""Behind every UTF-8 text that continues a prefix."""


def bucket_key(bucket: str) -> bytes:
    """Of a bucket's record."""
    return BUCKETS + bucket.encode()


def objects_prefix(bucket: str) -> bytes:
    """What the keys of all objects of a bucket begin with."""
    return _OBJECTS + bucket.encode() + b"/"


def object_key(bucket: str, key: str) -> bytes:
    """Of an object."""
    return objects_prefix(bucket) + key.encode()
