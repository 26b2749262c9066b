"""What a request is about: bucket, key and query, decoded from its path once; and where these are in the engine.

    s3/b/BUCKET          the record of a bucket (buckets.py)
    s3/o/BUCKET/KEY      an object: its versions are the engine's

Invariants:

- Keys are UTF-8 of 1 to 1024 bytes without NUL; a key whose segments climb above its bucket is refused, although it
  could do no harm here, because other stores would take it for a path.
- Bucket names hold no slash, so keys of two buckets never mix.
- Within a bucket the order of the engine is that of the keys' bytes, which is S3's.
- Nothing of it begins as the keys of a segment store do (`tier2/`).
"""

from dataclasses import dataclass
from urllib.parse import unquote_plus, unquote_to_bytes

from segmentstore.s3.errors import S3Error

_NULL_VERSION = "null"
S3_KEY_BYTES_MAX = 1024
_PARAMETERS_MAX = 100

BUCKETS = b"s3/b/"
_OBJECTS_PREFIX = b"s3/o/"
BEYOND = b"\xff"
"""Behind every UTF-8 text that continues a prefix."""


def stored_version_id(shown: str) -> str:
    """What the engine calls a version: the one that clients call "null" has the empty id."""
    return "" if shown == _NULL_VERSION else shown


def shown_version_id(stored: str) -> str:
    """What clients call a version of the engine."""
    return stored or _NULL_VERSION


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """The address of a request, decoded."""

    raw_path: str
    bucket: str
    """Empty: the service itself."""
    key: str
    """Empty: the bucket itself."""
    parameters: tuple[tuple[str, str], ...]
    """All of the query, in its order."""
    query: dict[str, str]
    """The first value of each name."""

    @property
    def key_bytes(self) -> bytes:
        return self.key.encode()


def parse_target(raw_path: str, raw_query: str) -> RequestTarget:
    """Raises S3Error (InvalidURI, KeyTooLongError)."""
    bucket, _, rest = raw_path.removeprefix("/").partition("/")
    parameters = _query_parameters(raw_query)
    query: dict[str, str] = {}
    for name, value in parameters:
        query.setdefault(name, value)
    return RequestTarget(
        raw_path=raw_path,
        bucket=decode_text(bucket),
        key=decode_key(rest),
        parameters=parameters,
        query=query,
    )


def decode_key(encoded: str) -> str:
    """A key as it stands in a path. Raises S3Error."""
    return checked_key(decode_text(encoded))


def checked_key(key: str) -> str:
    """A decoded key, if it can be one. Raises S3Error."""
    if len(key.encode()) > S3_KEY_BYTES_MAX:
        raise S3Error("KeyTooLongError", f"A key has at most {S3_KEY_BYTES_MAX} bytes.")
    check_key(key)
    return key


def check_key(key: str) -> None:
    """Raises S3Error."""
    if "\0" in key:
        raise S3Error("InvalidURI", "A key cannot hold a zero byte.")
    depth = 0
    for segment in key.split("/"):
        depth += -1 if segment == ".." else segment not in {"", "."}
        if depth < 0:
            raise S3Error("InvalidURI", "A key cannot climb above its bucket.")


def decode_text(encoded: str) -> str:
    """Percent-decoded once, as UTF-8. Raises S3Error."""
    try:
        return unquote_to_bytes(encoded).decode()
    except UnicodeError as error:
        raise S3Error("InvalidURI", "The address of the request is not UTF-8.") from error


def _query_parameters(raw_query: str) -> tuple[tuple[str, str], ...]:
    pairs = [pair for pair in raw_query.split("&") if pair]
    if len(pairs) > _PARAMETERS_MAX:
        raise S3Error("InvalidURI", "The query has too many parameters.")
    try:
        return tuple(
            (unquote_plus(name, errors="strict"), unquote_plus(value, errors="strict"))
            for name, _, value in (pair.partition("=") for pair in pairs)
        )
    except UnicodeError as error:
        raise S3Error("InvalidURI", "The query of the request is not UTF-8.") from error


def bucket_key(bucket: str) -> bytes:
    """Of a bucket's record."""
    return BUCKETS + bucket.encode()


def objects_prefix(bucket: str) -> bytes:
    """What the keys of all objects of a bucket begin with."""
    return _OBJECTS_PREFIX + bucket.encode() + b"/"


def object_key(bucket: str, key: str) -> bytes:
    """Of an object."""
    return objects_prefix(bucket) + key.encode()
