"""How the HTTP room says no: one exception with a status, and the status of every error of the store.

The body is always JSON: {"error": a sentence, "kind": what to do about it}.
"""

import json
from collections.abc import Mapping, Sequence

from aiohttp import web

from segmentstore.contracts.errors import ErrorKind, SegmentStoreError

STATUS_OF_KIND: Mapping[ErrorKind, int] = {
    ErrorKind.INVALID: 400,
    ErrorKind.NOT_FOUND: 404,
    ErrorKind.CONFLICT: 409,
    ErrorKind.TOO_LARGE: 413,
    ErrorKind.UNAVAILABLE: 503,
    ErrorKind.FULL: 507,
    ErrorKind.FENCED: 410,
    ErrorKind.CORRUPT: 500,
}


class Refusal(Exception):  # noqa: N818 - it is an answer, not a fault
    """An answer that is not a success, raised from wherever it became clear.

    Not for errors of the store: those carry a kind and are translated by `refusal_of`.
    """

    def __init__(
        self,
        status: int,
        sentence: str,
        *,
        kind: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.kind = kind
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        return json.dumps({"error": str(self), "kind": self.kind}).encode()


def bad_request(sentence: str) -> Refusal:
    """The request can never succeed as it stands."""
    return Refusal(400, sentence, kind="invalid")


def not_found(sentence: str) -> Refusal:
    """There is nothing of that name."""
    return Refusal(404, sentence, kind="not_found")


def conflict(sentence: str, headers: Mapping[str, str] | None = None) -> Refusal:
    """The request met a state that forbids it."""
    return Refusal(409, sentence, kind="conflict", headers=headers)


def method_not_allowed(what: str, methods: Sequence[str]) -> Refusal:
    """The path is known, the method is not."""
    allowed = ", ".join(methods)
    return Refusal(405, f"{what} is {allowed}", kind="invalid", headers={"Allow": allowed})


def gone(sentence: str) -> Refusal:
    """It was there and will not come back."""
    return Refusal(410, sentence, kind="gone")


def too_large(length: int, length_max: int, what: str = "body") -> Refusal:
    """Names the limit, so that the client can cut its data."""
    return Refusal(
        413, f"{what} is too large bytes={length} bytes_max={length_max}", kind="too_large"
    )


def busy(sentence: str, retry_after_seconds: int) -> Refusal:
    """A bound of this server is reached; the same request may succeed later."""
    headers = {"Retry-After": str(retry_after_seconds)}
    return Refusal(503, sentence, kind="unavailable", headers=headers)


def refusal_of(error: SegmentStoreError, retry_after_seconds: int) -> Refusal:
    """The HTTP answer to an error of the store."""
    status = STATUS_OF_KIND[error.kind]
    headers = {"Retry-After": str(retry_after_seconds)} if status == 503 else None
    return Refusal(status, str(error), kind=error.kind.value, headers=headers)


def refusal_of_http(error: web.HTTPException) -> Refusal:
    """The same shape for what aiohttp itself refuses."""
    kind = "too_large" if error.status == 413 else "invalid"
    headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
    return Refusal(error.status, error.reason or "refused", kind=kind, headers=headers)
