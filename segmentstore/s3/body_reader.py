"""Request bodies: read whole, within a limit each and one together, and checked before anybody sees them.

Invariants:

- A body that is too large is refused from its declared length, before it is sent if the client asks first
  (`Expect: 100-continue`).
- Its whole length is taken from the budget before its first byte is read, in the order of asking, so that bodies never
  wait for each other half-read; what waits too long is told to slow down.
- What is handed out agrees with everything the client said of it: length, SHA-256 or signatures of the chunks,
  Content-MD5, checksums in headers or trailing ones.
"""

import asyncio
import binascii
import hashlib
from base64 import b64decode
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from concurrent.futures import Executor
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from aiohttp import web

from segmentstore.s3.authentication import UNSIGNED_PAYLOAD
from segmentstore.s3.call import Call
from segmentstore.s3.checksums import CHECKSUM_HEADERS, HEADER_PREFIX, checksum_text
from segmentstore.s3.chunked_body import ChunkedBody, is_chunked
from segmentstore.s3.failures import S3Failure
from segmentstore.s3.foreign_headers import require_known_checksum
from segmentstore.s3.settings import EndpointSettings
from tier2.volumes.content import ContentDigest, digest

_TOO_LARGE = (
    "The body has {length} bytes; at most {limit} can be sent in one request. "
    "Use a multipart upload with parts up to that size."
)


@dataclass(frozen=True, slots=True)
class Body:
    """A body that was checked."""

    buffers: Sequence[bytes]
    length: int
    md5: bytes
    digest: ContentDigest
    """What the engine wants to know of the bytes."""
    checksums: dict[str, str] = field(default_factory=dict)
    """By algorithm, as the client gave them: they are right."""

    def joined(self) -> bytes:
        return self.buffers[0] if len(self.buffers) == 1 else b"".join(self.buffers)


class BodyBudget:
    """Bytes of all bodies held now, given out in the order of asking."""

    def __init__(self, *, bytes_max: int, wait_seconds_max: float) -> None:
        self._bytes_max = bytes_max
        self._wait_seconds_max = wait_seconds_max
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.bytes_held = 0

    @asynccontextmanager
    async def hold(self, count: int) -> AsyncIterator[None]:
        """Raises S3Failure (SlowDown) if there is no room for too long. `count` is at most the whole budget."""
        await self._take(count)
        try:
            yield
        finally:
            self.bytes_held -= count
            self._let_in()

    async def _take(self, count: int) -> None:
        if not self._waiting and self.bytes_held + count <= self._bytes_max:
            self.bytes_held += count
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((count, future))
        try:
            async with asyncio.timeout(self._wait_seconds_max):
                await future
        except BaseException as error:
            if future.done() and not future.cancelled():
                self.bytes_held -= count
            self._waiting = deque(entry for entry in self._waiting if entry[1] is not future)
            self._let_in()
            if isinstance(error, TimeoutError):
                raise S3Failure("SlowDown", "Too many bodies are under way.") from error
            raise

    def _let_in(self) -> None:
        while self._waiting:
            count, future = self._waiting[0]
            if future.done():
                self._waiting.popleft()
                continue
            if self.bytes_held + count > self._bytes_max:
                return
            self._waiting.popleft()
            self.bytes_held += count
            future.set_result(None)


class BodyReader:
    """Reads request bodies under one budget."""

    def __init__(
        self,
        *,
        budget: BodyBudget,
        executor: Executor | None,
        settings: EndpointSettings,
        piece_bytes: int,
    ) -> None:
        """`piece_bytes`: of the engine."""
        self._budget = budget
        self._piece_bytes = piece_bytes
        self._executor = executor
        self._settings = settings

    @asynccontextmanager
    async def read(
        self, call: Call, length_max: int, *, checksums_are_of_body: bool = True
    ) -> AsyncIterator[Body]:
        """The whole body, held in the budget until the block ends. Raises S3Failure.

        `checksums_are_of_body`: the headers of a completion have the checksum of the object, not of its document.
        """
        chunked = is_chunked(call.authenticated.payload)
        length = _declared_length(call, chunked=chunked)
        if length > length_max:
            raise S3Failure("EntityTooLarge", _TOO_LARGE.format(length=length, limit=length_max))
        async with self._budget.hold(length):
            await call.invitation.give()
            buffers, trailers = await self._receive(call, length, chunked=chunked)
            claimed = _claimed_checksums(call, trailers) if checksums_are_of_body else {}
            yield await self._checked(call, buffers, length, claimed)

    async def _receive(
        self, call: Call, length: int, *, chunked: bool
    ) -> tuple[list[bytes], dict[str, str]]:
        settings = self._settings
        seconds = settings.body_seconds_max + length / settings.body_bytes_per_second_min
        body = ChunkedBody(
            content=call.request.content,
            authenticated=call.authenticated,
            length=length,
            executor=self._executor,
            executor_bytes_min=settings.executor_bytes_min,
        )
        try:
            async with asyncio.timeout(seconds):
                async with aclosing(body.pieces() if chunked else _pieces(call)) as arriving:
                    buffers = [piece async for piece in arriving]
        except TimeoutError as error:
            raise S3Failure("RequestTimeout", "The body took too long to arrive.") from error
        except (web.RequestPayloadError, ConnectionError) as error:
            raise S3Failure("IncompleteBody", "The body broke off.") from error
        received = sum(len(buffer) for buffer in buffers)
        if received != length:
            raise S3Failure(
                "IncompleteBody", f"The body has {received} bytes and declares {length}."
            )
        return buffers, dict(body.trailers)

    async def _checked(
        self, call: Call, buffers: list[bytes], length: int, claimed: dict[str, str]
    ) -> Body:
        payload = call.authenticated.payload
        sha256 = "" if payload == UNSIGNED_PAYLOAD or is_chunked(payload) else payload
        content_md5 = call.request.headers.get("Content-MD5")
        check = partial(_check, buffers, claimed, sha256, content_md5, self._piece_bytes)
        if length < self._settings.executor_bytes_min:
            md5, found = check()
        else:
            md5, found = await asyncio.get_running_loop().run_in_executor(self._executor, check)
        return Body(buffers=buffers, length=length, md5=md5, digest=found, checksums=claimed)


async def _pieces(call: Call) -> AsyncGenerator[bytes, None]:
    content = call.request.content
    while not content.at_eof():
        piece = await content.readany()
        if piece:
            yield piece


def _declared_length(call: Call, *, chunked: bool) -> int:
    if chunked:
        text = call.request.headers.get("x-amz-decoded-content-length", "")
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise S3Failure(
                "MissingContentLength", "x-amz-decoded-content-length is missing or no number."
            )
        return int(text)
    length = call.request.content_length
    if length is None:
        if call.request.can_read_body:
            raise S3Failure("MissingContentLength", "Content-Length is missing.")
        return 0
    return length


def _claimed_checksums(call: Call, trailers: dict[str, str]) -> dict[str, str]:
    announced = {
        name.strip().lower()
        for name in call.request.headers.get("x-amz-trailer", "").split(",")
        if name.strip()
    }
    if announced.difference(trailers):
        raise S3Failure("IncompleteBody", "A trailing header that was announced is missing.")
    claimed: dict[str, str] = {}
    for source in (call.request.headers, call.query, trailers):
        for name, value in source.items():
            require_known_checksum(name.lower())
            if name.lower() in CHECKSUM_HEADERS:
                claimed[name.lower().removeprefix(HEADER_PREFIX)] = value
    return claimed


def _check(
    buffers: Sequence[bytes],
    claimed: dict[str, str],
    sha256: str,
    content_md5: str | None,
    piece_bytes: int,
) -> tuple[bytes, ContentDigest]:
    """The MD5 and the engine's digest. Raises S3Failure. Blocking."""
    hasher = hashlib.md5(usedforsecurity=False)
    for buffer in buffers:
        hasher.update(buffer)
    md5 = hasher.digest()
    if content_md5 is not None and _md5_of(content_md5) != md5:
        raise S3Failure("BadDigest", "The Content-MD5 is not that of the body.")
    found = digest(buffers, piece_bytes)
    if sha256 and found.content_hash.hex() != sha256:
        raise S3Failure(
            "XAmzContentSHA256Mismatch", "x-amz-content-sha256 is not that of the body."
        )
    for algorithm, value in claimed.items():
        if checksum_text(algorithm, buffers) != value:
            raise S3Failure("BadDigest", f"The {algorithm} checksum is not that of the body.")
    return md5, found


def _md5_of(text: str) -> bytes:
    try:
        md5 = b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise S3Failure("InvalidDigest", "Content-MD5 is not base64.") from error
    if len(md5) != 16:
        raise S3Failure("InvalidDigest", "Content-MD5 has not 16 bytes.")
    return md5
