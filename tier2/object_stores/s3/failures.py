"""What went wrong, in the words of this project: the foreign errors of S3 and its client library, translated once.

| state | what a person sees in `/health` | repeated |
|---|---|---|
| unavailable | no answer, a broken connection, a 5xx | yes |
| throttled | the service asks to slow down | yes |
| credentials_missing, credentials_expired | a person must act; renewed ones are found without a restart | no |
| access_denied | the same: a secret may have been changed under its name | no |
| clock_skew | this machine's clock is too far off for signatures | no |
| bucket_missing | the bucket does not exist | no |

A state is an answer to "why does nothing move", never a reason to give a write up: the caller keeps the bytes in
Tier 1 and tries again.
"""

import asyncio
from dataclasses import dataclass

import aiohttp
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
)

from segmentstore.contracts.errors import (
    ObjectNotFoundError,
    SegmentStoreError,
    StorageFullError,
    StorageUnavailableError,
)

FOREIGN_ERRORS = (BotoCoreError, ClientError, aiohttp.ClientError, OSError, asyncio.TimeoutError)
"""Everything that a call of the client library raises when the other side, or the way to it, fails."""

CREDENTIAL_STATES = frozenset({"credentials_missing", "credentials_expired", "access_denied"})
"""Others may be there meanwhile; a secret that was changed under the same name is answered as access denied."""

NO_STATE = "ok"
"""An answer that is no trouble: no such object, or a condition that does not hold."""

_STATES = {
    "SlowDown": "throttled",
    "Throttling": "throttled",
    "ThrottlingException": "throttled",
    "RequestLimitExceeded": "throttled",
    "TooManyRequests": "throttled",
    "ExpiredToken": "credentials_expired",
    "ExpiredTokenException": "credentials_expired",
    "InvalidToken": "credentials_expired",
    "TokenRefreshRequired": "credentials_expired",
    "InvalidAccessKeyId": "credentials_missing",
    "SignatureDoesNotMatch": "access_denied",
    "AccessDenied": "access_denied",
    "AllAccessDisabled": "access_denied",
    "Forbidden": "access_denied",
    "403": "access_denied",
    "RequestTimeTooSkewed": "clock_skew",
    "RequestExpired": "clock_skew",
    "NoSuchBucket": "bucket_missing",
}
_NOT_FOUND = frozenset({"NoSuchKey", "404", "NotFound", "NoSuchVersion", "NoSuchUpload"})
_FULL = frozenset({"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "507"})
_PRECONDITION = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412"})
_STALLED = "RequestTimeout"
"""A 400 for a body that did not come in time: of the way, not of the request."""
_REPEATED_STATES = frozenset({"unavailable", "throttled"})
_SERVER_ERROR = 500
_THROTTLING = frozenset({429, 503})
"""Whatever the code says: gateways have words of their own, or none."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt."""

    error: SegmentStoreError
    state: str
    may_repeat: bool
    condition_failed: bool = False
    """A precondition did not hold, or a racing request won: the outcome of this one is unknown (H4)."""


def classify(cause: BaseException, *, operation: str, key: str) -> Failure:
    """The failure that a foreign error stands for."""
    where = f"operation={operation} key={key}"
    if isinstance(cause, ClientError):
        return _of_answer(cause, where)
    if isinstance(cause, NoCredentialsError | PartialCredentialsError | CredentialRetrievalError):
        state = "credentials_missing"
        error = StorageUnavailableError(f"s3: no usable credentials: {cause} {where}", state=state)
        return Failure(error, state, may_repeat=False)
    network = isinstance(cause, HTTPClientError | aiohttp.ClientError | OSError)
    error = StorageUnavailableError(f"s3 does not answer: {cause!r} {where}", state="unavailable")
    return Failure(error, "unavailable", may_repeat=network)


def _of_answer(cause: ClientError, where: str) -> Failure:
    answer = cause.response
    code = str(answer.get("Error", {}).get("Code", ""))
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    text = str(answer.get("Error", {}).get("Message", ""))
    if code in _NOT_FOUND:
        return Failure(ObjectNotFoundError(f"object does not exist {where}"), NO_STATE, False)
    if code in _PRECONDITION or status == 412:
        error = StorageUnavailableError(f"s3: the condition failed {where}", state="unavailable")
        return Failure(error, NO_STATE, may_repeat=False, condition_failed=True)
    if code in _FULL:
        return Failure(StorageFullError(f"s3 has no room left: {text} {where}"), "full", False)
    state = _STATES.get(code, "throttled" if status in _THROTTLING else "unavailable")
    error = StorageUnavailableError(f"s3 refuses: {code} {text} {where}", state=state)
    passes = status >= _SERVER_ERROR or state == "throttled" or code == _STALLED
    repeat = state in _REPEATED_STATES and passes
    return Failure(error, state, may_repeat=repeat)
