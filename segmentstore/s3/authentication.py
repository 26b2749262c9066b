"""Who sends a request, and whether it is what was signed: in its headers or, presigned, in its query.

Invariants:

- Every request is signed; there are no anonymous ones.
- Everything that means something is under the signature: method, path, query, host and every x-amz-* header.
- A request counts for fifteen minutes around its time stamp, a presigned one for as long as it says.
- Signatures are compared in constant time, and before anything else of the request is looked at.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from multidict import CIMultiDictProxy

from segmentstore.runtime.clock import WallClock
from segmentstore.s3.failures import S3Failure
from segmentstore.s3.request_target import RequestTarget
from segmentstore.s3.settings import EndpointSettings
from segmentstore.s3.signature_v4 import (
    ALGORITHM,
    Scope,
    canonical_request,
    request_signature,
    same_signature,
    signing_key,
)

UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"
_SIGNING_KEYS_MAX = 64
_TIMESTAMP = re.compile(r"[0-9]{8}T[0-9]{6}Z")


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
class _Claim:
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
        """Raises S3Failure."""
        presigned = "X-Amz-Algorithm" in target.query
        claim = (
            self._query_claim(target.query)
            if presigned
            else self._header_claim(headers, target.query)
        )
        secret = self._secrets.get(claim.access_key)
        if secret is None:
            raise S3Failure("InvalidAccessKeyId", "The access key is not known here.")
        self._check_time(claim)
        _check_signed_headers(claim.signed_headers, headers)
        payload = headers.get("x-amz-content-sha256") or target.query.get("X-Amz-Content-Sha256")
        if payload is None:
            if not presigned:
                raise S3Failure("MissingSecurityHeader", "x-amz-content-sha256 is missing.")
            payload = UNSIGNED_PAYLOAD
        key = self._signing_key(claim.access_key, secret, claim.scope)
        expected = request_signature(
            key,
            timestamp=claim.timestamp,
            scope=claim.scope,
            canonical=canonical_request(
                method=method,
                raw_path=target.raw_path,
                parameters=target.parameters,
                headers=[
                    (name, ",".join(headers.getall(name, []))) for name in claim.signed_headers
                ],
                payload_hash=payload,
            ),
        )
        if not same_signature(expected, claim.signature):
            raise S3Failure(
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

    def _check_time(self, claim: _Claim) -> None:
        signed_ms = _milliseconds(claim.timestamp)
        now_ms = self._wall_clock.now_ms()
        skew_ms = self._settings.clock_skew_seconds_max * 1000
        if claim.expires_seconds is None:
            if abs(now_ms - signed_ms) > skew_ms:
                raise S3Failure(
                    "RequestTimeTooSkewed",
                    "The time of the request is too far from the time here.",
                )
        elif now_ms < signed_ms - skew_ms:
            raise S3Failure("AccessDenied", "The request does not count yet.")
        elif now_ms > signed_ms + claim.expires_seconds * 1000:
            raise S3Failure("AccessDenied", "Request has expired")

    # --- claims ----------------------------------------------------------------------------------

    def _header_claim(self, headers: CIMultiDictProxy[str], query: Mapping[str, str]) -> _Claim:
        authorization = headers.get("Authorization")
        if authorization is None and "AWSAccessKeyId" in query:
            authorization = "AWS"  # presigned by the version before
        if authorization is None:
            raise S3Failure("AccessDenied", "The request is not signed.")
        algorithm, _, rest = authorization.strip().partition(" ")
        if algorithm != ALGORITHM:
            raise S3Failure(
                "InvalidRequest",
                f"Please sign requests with {ALGORITHM} (presigned URLs too: signature_version s3v4).",
            )
        fields = {
            name.strip(): value.strip()
            for name, _, value in (part.partition("=") for part in rest.split(","))
        }
        timestamp = headers.get("x-amz-date", "")
        try:
            access_key, scope = _credential(fields["Credential"])
            claim = _Claim(
                access_key=access_key,
                scope=scope,
                signed_headers=_names(fields["SignedHeaders"]),
                signature=fields["Signature"],
                timestamp=timestamp,
            )
        except (KeyError, ValueError) as error:
            raise S3Failure(
                "AuthorizationHeaderMalformed", "The Authorization header cannot be read."
            ) from error
        _check_timestamp(claim, "AccessDenied")
        return claim

    def _query_claim(self, query: Mapping[str, str]) -> _Claim:
        code = "AuthorizationQueryParametersError"
        if query["X-Amz-Algorithm"] != ALGORITHM:
            raise S3Failure(code, f"X-Amz-Algorithm has to be {ALGORITHM}.")
        try:
            access_key, scope = _credential(query["X-Amz-Credential"])
            claim = _Claim(
                access_key=access_key,
                scope=scope,
                signed_headers=_names(query["X-Amz-SignedHeaders"]),
                signature=query["X-Amz-Signature"],
                timestamp=query["X-Amz-Date"],
                expires_seconds=int(query["X-Amz-Expires"]),
            )
        except (KeyError, ValueError) as error:
            raise S3Failure(code, "The signature in the query cannot be read.") from error
        if not 0 < (claim.expires_seconds or 0) <= self._settings.presigned_seconds_max:
            raise S3Failure(
                code,
                f"X-Amz-Expires is between 1 and {self._settings.presigned_seconds_max} seconds.",
            )
        _check_timestamp(claim, code)
        return claim


def _credential(text: str) -> tuple[str, Scope]:
    access_key, date, region, service, ending = text.rsplit("/", 4)
    if service != "s3" or ending != "aws4_request" or not access_key:
        raise ValueError("not a credential of this service")
    return access_key, Scope(date, region, service)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(";"))
    if names != tuple(sorted(name.lower() for name in names)):
        raise ValueError("signed headers are not sorted")
    return names


def _check_timestamp(claim: _Claim, code: str) -> None:
    try:
        _milliseconds(claim.timestamp)
    except ValueError as error:
        raise S3Failure(code, "The request has no valid x-amz-date.") from error
    if claim.scope.date != claim.timestamp[:8]:
        raise S3Failure(code, "The credential is of another day than the request.")


def _check_signed_headers(signed: Sequence[str], headers: CIMultiDictProxy[str]) -> None:
    unsigned = {name.lower() for name in headers if name.lower().startswith("x-amz-")}
    if "host" not in signed or unsigned.difference(signed):
        raise S3Failure(
            "AccessDenied",
            "There were headers present in the request which were not signed",
        )


def _milliseconds(timestamp: str) -> int:
    """Raises ValueError."""
    if _TIMESTAMP.fullmatch(timestamp) is None:
        raise ValueError(f"not a moment of a signature: {timestamp[:40]!r}")
    return int(datetime.fromisoformat(timestamp).timestamp()) * 1000
