"""Signature Version 4: how a request becomes a text, and the text a signature. Pure functions.

    canonical request   METHOD, path, sorted query, signed headers one a line, empty line, their names, payload hash
    text to sign        "AWS4-HMAC-SHA256", time stamp, scope, SHA-256 of the canonical request
    signing key         HMAC chain of "AWS4" + secret over date, region, service, "aws4_request"

A chunk of a streamed body is signed with the signature before it, so that chunks cannot be left out or reordered.
"""

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote_to_bytes

ALGORITHM = "AWS4-HMAC-SHA256"
_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_QUERY_SIGNATURE = "X-Amz-Signature"


@dataclass(frozen=True, slots=True)
class Scope:
    """For what a signature counts."""

    date: str
    """YYYYMMDD."""
    region: str
    service: str

    def text(self) -> str:
        return f"{self.date}/{self.region}/{self.service}/aws4_request"


def signing_key(secret: str, scope: Scope) -> bytes:
    """One per day, region and service."""
    key = b"AWS4" + secret.encode()
    for step in (scope.date, scope.region, scope.service, "aws4_request"):
        key = hmac.digest(key, step.encode(), "sha256")
    return key


def canonical_request(
    *,
    method: str,
    raw_path: str,
    parameters: Iterable[tuple[str, str]],
    headers: Sequence[tuple[str, str]],
    payload_hash: str,
) -> str:
    """`headers`: the signed ones, names in lower case and sorted, values as they came (joined with commas)."""
    query = "&".join(
        f"{name}={value}"
        for name, value in sorted(
            (quote(name, safe=""), quote(value, safe=""))
            for name, value in parameters
            if name != _QUERY_SIGNATURE
        )
    )
    lines = [method, quote(unquote_to_bytes(raw_path), safe="/"), query]
    lines += [f"{name}:{' '.join(value.split())}" for name, value in headers]
    lines += ["", ";".join(name for name, _ in headers), payload_hash]
    return "\n".join(lines)


def request_signature(key: bytes, *, timestamp: str, scope: Scope, canonical: str) -> str:
    """In hexadecimal."""
    digest = hashlib.sha256(canonical.encode("utf-8", "surrogateescape")).hexdigest()
    return _sign(key, ALGORITHM, timestamp, scope.text(), digest)


def chunk_signature(
    key: bytes, *, timestamp: str, scope: Scope, previous: str, chunk_sha256: str
) -> str:
    """Of one chunk of a streamed body; `previous` is that of the chunk before, or of the request."""
    return _sign(
        key,
        f"{ALGORITHM}-PAYLOAD",
        timestamp,
        scope.text(),
        previous,
        _EMPTY_SHA256,
        chunk_sha256,
    )


def trailer_signature(
    key: bytes, *, timestamp: str, scope: Scope, previous: str, trailer: bytes
) -> str:
    """Of the trailing headers: each `name:value` with a line feed, as they are hashed."""
    return _sign(
        key,
        f"{ALGORITHM}-TRAILER",
        timestamp,
        scope.text(),
        previous,
        hashlib.sha256(trailer).hexdigest(),
    )


def same_signature(one: str, other: str) -> bool:
    """In constant time."""
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))


def _sign(key: bytes, *lines: str) -> str:
    return hmac.digest(key, "\n".join(lines).encode(), "sha256").hex()
