"""Stands between a store and its server, and does to single requests what networks and services do.

`plan` takes the faults of the next matching requests, in order; whatever has no fault goes through.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum
from io import BytesIO

import aiohttp
from aiohttp import web


class Fault(Enum):
    LOST_ANSWER = "the server did it, the connection breaks before the answer"
    LOST_REQUEST = "the connection breaks before the server hears of it"
    SLOW_DOWN = "503 SlowDown"
    TOO_MANY = "429 with another code"
    SERVER_ERROR = "500 InternalError"
    EXPIRED_TOKEN = "400 ExpiredToken"
    INVALID_TOKEN = "400 InvalidToken"
    OTHER_SECRET = "403 SignatureDoesNotMatch"
    CLOCK_SKEW = "403 RequestTimeTooSkewed"
    REQUEST_TIMEOUT = "400 RequestTimeout"
    NO_SUCH_UPLOAD = "404 NoSuchUpload"
    ABORTED = "409 OperationAborted"
    IS_DIRECTORY = "409 ExistingObjectIsDirectory"
    RANGE_IGNORED = "200 with the whole object"
    NO_TAG = "an answer without its ETag"
    HALF_BODY = "the connection breaks in the middle of the answer"


_ANSWERS = {
    Fault.SLOW_DOWN: (503, "SlowDown"),
    Fault.TOO_MANY: (429, "RateLimited"),
    Fault.SERVER_ERROR: (500, "InternalError"),
    Fault.EXPIRED_TOKEN: (400, "ExpiredToken"),
    Fault.INVALID_TOKEN: (400, "InvalidToken"),
    Fault.OTHER_SECRET: (403, "SignatureDoesNotMatch"),
    Fault.CLOCK_SKEW: (403, "RequestTimeTooSkewed"),
    Fault.REQUEST_TIMEOUT: (400, "RequestTimeout"),
    Fault.NO_SUCH_UPLOAD: (404, "NoSuchUpload"),
    Fault.ABORTED: (409, "OperationAborted"),
    Fault.IS_DIRECTORY: (409, "ExistingObjectIsDirectory"),
}


@dataclass(frozen=True)
class Seen:
    method: str
    path_and_query: str


class FaultyProxy:
    def __init__(self, target: str) -> None:
        self._target = target
        self._faults: dict[str, deque[Fault | None]] = {}
        self.seen: list[Seen] = []
        self.url = ""
        self.expired_key = ""
        """Requests that this access key has signed are refused,"""
        self.refusal = Fault.EXPIRED_TOKEN
        """with this answer."""

    def plan(self, method: str, *faults: Fault | None) -> None:
        """Faults of the next requests of that method; None lets one through."""
        self._faults.setdefault(method, deque()).extend(faults)

    def forget_plans(self) -> None:
        self._faults.clear()

    def count(self, method: str) -> int:
        return sum(one.method == method for one in self.seen)

    async def start(self) -> None:
        application = web.Application(client_max_size=1 << 30)
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        # The target signs off on the host that the client signed, so that header goes through as it is.
        self._client = aiohttp.ClientSession(auto_decompress=False)

    async def close(self) -> None:
        await self._client.close()
        await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.seen.append(Seen(request.method, request.raw_path))
        waiting = self._faults.get(request.method)
        fault = waiting.popleft() if waiting else None
        if fault is Fault.LOST_REQUEST:
            return self._hang_up(request)
        signature = request.headers.get("Authorization", "")
        if self.expired_key and f"Credential={self.expired_key}/" in signature:
            fault = self.refusal
        if fault is not None and fault in _ANSWERS:
            status, code = _ANSWERS[fault]
            text = f"<Error><Code>{code}</Code><Message>as planned</Message></Error>"
            return web.Response(status=status, text=text, content_type="application/xml")
        headers = request.headers.copy()
        if fault is Fault.RANGE_IGNORED:
            headers.popall("Range")  # no client signs it
        async with self._client.request(
            request.method,
            self._target + request.raw_path,
            headers=headers,
            data=BytesIO(body),
            skip_auto_headers=("Content-Type",),
        ) as answer:
            content = await answer.read()
        if fault is Fault.LOST_ANSWER:
            return self._hang_up(request)
        left_out = {"transfer-encoding", "connection", "content-length", "date"}
        if fault is Fault.NO_TAG:
            left_out.add("etag")
        answered = {
            name: value for name, value in answer.headers.items() if name.lower() not in left_out
        }
        if fault is Fault.HALF_BODY:
            response = web.StreamResponse(status=answer.status, headers=answered)
            response.content_length = len(content)
            await response.prepare(request)
            await response.write(content[: len(content) // 2])
            self._hang_up(request)
            return response
        if request.method == "HEAD":
            answered["Content-Length"] = answer.headers.get("Content-Length", "0")
        return web.Response(status=answer.status, body=content, headers=answered)

    def _hang_up(self, request: web.Request) -> web.Response:
        transport = request.transport
        assert transport is not None, "the client is gone already"
        transport.abort()
        return web.Response(status=500)
