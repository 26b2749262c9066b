"""Requests to the bucket: bounded, counted, repeated where that is safe, and their errors in the words of this project.

Invariants:

- At most `requests_max` requests are under way; nothing is sent while no caller asks for something.
- The client library repeats nothing by itself (it is configured so, and OneAttemptSession sees to what lies below it);
  `once` repeats nothing either; `repeatable` repeats after a pause that grows and is drawn at random, so that many
  callers do not come back in step.
- Every foreign error, of S3 or of its client library, is translated once and leaves as one of ours, `from` its cause.
- Requests are counted by operation, as they are billed: every attempt counts, also one that failed. Counters only grow.

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
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import TypeVar

import aiohttp
from aiobotocore.httpsession import AIOHTTPSession
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
from segmentstore.runtime.backoff import Backoff
from tier2.object_stores.s3.settings import RequestPrices, S3Settings

FOREIGN_ERRORS = (BotoCoreError, ClientError, aiohttp.ClientError, OSError, asyncio.TimeoutError)
"""Everything that a call of the client library raises when the other side, or the way to it, fails."""

CREDENTIAL_STATES = frozenset({"credentials_missing", "credentials_expired", "access_denied"})
"""Others may be there meanwhile; a secret that was changed under the same name is answered as access denied."""

NO_STATE = "ok"
"""An answer that is no trouble: no such object, or a condition that does not hold."""

_STATE_OF_CODE = {
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
_NOT_FOUND_CODES = frozenset({"NoSuchKey", "404", "NotFound", "NoSuchVersion", "NoSuchUpload"})
_FULL_CODES = frozenset({"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "507"})
_PRECONDITION_CODES = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412"})
_STALLED_CODE = "RequestTimeout"
"""A 400 for a body that did not come in time: of the way, not of the request."""
_ANSWERED_STATES = frozenset({NO_STATE, "throttled", "full"})
"""What a service says that this process reaches, and whose credentials it knows."""
_REPEATED_STATES = frozenset({"unavailable", "throttled"})
_SERVER_ERROR_STATUS_MIN = 500
_CONFLICT_STATUS = 409
"""Amazon's OperationAborted; a gateway over a file system has other codes, as when it removes the empty directory into
which an object is just being put. A condition that does not hold has a code of its own."""
_THROTTLING_STATUSES = frozenset({429, 503})
"""Whatever the code says: gateways have words of their own, or none."""

_READ_OPERATIONS = frozenset({"get_object", "head_object"})
_DELETE_OPERATIONS = frozenset({"delete_object", "abort_multipart_upload"})

_Answer = TypeVar("_Answer")


class ConditionFailedError(Exception):
    """A conditional request was answered "precondition failed"; whether it once succeeded is unknown."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt."""

    error: SegmentStoreError
    state: str
    may_repeat: bool
    condition_failed: bool = False
    """A precondition did not hold, or a racing request won: the outcome of this one is unknown."""
    collided: bool = False
    """Refused because of another request that ran at the same moment: nothing was done, and a repeat may go well."""


class RequestSender:
    """Where every request of one store passes."""

    def __init__(
        self, *, settings: S3Settings, random: Random, renew: Callable[[], Awaitable[None]]
    ) -> None:
        """`renew` is called before an attempt that follows one whose credentials were refused."""
        self._settings = settings
        self._renew = renew
        self._credentials_refused = False
        self._random = random
        self._places = asyncio.Semaphore(settings.requests_max)
        self.statistics = RequestStatistics(settings.prices)

    async def once(
        self, operation: str, key: str, request: Callable[[], Awaitable[_Answer]]
    ) -> _Answer:
        """One attempt that may have an effect. Raises ConditionFailedError, StorageError."""
        return await self._attempts(operation, key, request, lambda failure: failure.collided)

    async def repeatable(
        self, operation: str, key: str, request: Callable[[], Awaitable[_Answer]]
    ) -> _Answer:
        """As many attempts as the settings allow. `request` may take effect more than once, with the same result."""
        return await self._attempts(operation, key, request, lambda failure: failure.may_repeat)

    async def _attempts(
        self,
        operation: str,
        key: str,
        request: Callable[[], Awaitable[_Answer]],
        may_repeat: Callable[[Failure], bool],
    ) -> _Answer:
        attempts_left = self._settings.attempts_max
        backoff = Backoff(
            seconds_first=self._settings.retry_seconds_first,
            seconds_max=self._settings.retry_seconds_max,
            random=self._random,
        )
        while True:
            answer = await self._attempt(operation, key, request)
            if not isinstance(answer, Failure):
                return answer
            attempts_left -= 1
            if not may_repeat(answer) or attempts_left <= 0:
                raise _error_of(answer)
            self.statistics.retries += 1
            await asyncio.sleep(backoff.next_seconds())

    async def _attempt(
        self, operation: str, key: str, request: Callable[[], Awaitable[_Answer]]
    ) -> "_Answer | Failure":
        async with self._places:
            self.statistics.requests[operation] += 1
            try:
                if self._credentials_refused:
                    self._credentials_refused = False
                    await self._renew()
                answer = await request()
            except FOREIGN_ERRORS as error:
                failure = classify(error, operation=operation, key=key)
                failure.error.__cause__ = error
                self._credentials_refused |= failure.state in CREDENTIAL_STATES
                if failure.state != NO_STATE:
                    self.statistics.failures[failure.state] += 1
                self.statistics.answers += failure.state in _ANSWERED_STATES
                return failure
            self.statistics.answers += 1
            return answer


def _error_of(failure: Failure) -> Exception:
    if failure.condition_failed:
        refused = ConditionFailedError(str(failure.error))
        refused.__cause__ = failure.error.__cause__
        return refused
    return failure.error


def classify(cause: BaseException, *, operation: str, key: str) -> Failure:
    """The failure that a foreign error stands for."""
    where = f"operation={operation} key={key}"
    if isinstance(cause, ClientError):
        return _failure_of_answer(cause, where)
    if isinstance(cause, NoCredentialsError | PartialCredentialsError | CredentialRetrievalError):
        state = "credentials_missing"
        error = StorageUnavailableError(f"s3: no usable credentials: {cause} {where}", state=state)
        return Failure(error, state, may_repeat=False)
    network = isinstance(cause, HTTPClientError | aiohttp.ClientError | OSError)
    error = StorageUnavailableError(f"s3 does not answer: {cause!r} {where}", state="unavailable")
    return Failure(error, "unavailable", may_repeat=network)


def _failure_of_answer(cause: ClientError, where: str) -> Failure:
    answer = cause.response
    code = str(answer.get("Error", {}).get("Code", ""))
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    text = str(answer.get("Error", {}).get("Message", ""))
    if code in _NOT_FOUND_CODES:
        return Failure(ObjectNotFoundError(f"object does not exist {where}"), NO_STATE, False)
    if code in _PRECONDITION_CODES or status == 412:
        error = StorageUnavailableError(f"s3: the condition failed {where}", state="unavailable")
        return Failure(error, NO_STATE, may_repeat=False, condition_failed=True)
    if code in _FULL_CODES:
        return Failure(StorageFullError(f"s3 has no room left: {text} {where}"), "full", False)
    state = _STATE_OF_CODE.get(
        code, "throttled" if status in _THROTTLING_STATUSES else "unavailable"
    )
    error = StorageUnavailableError(f"s3 refuses: {code} {text} {where}", state=state)
    passes = status >= _SERVER_ERROR_STATUS_MIN or state == "throttled" or code == _STALLED_CODE
    collided = status == _CONFLICT_STATUS
    repeat = (state in _REPEATED_STATES and passes) or collided
    return Failure(error, state, may_repeat=repeat, collided=collided)


class RequestStatistics:
    """Counts of one store. The keys are the names of the client library's calls.

    What the counts come to in dollars is an estimate by the prices in the settings.
    """

    def __init__(self, prices: RequestPrices) -> None:
        self._prices = prices
        self.requests: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        """By state, see the table of this module."""
        self.answers = 0
        """Attempts that reached the service: done, no such object, a condition that does not hold, slow down, full."""
        self.retries = 0
        self.sent_bytes = 0
        self.received_bytes = 0

    def cost_usd(self, operation: str) -> float:
        """What the requests of one operation have cost so far, in US dollars."""
        if operation in _DELETE_OPERATIONS:
            price = self._prices.delete_usd
        elif operation in _READ_OPERATIONS:
            price = self._prices.read_usd
        else:
            price = self._prices.write_usd
        return self.requests[operation] * price

    def total_cost_usd(self) -> float:
        """What all requests have cost so far."""
        return sum(self.cost_usd(operation) for operation in self.requests)


class OneAttemptSession(AIOHTTPSession):  # type: ignore[misc] # the library has no types
    """The HTTP session of the client library, without the repetition that lies below it: one request is sent once.

    aiohttp sends an idempotent request (PUT is one) a second time when a kept-alive connection turns out to be closed.
    For a conditional put that is a hidden second attempt, whose answer is then that of the second and not of the first.
    """

    async def _get_session(self, proxy_url: str | None) -> aiohttp.ClientSession:
        session: aiohttp.ClientSession = await super()._get_session(proxy_url)
        # aiohttp has no public switch for it; its own test client sets the same attribute.
        session._retry_connection = False
        return session
