"""What a request is about: bucket, key and query, decoded from its path exactly once.

Invariants: keys are UTF-8 of 1 to 1024 bytes without NUL; a key whose segments climb above its bucket is refused,
although it could do no harm here, because other stores would take it for a path.
"""

from dataclasses import dataclass
from urllib.parse import unquote_plus, unquote_to_bytes

from segmentstore.s3.failures import S3Failure

KEY_BYTES_MAX = 1024
_PARAMETERS_MAX = 100


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
    """Raises S3Failure (InvalidURI, KeyTooLongError)."""
    bucket, _, rest = raw_path.removeprefix("/").partition("/")
    parameters = _parameters(raw_query)
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
    """A key as it stands in a path. Raises S3Failure."""
    return checked_key(decode_text(encoded))


def checked_key(key: str) -> str:
    """A decoded key, if it can be one. Raises S3Failure."""
    if len(key.encode()) > KEY_BYTES_MAX:
        raise S3Failure("KeyTooLongError", f"A key has at most {KEY_BYTES_MAX} bytes.")
    check_key(key)
    return key


def check_key(key: str) -> None:
    """Raises S3Failure."""
    if "\0" in key:
        raise S3Failure("InvalidURI", "A key cannot hold a zero byte.")
    depth = 0
    for segment in key.split("/"):
        depth += -1 if segment == ".." else segment not in {"", "."}
        if depth < 0:
            raise S3Failure("InvalidURI", "A key cannot climb above its bucket.")


def decode_text(encoded: str) -> str:
    """Percent-decoded once, as UTF-8. Raises S3Failure."""
    try:
        return unquote_to_bytes(encoded).decode()
    except UnicodeError as error:
        raise S3Failure("InvalidURI", "The address of the request is not UTF-8.") from error


def _parameters(raw_query: str) -> tuple[tuple[str, str], ...]:
    pairs = [pair for pair in raw_query.split("&") if pair]
    if len(pairs) > _PARAMETERS_MAX:
        raise S3Failure("InvalidURI", "The query has too many parameters.")
    try:
        return tuple(
            (unquote_plus(name, errors="strict"), unquote_plus(value, errors="strict"))
            for name, _, value in (pair.partition("=") for pair in pairs)
        )
    except UnicodeError as error:
        raise S3Failure("InvalidURI", "The query of the request is not UTF-8.") from error
