"""Who sends a request, and whether it is what was signed: in its headers or, presigned, in its query.

Invariants:

- Every request is signed; there are no anonymous ones.
- Everything that means something is under the signature: method, path, query, host and every x-amz-* header.
- A request counts for fifteen minutes around its time stamp, a presigned one for as long as it says.
- Signatures are compared in constant time, and before anything else of the request is looked at.

# Signature Version 4: how a request becomes a text, and the text a signature

    canonical request   METHOD, path, sorted query, signed headers one a line, empty line, their names, payload hash
    text to sign        "AWS4-HMAC-SHA256", time stamp, scope, SHA-256 of the canonical request
    signing key         HMAC chain of "AWS4" + secret over date, region, service, "aws4_request"

A chunk of a streamed body is signed with the signature before it, so that chunks cannot be left out or reordered.

# The key pair that clients sign with: given, or made at first start and kept where only the owner can read it

    DIR/s3_credentials.json    {"access_key": "...", "secret_key": "..."}, mode 0600
"""

import base64
import hashlib
import hmac
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random
from urllib.parse import quote, unquote_to_bytes

from multidict import CIMultiDictProxy

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.runtime.clock import WallClock
from segmentstore.s3.errors import S3Error
from segmentstore.s3.request_target import RequestTarget
from segmentstore.s3.settings import EndpointSettings

ALGORITHM = "AWS4-HMAC-SHA256"
UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"
_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
_SIGNATURE_PARAMETER = "X-Amz-Signature"
_SPACE_CHARACTERS = " \t\n\v\f\r"
_SPACES = re.compile(f"[{_SPACE_CHARACTERS}]+")
_TIMESTAMP_PATTERN = re.compile(r"[0-9]{8}T[0-9]{6}Z")
_SIGNING_KEYS_MAX = 64

FILE_NAME = "s3_credentials.json"
ACCESS_KEY_VARIABLE = "SEGMENTSTORE_S3_ACCESS_KEY"
SECRET_KEY_VARIABLE = "SEGMENTSTORE_S3_SECRET_KEY"
_SECRET_KEY_LENGTH_MIN = 8


@dataclass(frozen=True, slots=True)
class Scope:
    """For what a signature counts."""

    date: str
    """YYYYMMDD."""
    region: str
    service: str

    def text(self) -> str:
        return f"{self.date}/{self.region}/{self.service}/aws4_request"


@dataclass(frozen=True, slots=True)
class Authenticated:
    """What is known of a request whose signature is right."""

    access_key: str
    payload: str
    """SHA-256 of its body in hexadecimal, or how the body is signed instead."""
    signing_key: bytes
    scope: Scope
    timestamp: str
    signature: str
    """The first of the chain, if the body is signed chunk by chunk."""


@dataclass(frozen=True, slots=True)
class _SignatureClaim:
    """What a request says of its signature."""

    access_key: str
    scope: Scope
    signed_headers: Sequence[str]
    signature: str
    timestamp: str
    expires_seconds: int | None = None


class Authenticator:
    """Checks signatures against the known keys."""

    def __init__(
        self,
        *,
        secrets: Mapping[str, str],
        wall_clock: WallClock,
        settings: EndpointSettings,
    ) -> None:
        """`secrets`: secret key by access key."""
        self._secrets = dict(secrets)
        self._wall_clock = wall_clock
        self._settings = settings
        self._signing_keys: dict[tuple[str, Scope], bytes] = {}

    def authenticate(
        self, method: str, target: RequestTarget, headers: CIMultiDictProxy[str]
    ) -> Authenticated:
        """Raises S3Error."""
        presigned = "X-Amz-Algorithm" in target.query
        claim = (
            self._query_claim(target.query)
            if presigned
            else self._header_claim(headers, target.query)
        )
        secret = self._secrets.get(claim.access_key)
        if secret is None:
            raise S3Error("InvalidAccessKeyId", "The access key is not known here.")
        self._check_time(claim)
        _check_signed_headers(claim.signed_headers, headers)
        payload = headers.get("x-amz-content-sha256") or target.query.get("X-Amz-Content-Sha256")
        if payload is None:
            if not presigned:
                raise S3Error("MissingSecurityHeader", "x-amz-content-sha256 is missing.")
            payload = UNSIGNED_PAYLOAD
        key = self._signing_key(claim.access_key, secret, claim.scope)
        signed = [(name, ",".join(headers.getall(name, []))) for name in claim.signed_headers]
        for fold in _FOLDS if any(not value.isascii() for _, value in signed) else _FOLDS[:1]:
            expected = request_signature(
                key,
                timestamp=claim.timestamp,
                scope=claim.scope,
                canonical=canonical_request(
                    method=method,
                    raw_path=target.raw_path,
                    parameters=target.parameters,
                    headers=signed,
                    payload_hash=payload,
                    fold=fold,
                ),
            )
            if same_signature(expected, claim.signature):
                break
        else:
            raise S3Error(
                "SignatureDoesNotMatch",
                "The signature is not that of this request and this secret key.",
            )
        return Authenticated(
            claim.access_key, payload, key, claim.scope, claim.timestamp, claim.signature
        )

    def _signing_key(self, access_key: str, secret: str, scope: Scope) -> bytes:
        found = self._signing_keys.get((access_key, scope))
        if found is None:
            if len(self._signing_keys) >= _SIGNING_KEYS_MAX:
                self._signing_keys.clear()
            found = self._signing_keys[access_key, scope] = signing_key(secret, scope)
        return found

    def _check_time(self, claim: _SignatureClaim) -> None:
        signed_ms = _milliseconds_of_timestamp(claim.timestamp)
        now_ms = self._wall_clock.now_ms()
        skew_ms = self._settings.clock_skew_seconds_max * 1000
        if claim.expires_seconds is None:
            if abs(now_ms - signed_ms) > skew_ms:
                raise S3Error(
                    "RequestTimeTooSkewed",
                    "The time of the request is too far from the time here.",
                )
        elif now_ms < signed_ms - skew_ms:
            raise S3Error("AccessDenied", "The request does not count yet.")
        elif now_ms > signed_ms + claim.expires_seconds * 1000:
            raise S3Error("AccessDenied", "Request has expired")

    # --- claims ----------------------------------------------------------------------------------

    def _header_claim(
        self, headers: CIMultiDictProxy[str], query: Mapping[str, str]
    ) -> _SignatureClaim:
        authorization = headers.get("Authorization")
        if authorization is None and "AWSAccessKeyId" in query:
            authorization = "AWS"  # presigned by the version before
        if authorization is None:
            raise S3Error("AccessDenied", "The request is not signed.")
        algorithm, _, rest = authorization.strip().partition(" ")
        if algorithm != ALGORITHM:
            raise S3Error(
                "InvalidRequest",
                f"Please sign requests with {ALGORITHM} (presigned URLs too: signature_version s3v4).",
            )
        fields = {
            name.strip(): value.strip()
            for name, _, value in (part.partition("=") for part in rest.split(","))
        }
        timestamp = headers.get("x-amz-date", "")
        try:
            access_key, scope = _parse_credential(fields["Credential"])
            claim = _SignatureClaim(
                access_key=access_key,
                scope=scope,
                signed_headers=_parse_signed_headers(fields["SignedHeaders"]),
                signature=fields["Signature"],
                timestamp=timestamp,
            )
        except (KeyError, ValueError) as error:
            raise S3Error(
                "AuthorizationHeaderMalformed", "The Authorization header cannot be read."
            ) from error
        _check_timestamp(claim, "AccessDenied")
        return claim

    def _query_claim(self, query: Mapping[str, str]) -> _SignatureClaim:
        code = "AuthorizationQueryParametersError"
        if query["X-Amz-Algorithm"] != ALGORITHM:
            raise S3Error(code, f"X-Amz-Algorithm has to be {ALGORITHM}.")
        try:
            access_key, scope = _parse_credential(query["X-Amz-Credential"])
            claim = _SignatureClaim(
                access_key=access_key,
                scope=scope,
                signed_headers=_parse_signed_headers(query["X-Amz-SignedHeaders"]),
                signature=query["X-Amz-Signature"],
                timestamp=query["X-Amz-Date"],
                expires_seconds=int(query["X-Amz-Expires"]),
            )
        except (KeyError, ValueError) as error:
            raise S3Error(code, "The signature in the query cannot be read.") from error
        if not 0 < (claim.expires_seconds or 0) <= self._settings.presigned_seconds_max:
            raise S3Error(
                code,
                f"X-Amz-Expires is between 1 and {self._settings.presigned_seconds_max} seconds.",
            )
        _check_timestamp(claim, code)
        return claim


def _parse_credential(text: str) -> tuple[str, Scope]:
    access_key, date, region, service, ending = text.rsplit("/", 4)
    if service != "s3" or ending != "aws4_request" or not access_key:
        raise ValueError("not a credential of this service")
    return access_key, Scope(date, region, service)


def _parse_signed_headers(text: str) -> tuple[str, ...]:
    names = tuple(text.split(";"))
    if names != tuple(sorted(name.lower() for name in names)):
        raise ValueError("signed headers are not sorted")
    return names


def _check_timestamp(claim: _SignatureClaim, code: str) -> None:
    try:
        _milliseconds_of_timestamp(claim.timestamp)
    except ValueError as error:
        raise S3Error(code, "The request has no valid x-amz-date.") from error
    if claim.scope.date != claim.timestamp[:8]:
        raise S3Error(code, "The credential is of another day than the request.")


def _check_signed_headers(signed: Sequence[str], headers: CIMultiDictProxy[str]) -> None:
    unsigned = {name.lower() for name in headers if name.lower().startswith("x-amz-")}
    if "host" not in signed or unsigned.difference(signed):
        raise S3Error(
            "AccessDenied",
            "There were headers present in the request which were not signed",
        )


def _milliseconds_of_timestamp(timestamp: str) -> int:
    """Raises ValueError."""
    if _TIMESTAMP_PATTERN.fullmatch(timestamp) is None:
        raise ValueError(f"not a moment of a signature: {timestamp[:40]!r}")
    return int(datetime.fromisoformat(timestamp).timestamp()) * 1000


def fold_spaces(value: str) -> str:
    """Those of ASCII, as AWS has it: the wide space of a Japanese name is signed as it is."""
    return " ".join(_SPACES.split(value.strip(_SPACE_CHARACTERS)))


def fold_all_spaces(value: str) -> str:
    """Those of Unicode as well, as clients do whose language has a function for it (MinIO's, aiobotocore)."""
    return " ".join(value.split())


_FOLDS = (fold_spaces, fold_all_spaces)


def canonical_request(
    *,
    method: str,
    raw_path: str,
    parameters: Iterable[tuple[str, str]],
    headers: Sequence[tuple[str, str]],
    payload_hash: str,
    fold: Callable[[str], str] = fold_spaces,
) -> str:
    """`headers`: the signed ones, names in lower case and sorted, values as they came (joined with commas).

    `fold` makes one of several spaces in them.
    """
    query = "&".join(
        f"{name}={value}"
        for name, value in sorted(
            (quote(name, safe=""), quote(value, safe=""))
            for name, value in parameters
            if name != _SIGNATURE_PARAMETER
        )
    )
    lines = [method, quote(unquote_to_bytes(raw_path), safe="/"), query]
    lines += [f"{name}:{fold(value)}" for name, value in headers]
    lines += ["", ";".join(name for name, _ in headers), payload_hash]
    return "\n".join(lines)


def signing_key(secret: str, scope: Scope) -> bytes:
    """One per day, region and service."""
    key = b"AWS4" + secret.encode()
    for step in (scope.date, scope.region, scope.service, "aws4_request"):
        key = hmac.digest(key, step.encode(), "sha256")
    return key


def request_signature(key: bytes, *, timestamp: str, scope: Scope, canonical: str) -> str:
    """In hexadecimal."""
    digest = hashlib.sha256(canonical.encode("utf-8", "surrogateescape")).hexdigest()
    return _signature_of(key, ALGORITHM, timestamp, scope.text(), digest)


def chunk_signature(
    key: bytes, *, timestamp: str, scope: Scope, previous: str, chunk_sha256: str
) -> str:
    """Of one chunk of a streamed body; `previous` is that of the chunk before, or of the request."""
    return _signature_of(
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
    return _signature_of(
        key,
        f"{ALGORITHM}-TRAILER",
        timestamp,
        scope.text(),
        previous,
        hashlib.sha256(trailer).hexdigest(),
    )


def _signature_of(key: bytes, *lines: str) -> str:
    return hmac.digest(key, "\n".join(lines).encode(), "sha256").hex()


def same_signature(one: str, other: str) -> bool:
    """In constant time."""
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class Credentials:
    """One key pair."""

    access_key: str
    secret_key: str

    def __repr__(self) -> str:
        return f"Credentials(access_key={self.access_key!r}, secret_key=hidden)"


def given_credentials(access_key: str, secret_key: str) -> Credentials | None:
    """None if there are none. Raises InvalidRequestError for half of them, or for such as no client could sign with."""
    if not access_key and not secret_key:
        return None
    if not access_key or not secret_key:
        raise InvalidRequestError(
            f"{ACCESS_KEY_VARIABLE} and {SECRET_KEY_VARIABLE} are given together or not at all"
        )
    if "/" in access_key or "," in access_key or len(secret_key) < _SECRET_KEY_LENGTH_MIN:
        raise InvalidRequestError(
            f"an access key has no slash and no comma, and a secret key at least {_SECRET_KEY_LENGTH_MIN} characters"
        )
    return Credentials(access_key, secret_key)


def kept_credentials(directory: str, random: Random) -> tuple[Credentials, bool]:
    """Those of the directory, and whether they are new. Blocking. Raises InvalidRequestError, OSError."""
    path = Path(directory, FILE_NAME)
    if path.exists():
        return _read_credentials(path), False
    made = Credentials(
        access_key=base64.b32encode(random.randbytes(12)).decode().rstrip("="),
        secret_key=base64.urlsafe_b64encode(random.randbytes(30)).decode(),
    )
    _write_credentials(path, made)
    return made, True


def _read_credentials(path: Path) -> Credentials:
    if path.stat().st_mode & 0o077:
        raise InvalidRequestError(f"others can read the secret key: chmod 600 {path}")
    try:
        fields = json.loads(path.read_text())
        return Credentials(fields["access_key"], fields["secret_key"])
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRequestError(f"the credentials cannot be read path={path}") from error


def _write_credentials(path: Path, credentials: Credentials) -> None:
    # Under another name until it is whole; never with other rights than the owner's, not even for a moment.
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    content = json.dumps(
        {"access_key": credentials.access_key, "secret_key": credentials.secret_key}
    )
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(content + "\n")
    temporary.replace(path)
