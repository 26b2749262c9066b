"""What the server answers: refusals by kind, security headers, the 204 of a plain append.

- Content is foreign: browsers must neither guess its type (nosniff) nor run it in this server's origin (CSP sandbox),
  or a stored text/html would be stored cross-site scripting.
- An answer that has begun is never followed by another one on its connection: `begun` around what it streams.
- A refusal is one exception with a status; every error of the store has a status by its kind. The body is always JSON:
  {"error": a sentence, "kind": what to do about it}.
- 503 and 507 say that nothing was done. A change whose outcome is unknown is answered with 500 (or, by a node that
  passed it on, 502 or 504), or its connection ends without an answer.
"""

import json
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from email.utils import formatdate

from aiohttp import ClientConnectionResetError, HttpVersion11, web

from segmentstore.contracts.errors import ErrorKind, SegmentStoreError, is_outcome_unknown
from segmentstore.runtime.clock import WallClock

logger = logging.getLogger(__name__)

SECURITY_HEADERS: Mapping[str, str] = {
    "Server": "segmentstore",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}
CONTENT_HEADERS: Mapping[str, str] = {
    **SECURITY_HEADERS,
    "Content-Security-Policy": "sandbox; default-src 'none'",
}
_SECURITY_HEADER_LINES = "".join(f"{name}: {value}\r\n" for name, value in SECURITY_HEADERS.items())
STATUS_OF_KIND: Mapping[ErrorKind, int] = {
    ErrorKind.INVALID: 400,
    ErrorKind.NOT_FOUND: 404,
    ErrorKind.CONFLICT: 409,
    ErrorKind.TOO_LARGE: 413,
    ErrorKind.UNAVAILABLE: 503,
    ErrorKind.FULL: 507,
    # Another process owns the container now: the next try finds it. 410 would say that the stream is gone.
    ErrorKind.FENCED: 503,
    ErrorKind.CORRUPT: 500,
}
_NOTHING_WAS_DONE: Mapping[int, str] = {503: "unavailable", 507: "full"}
"""What these statuses say, and the kind of an unknown outcome of the same cause."""
METHODS_THAT_CHANGE_NOTHING = frozenset({"GET", "HEAD", "OPTIONS"})


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


def refusal_response(refusal: Refusal) -> web.Response:
    """The one shape of an answer that is not a success."""
    headers = {
        **SECURITY_HEADERS,
        "Content-Type": "application/json",
        "Cache-Control": "no-store",
        **refusal.headers,
    }
    return web.Response(status=refusal.status, headers=headers, body=refusal.body())


def refusal_of(error: SegmentStoreError, retry_after_seconds: int, *, method: str) -> Refusal:
    """The HTTP answer to an error of the store, for a request of this method."""
    status = STATUS_OF_KIND[error.kind]
    if status != 503:
        return Refusal(status, str(error), kind=error.kind.value)
    if is_outcome_unknown(error) and method not in METHODS_THAT_CHANGE_NOTHING:
        return outcome_unknown(str(error), retry_after_seconds)
    return busy(str(error), retry_after_seconds)


def outcome_unknown(
    sentence: str, retry_after_seconds: int, *, kind: str = "unavailable"
) -> Refusal:
    """The change may have been made. 503 would say that it was not."""
    headers = {"Retry-After": str(retry_after_seconds)}
    return Refusal(500, f"the outcome is unknown: {sentence}", kind=kind, headers=headers)


@contextmanager
def change_begun(retry_after_seconds: int) -> Iterator[None]:
    """Around what may be done in part, or later, when an error ends it: 503 and 507, which say that nothing was done,
    become a 500. Raises Refusal."""
    try:
        yield
    except (Refusal, SegmentStoreError) as error:
        status = error.status if isinstance(error, Refusal) else STATUS_OF_KIND[error.kind]
        if status not in _NOTHING_WAS_DONE:
            raise
        kind = _NOTHING_WAS_DONE[status]
        raise outcome_unknown(str(error), retry_after_seconds, kind=kind) from error


def refusal_of_http(error: web.HTTPException) -> Refusal:
    """The same shape for what aiohttp itself refuses."""
    kind = "too_large" if error.status == 413 else "invalid"
    headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
    return Refusal(error.status, error.reason or "refused", kind=kind, headers=headers)


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
    """Nothing was done: a bound of this server is reached, or the container is away; a later try may succeed."""
    headers = {"Retry-After": str(retry_after_seconds)}
    return Refusal(503, sentence, kind="unavailable", headers=headers)


def json_response(status: int, value: object) -> web.Response:
    """An answer of this server's own making."""
    return json_bytes_response(status, json.dumps(value).encode())


def json_bytes_response(status: int, body: bytes) -> web.Response:
    """As json_response(), of what was encoded before."""
    headers = {**SECURITY_HEADERS, "Content-Type": "application/json", "Cache-Control": "no-store"}
    return web.Response(status=status, headers=headers, body=body)


@asynccontextmanager
async def begun(request: web.BaseRequest, response: web.StreamResponse) -> AsyncIterator[None]:
    """Send the head, then stream in the block.

    Whatever comes out of the block cuts the connection and goes no further: what answers errors would write a second
    head into this body, and a body that merely ended would pass for a whole one.
    """
    await response.prepare(request)
    try:
        yield
    except Exception as error:
        if not isinstance(error, SegmentStoreError | TimeoutError | ConnectionError):
            logger.exception("answer broke off method=%s path=%r", request.method, request.path)
        response.force_close()
        if request.transport is not None:
            request.transport.abort()


class HttpDate:
    """The Date header's value, made once a second."""

    def __init__(self, wall_clock: WallClock) -> None:
        self._wall_clock = wall_clock
        self._second = -1
        self._text = ""

    def text(self) -> str:
        second = self._wall_clock.now_ms() // 1000
        if second != self._second:
            self._second = second
            self._text = formatdate(second, usegmt=True)
        return self._text


class PlainAppendResponse(web.StreamResponse):
    """204 to a plain append, the most frequent answer by far: put together and written in one piece.

    It goes past the stages that every other answer goes through, which cost more than the append.

    - It says what every other 204 of this package says; only the way there is shorter.
    - What is added to `headers` before prepare() is sent too.
    - A client that does not read its answers is not answered further (the writer's limit holds here too).
    """

    def __init__(self, *, next_offset: str, date: str) -> None:
        super().__init__(status=204)
        self._next_offset = next_offset
        self._date = date
        self._stays_open = False

    @property
    def keep_alive(self) -> bool:
        """Whether the connection takes further requests; known from prepare() on."""
        return self._stays_open

    async def prepare(self, request: web.BaseRequest) -> None:
        """Send it. Raises ConnectionError when the client has gone."""
        self._stays_open = request.keep_alive
        head = "HTTP/1.1" if request.version == HttpVersion11 else "HTTP/1.0"
        head += (
            f" 204 No Content\r\n{_SECURITY_HEADER_LINES}Stream-Next-Offset: {self._next_offset}\r\n"
            f"Date: {self._date}\r\n"
        )
        if self.headers:
            head += "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        if not self._stays_open:
            head += "Connection: close\r\n"
        elif request.version != HttpVersion11:
            head += "Connection: keep-alive\r\n"
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ClientConnectionResetError("the client has gone")
        transport.write(f"{head}\r\n".encode())
        # A client that sends without reading waits here, and its answers do not pile up.
        await request.writer.drain()

    async def write_eof(self, data: bytes = b"") -> None:
        """All is sent."""
