"""Request bodies: read whole, within a limit each and one together, and checked before any handler sees them.

A body may come in chunks of its own (`aws-chunked`), each with a signature if the client signs them:

    hex length [";chunk-signature=" 64 hex] CR LF, bytes, CR LF      repeated
    "0" [";chunk-signature=" 64 hex] CR LF                           the end of the bytes
    name ":" value CR LF                                             trailing headers
    ["x-amz-trailer-signature:" 64 hex CR LF] CR LF                  and theirs

Invariants:

- A body that is too large is refused from its declared length, before it is sent if the client asks first
  (`Expect: 100-continue`).
- Its whole length is taken from the budget before its first byte is read, in the order of asking, so that bodies never
  wait for each other half-read; what waits too long is told to slow down.
- What is handed out agrees with everything the client said of it: length, SHA-256 or signatures of the chunks,
  Content-MD5, checksums in headers or trailing ones.
- No byte of a chunk is handed out before the chunk's signature was checked; the lengths of the chunks add up to what
  the request declared; what `ChunkedBody` holds at a time is one chunk.
"""

import asyncio
import binascii
import hashlib
from base64 import b64decode
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from aiohttp import StreamReader, web

from segmentstore.s3.authentication import (
    UNSIGNED_PAYLOAD,
    Authenticated,
    chunk_signature,
    same_signature,
    trailer_signature,
)
from segmentstore.s3.checksums import CHECKSUM_HEADERS, HEADER_PREFIX, checksum_text
from segmentstore.s3.errors import S3Error
from segmentstore.s3.request import Call, require_known_checksum
from segmentstore.s3.settings import EndpointSettings
from tier2.volumes.objects import ContentDigest, digest

SIGNED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
SIGNED_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
_CHUNKED_PAYLOADS = (SIGNED, SIGNED_TRAILER, UNSIGNED_TRAILER)

_CHUNK_LINE_BYTES_MAX = 4096
_TRAILERS_MAX = 16
_CHUNK_EXTENSION = "chunk-signature="
_TRAILER_SIGNATURE_NAME = "x-amz-trailer-signature"
_BODY_TOO_LARGE = (
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


class MemoryBudget:
    """Bytes of all bodies held now, given out in the order of asking."""

    def __init__(self, *, bytes_max: int, wait_seconds_max: float) -> None:
        self._bytes_max = bytes_max
        self._wait_seconds_max = wait_seconds_max
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.bytes_held = 0

    @asynccontextmanager
    async def hold(self, count: int) -> AsyncIterator[None]:
        """Raises S3Error (SlowDown) if there is no room for too long. `count` is at most the whole budget."""
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
                raise S3Error("SlowDown", "Too many bodies are under way.") from error
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
        budget: MemoryBudget,
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
        """The whole body, held in the budget until the block ends. Raises S3Error.

        `checksums_are_of_body`: the headers of a completion have the checksum of the object, not of its document.
        """
        chunked = is_chunked(call.authenticated.payload)
        length = _declared_length(call, chunked=chunked)
        if length > length_max:
            raise S3Error("EntityTooLarge", _BODY_TOO_LARGE.format(length=length, limit=length_max))
        async with self._budget.hold(length):
            await call.expect_continue.give()
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
                async with aclosing(
                    body.pieces() if chunked else _unchunked_pieces(call)
                ) as arriving:
                    buffers = [piece async for piece in arriving]
        except TimeoutError as error:
            raise S3Error("RequestTimeout", "The body took too long to arrive.") from error
        except (web.RequestPayloadError, ConnectionError) as error:
            raise S3Error("IncompleteBody", "The body broke off.") from error
        received = sum(len(buffer) for buffer in buffers)
        if received != length:
            raise S3Error("IncompleteBody", f"The body has {received} bytes and declares {length}.")
        return buffers, dict(body.trailers)

    async def _checked(
        self, call: Call, buffers: list[bytes], length: int, claimed: dict[str, str]
    ) -> Body:
        payload = call.authenticated.payload
        sha256 = "" if payload == UNSIGNED_PAYLOAD or is_chunked(payload) else payload
        content_md5 = call.request.headers.get("Content-MD5")
        check = partial(_check_body, buffers, claimed, sha256, content_md5, self._piece_bytes)
        if length < self._settings.executor_bytes_min:
            md5, found = check()
        else:
            md5, found = await asyncio.get_running_loop().run_in_executor(self._executor, check)
        return Body(buffers=buffers, length=length, md5=md5, digest=found, checksums=claimed)


async def _unchunked_pieces(call: Call) -> AsyncGenerator[bytes, None]:
    content = call.request.content
    while not content.at_eof():
        piece = await content.readany()
        if piece:
            yield piece


def _declared_length(call: Call, *, chunked: bool) -> int:
    if chunked:
        text = call.header("x-amz-decoded-content-length") or ""
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise S3Error(
                "MissingContentLength", "x-amz-decoded-content-length is missing or no number."
            )
        return int(text)
    length = call.request.content_length
    if length is None:
        if call.request.can_read_body:
            raise S3Error("MissingContentLength", "Content-Length is missing.")
        return 0
    return length


def _claimed_checksums(call: Call, trailers: dict[str, str]) -> dict[str, str]:
    announced = {
        name.strip().lower()
        for name in (call.header("x-amz-trailer") or "").split(",")
        if name.strip()
    }
    if announced.difference(trailers):
        raise S3Error("IncompleteBody", "A trailing header that was announced is missing.")
    claimed: dict[str, str] = {}
    for source in (call.request.headers, call.query, trailers):
        for name, value in source.items():
            require_known_checksum(name.lower())
            if name.lower() in CHECKSUM_HEADERS:
                claimed[name.lower().removeprefix(HEADER_PREFIX)] = value
    return claimed


def _check_body(
    buffers: Sequence[bytes],
    claimed: dict[str, str],
    sha256: str,
    content_md5: str | None,
    piece_bytes: int,
) -> tuple[bytes, ContentDigest]:
    """The MD5 and the engine's digest. Raises S3Error. Blocking."""
    hasher = hashlib.md5(usedforsecurity=False)
    for buffer in buffers:
        hasher.update(buffer)
    md5 = hasher.digest()
    if content_md5 is not None and _decoded_md5(content_md5) != md5:
        raise S3Error("BadDigest", "The Content-MD5 is not that of the body.")
    found = digest(buffers, piece_bytes)
    if sha256 and found.content_hash.hex() != sha256:
        raise S3Error("XAmzContentSHA256Mismatch", "x-amz-content-sha256 is not that of the body.")
    for algorithm, value in claimed.items():
        if checksum_text(algorithm, buffers) != value:
            raise S3Error("BadDigest", f"The {algorithm} checksum is not that of the body.")
    return md5, found


def _decoded_md5(text: str) -> bytes:
    try:
        md5 = b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise S3Error("InvalidDigest", "Content-MD5 is not base64.") from error
    if len(md5) != 16:
        raise S3Error("InvalidDigest", "Content-MD5 has not 16 bytes.")
    return md5


def is_chunked(payload: str) -> bool:
    """Whether a body of that kind comes in chunks. Raises S3Error for kinds that are not known."""
    if payload.startswith("STREAMING-") and payload not in _CHUNKED_PAYLOADS:
        raise S3Error("NotImplemented", f"Payloads of this kind are not implemented: {payload}")
    return payload in _CHUNKED_PAYLOADS


class ChunkedBody:
    """Reads one body in chunks. pieces() to its end, then `trailers`."""

    def __init__(
        self,
        *,
        content: StreamReader,
        authenticated: Authenticated,
        length: int,
        executor: Executor | None,
        executor_bytes_min: int,
    ) -> None:
        """`length`: of the bytes without chunk headers, as the request declares it."""
        self._content = content
        self._authenticated = authenticated
        self._signed = authenticated.payload != UNSIGNED_TRAILER
        self._length = length
        self._executor = executor
        self._executor_bytes_min = executor_bytes_min
        self._signature = authenticated.signature
        self.trailers: Mapping[str, str] = {}

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The bytes of each chunk. Raises S3Error."""
        left = self._length
        while True:
            size, signature = self._header(await self._line())
            if size > left:
                raise _incomplete_body("its chunks are longer than it declares")
            if size == 0:
                break
            chunk = await self._exactly(size)
            if await self._exactly(2) != b"\r\n":
                raise _incomplete_body("a chunk does not end where it should")
            await self._check_chunk(chunk, signature)
            left -= size
            yield chunk
        await self._check_chunk(b"", signature)
        if left:
            raise _incomplete_body("its chunks are shorter than it declares")
        self.trailers = await self._read_trailers()

    def _header(self, line: bytes) -> tuple[int, str]:
        try:
            size, _, extension = line.decode("ascii").partition(";")
            if not size or len(size) > 16 or not size.isalnum():
                raise ValueError(size)
            length = int(size, 16)
        except ValueError as error:
            raise _incomplete_body("a chunk has no length") from error
        if not self._signed:
            return length, ""
        if not extension.startswith(_CHUNK_EXTENSION):
            raise S3Error("SignatureDoesNotMatch", "A chunk of the body is not signed.")
        return length, extension[len(_CHUNK_EXTENSION) :]

    async def _check_chunk(self, chunk: bytes, signature: str) -> None:
        if not self._signed:
            return
        if len(chunk) < self._executor_bytes_min:
            hashed = hashlib.sha256(chunk).hexdigest()
        else:
            loop = asyncio.get_running_loop()
            hashed = (await loop.run_in_executor(self._executor, hashlib.sha256, chunk)).hexdigest()
        by = self._authenticated
        expected = chunk_signature(
            by.signing_key,
            timestamp=by.timestamp,
            scope=by.scope,
            previous=self._signature,
            chunk_sha256=hashed,
        )
        self._require(expected, signature)
        self._signature = expected

    async def _read_trailers(self) -> dict[str, str]:
        """What follows the last chunk, to the empty line."""
        trailers: dict[str, str] = {}
        signed = b""
        signature = ""
        for _ in range(_TRAILERS_MAX):
            line = await self._line()
            if not line:
                break
            name, _, value = line.decode("utf-8", "replace").partition(":")
            name, value = name.strip().lower(), value.strip()
            if name == _TRAILER_SIGNATURE_NAME:
                signature = value
            else:
                trailers[name] = value
                signed += f"{name}:{value}\n".encode()
        else:
            raise _incomplete_body("it has too many trailing headers")
        if self._authenticated.payload == SIGNED_TRAILER:
            by = self._authenticated
            expected = trailer_signature(
                by.signing_key,
                timestamp=by.timestamp,
                scope=by.scope,
                previous=self._signature,
                trailer=signed,
            )
            self._require(expected, signature)
        elif trailers and self._authenticated.payload == SIGNED:
            raise _incomplete_body("it has trailing headers that nobody announced")
        return trailers

    @staticmethod
    def _require(expected: str, given: str) -> None:
        if not same_signature(expected, given):
            raise S3Error("SignatureDoesNotMatch", "The signature of a chunk does not match.")

    async def _line(self) -> bytes:
        try:
            line = await self._content.readline()
        except ValueError as error:
            raise _incomplete_body("a chunk's header is too long") from error
        if not line.endswith(b"\r\n") or len(line) > _CHUNK_LINE_BYTES_MAX:
            raise _incomplete_body("a chunk's header is cut off")
        return line[:-2]

    async def _exactly(self, count: int) -> bytes:
        try:
            return await self._content.readexactly(count)
        except asyncio.IncompleteReadError as error:
            raise _incomplete_body("it breaks off") from error


def _incomplete_body(why: str) -> S3Error:
    return S3Error("IncompleteBody", f"The body of the request cannot be used: {why}.")
