"""Request bodies: read within a limit each and one together, and checked before anything of them counts.

A body up to `held_body_bytes_max` is held in memory, and handed out when it is whole and checked (`read`). A larger one
is handed on as it arrives, to be written into a file, and counts when it is whole and checked (`stream`).

A body may come in chunks of its own (`aws-chunked`), each with a signature if the client signs them:

    hex length [";chunk-signature=" 64 hex] CR LF, bytes, CR LF      repeated
    "0" [";chunk-signature=" 64 hex] CR LF                           the end of the bytes
    name ":" value CR LF                                             trailing headers
    ["x-amz-trailer-signature:" 64 hex CR LF] CR LF                  and theirs

MinIO's clients end each trailing header with LF, as it is signed, and all of them together with CR LF.

Invariants:

- A body that is too large is refused from its declared length, before it is sent if the client asks first
  (`Expect: 100-continue`).
- What a body will hold in memory, its whole length or a few windows of it, is taken from the budget before its first
  byte is read, in the order of asking, so that bodies never wait for each other half-read; what waits too long is told
  to slow down.
- What was taken is given back: a body of which nothing arrives for a while, or that falls too far behind the least
  rate, is given up, however long it said that it would be.
- `read` and `stream` return only if the body agrees with everything the client said of it: length, SHA-256 or
  signatures of the chunks, Content-MD5, checksums in headers or trailing ones. What `stream` handed on before is
  nothing until then.
- The lengths of the chunks add up to what the request declared. `ChunkedBody` hands out the bytes of a chunk as they
  come, however long the chunk is, and raises behind the last of them if its signature is not theirs.
"""

import asyncio
import binascii
import hashlib
from base64 import b64decode
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from concurrent.futures import Executor
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TypeAlias, TypeVar

from aiohttp import StreamReader, web

from segmentstore.s3.authentication import (
    UNSIGNED_PAYLOAD,
    Authenticated,
    chunk_signature,
    same_signature,
    trailer_signature,
)
from segmentstore.s3.checksums import (
    ALGORITHMS,
    CHECKSUM_HEADERS,
    HEADER_PREFIX,
    checksum_text,
    text_of,
)
from segmentstore.s3.errors import S3Error
from segmentstore.s3.request import Call, require_known_checksum
from segmentstore.s3.settings import EndpointSettings
from segmentstore.s3.xml_documents import Element, parse
from tier2.volumes.objects import ContentDigest, RunningDigest

SIGNED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
SIGNED_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
_Result = TypeVar("_Result")
_CHUNKED_PAYLOADS = (SIGNED, SIGNED_TRAILER, UNSIGNED_TRAILER)

Sink: TypeAlias = Callable[[Sequence[bytes]], Awaitable[None]]
"""Takes the bytes of a body in their order, one call after the other."""

_CHUNK_LINE_BYTES_MAX = 4096
_CHUNK_PIECE_BYTES_MAX = 1 << 20
"""Longer chunks are handed out in several pieces."""
_TRAILERS_MAX = 16
_CHUNK_EXTENSION = "chunk-signature="
_TRAILER_SIGNATURE_NAME = "x-amz-trailer-signature"
_BODY_TOO_LARGE = (
    "The body has {length} bytes; at most {limit} can be sent in one request. "
    "Use a multipart upload with parts up to that size."
)


@dataclass(frozen=True, slots=True)
class CheckedBody:
    """What is known of a body that was checked."""

    length: int
    md5: bytes
    digest: ContentDigest
    """What the engine wants to know of the bytes."""
    checksums: dict[str, str]
    """By algorithm, as the client gave them: they are right."""


@dataclass(frozen=True, slots=True)
class Body(CheckedBody):
    """A body that was checked, with its bytes."""

    buffers: Sequence[bytes]

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

    def is_held(self, call: Call) -> bool:
        """Whether `read` is for it, and not `stream`. Raises S3Error."""
        return _declared_length(call) <= self._settings.held_body_bytes_max

    async def read_document(
        self, call: Call, root: str, *, optional: bool = False, checksums_are_of_body: bool = True
    ) -> Element:
        """A body that is XML; `optional`: no body is an empty document. Raises S3Error."""
        settings = self._settings
        async with self.read(
            call, settings.document_bytes_max, checksums_are_of_body=checksums_are_of_body
        ) as body:
            if optional and not body.length:
                return Element(root)
            if body.length < settings.executor_bytes_min:
                return parse(body.joined(), root)
            return await self._aside(partial(parse, body.joined(), root))

    @asynccontextmanager
    async def read(
        self, call: Call, length_max: int, *, checksums_are_of_body: bool = True
    ) -> AsyncIterator[Body]:
        """The whole body, held in the budget until the block ends. Raises S3Error.

        `checksums_are_of_body`: the headers of a completion have the checksum of the object, not of its document.
        """
        length = _admitted_length(call, min(length_max, self._settings.held_body_bytes_max))
        async with self._budget.hold(length):
            await call.expect_continue.give()
            body = self._arriving(call, length)
            settings = self._settings
            buffers: list[bytes] = []
            async with (
                _time_to_arrive(settings) as arrives,
                aclosing(body.pieces()) as arriving,
            ):
                async for piece in arriving:
                    buffers.append(piece)
                    arrives(len(piece))
            _require_length(sum(map(len, buffers)), length)
            claimed = _claimed_checksums(call, body.trailers) if checksums_are_of_body else {}
            checks = BodyChecks(claimed, self._piece_bytes)

            def check() -> ContentDigest:
                checks.update(buffers)
                return checks.require(call, claimed)

            if length < settings.executor_bytes_min:
                found = check()
            else:
                found = await self._aside(check)
            yield Body(length, checks.md5, found, claimed, buffers)

    async def stream(self, call: Call, length_max: int, sink: Sink) -> CheckedBody:
        """The whole body goes to `sink` as it arrives, and counts when this has returned.

        Raises S3Error, and what `sink` raises. One window arrives while the one before it is hashed and written.
        """
        length = _admitted_length(call, length_max)
        settings = self._settings
        held = min(
            2 * (settings.body_window_bytes + settings.read_bytes), settings.bodies_bytes_max
        )
        async with self._budget.hold(held):
            await call.expect_continue.give()
            checks = BodyChecks(_announced_checksums(call), self._piece_bytes)
            body = self._arriving(call, length)
            received = 0
            async with aclosing(body.pieces()) as arriving:
                window: list[bytes] = []
                while True:
                    try:
                        async with asyncio.TaskGroup() as tasks:
                            next_window = tasks.create_task(self._window(arriving))
                            if window:
                                tasks.create_task(self._aside(partial(checks.update, window)))
                                tasks.create_task(_given_to(sink, window))
                    except ExceptionGroup as failures:
                        failure = failures.exceptions[0]
                        raise failure from failure.__cause__
                    window = next_window.result()
                    if not window:
                        break
                    received += sum(map(len, window))
                    if received > length:
                        break
            _require_length(received, length)
            claimed = _claimed_checksums(call, body.trailers)
            found = checks.require(call, claimed)
        return CheckedBody(length, checks.md5, found, claimed)

    async def _window(self, arriving: AsyncGenerator[bytes, None]) -> list[bytes]:
        """The next bytes; none: there are no more."""
        settings = self._settings
        wanted = settings.body_window_bytes
        window: list[bytes] = []
        async with _time_to_arrive(settings) as arrives:
            while wanted > 0:
                piece = await anext(arriving, b"")
                if not piece:
                    break
                arrives(len(piece))
                window.append(piece)
                wanted -= len(piece)
        return window

    def _arriving(self, call: Call, length: int) -> "UnchunkedBody | ChunkedBody":
        if not is_chunked(call.authenticated.payload):
            return UnchunkedBody(call.request.content)
        return ChunkedBody(
            content=call.request.content,
            authenticated=call.authenticated,
            length=length,
            executor=self._executor,
            executor_bytes_min=self._settings.executor_bytes_min,
        )

    async def _aside(self, call: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)


async def _given_to(sink: Sink, window: Sequence[bytes]) -> None:
    await sink(window)


@asynccontextmanager
async def _time_to_arrive(settings: EndpointSettings) -> AsyncIterator[Callable[[int], None]]:
    """What is read of a body in the block, which calls what it is given with how much has arrived.

    Raises S3Error if it falls behind the least rate by more than `body_seconds_max`, if nothing arrives for too long,
    or if it breaks off.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + settings.body_seconds_max

    def arrives(byte_count: int) -> None:
        nonlocal deadline
        deadline += byte_count / settings.body_bytes_per_second_min
        limit.reschedule(min(deadline, loop.time() + settings.body_silence_seconds_max))

    silence_seconds = min(settings.body_silence_seconds_max, settings.body_seconds_max)
    try:
        async with asyncio.timeout(silence_seconds) as limit:
            yield arrives
    except TimeoutError as error:
        raise S3Error("RequestTimeout", "The body took too long to arrive.") from error
    except (web.RequestPayloadError, ConnectionError) as error:
        raise S3Error("IncompleteBody", "The body broke off.") from error


def _require_length(received: int, length: int) -> None:
    if received != length:
        raise S3Error("IncompleteBody", f"The body has {received} bytes and declares {length}.")


def _admitted_length(call: Call, length_max: int) -> int:
    """What the body declares. Raises S3Error."""
    length = _declared_length(call)
    if length > length_max:
        raise S3Error("EntityTooLarge", _BODY_TOO_LARGE.format(length=length, limit=length_max))
    return length


def _declared_length(call: Call) -> int:
    if is_chunked(call.authenticated.payload):
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


def _announced_trailers(call: Call) -> set[str]:
    names = (call.header("x-amz-trailer") or "").split(",")
    return {name.strip().lower() for name in names if name.strip()}


def _announced_checksums(call: Call) -> list[str]:
    """The algorithms of the checksums that the body has to agree with, as far as they are known before it comes."""
    names = [*call.request.headers, *_claims_of_query(call), *sorted(_announced_trailers(call))]
    lower = (name.lower() for name in names)
    return [name.removeprefix(HEADER_PREFIX) for name in lower if name in CHECKSUM_HEADERS]


def _claimed_checksums(call: Call, trailers: Mapping[str, str]) -> dict[str, str]:
    if _announced_trailers(call).difference(trailers):
        raise S3Error("IncompleteBody", "A trailing header that was announced is missing.")
    claimed: dict[str, str] = {}
    for source in (call.request.headers, _claims_of_query(call), trailers):
        for name, value in source.items():
            require_known_checksum(name.lower())
            if name.lower() in CHECKSUM_HEADERS:
                claimed[name.lower().removeprefix(HEADER_PREFIX)] = value
    return claimed


def _claims_of_query(call: Call) -> dict[str, str]:
    """All of the query but checksums of no bytes.

    The SDK for JavaScript puts one into each address that it presigns for a put, whose body it does not know yet. S3
    holds it against no body either.
    """
    return {
        name: value
        for name, value in call.query.items()
        if name.lower() not in CHECKSUM_HEADERS
        or value != checksum_text(name.lower().removeprefix(HEADER_PREFIX), ())
    }


class BodyChecks:
    """What is computed of a body as it comes: update() with all of its bytes, then require()."""

    def __init__(self, algorithms: Iterable[str], piece_bytes: int) -> None:
        """`algorithms`: of the checksums that the client says something of."""
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._digest = RunningDigest(piece_bytes)
        self._checksums = {name: ALGORITHMS[name]() for name in algorithms}

    @property
    def md5(self) -> bytes:
        return self._md5.digest()

    def update(self, buffers: Sequence[bytes]) -> None:
        """Blocking."""
        for buffer in buffers:
            self._md5.update(buffer)
            for running in self._checksums.values():
                running.update(buffer)
        self._digest.update(buffers)

    def require(self, call: Call, claimed: Mapping[str, str]) -> ContentDigest:
        """The digest of a body that is what its client said of it. Raises S3Error.

        `claimed`: checksums by their algorithms.
        """
        content_md5 = call.request.headers.get("Content-MD5")
        if content_md5 is not None and _decoded_md5(content_md5) != self.md5:
            raise S3Error("BadDigest", "The Content-MD5 is not that of the body.")
        found = self._digest.digest()
        payload = call.authenticated.payload
        is_hash = payload != UNSIGNED_PAYLOAD and not is_chunked(payload)
        if is_hash and found.content_hash.hex() != payload:
            raise S3Error(
                "XAmzContentSHA256Mismatch", "x-amz-content-sha256 is not that of the body."
            )
        for algorithm, value in claimed.items():
            running = self._checksums.get(algorithm)
            if running is None:
                # A large body was not held until its trailing headers came.
                raise S3Error("InvalidRequest", f"x-amz-trailer does not announce the {algorithm}.")
            if text_of(running) != value:
                raise S3Error("BadDigest", f"The {algorithm} checksum is not that of the body.")
        return found


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


class UnchunkedBody:
    """Reads one body that is nothing but its bytes."""

    trailers: Mapping[str, str] = MappingProxyType({})

    def __init__(self, content: StreamReader) -> None:
        self._content = content

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """As they come."""
        while not self._content.at_eof():
            piece = await self._content.readany()
            if piece:
                yield piece


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
        """The bytes of each chunk as they come. Raises S3Error."""
        left = self._length
        while True:
            size, signature = self._header(await self._line())
            if size > left:
                raise _incomplete_body("its chunks are longer than it declares")
            if size == 0:
                break
            left -= size
            hasher = hashlib.sha256()
            while size:
                # What has arrived, however little: a client that needs long for a whole piece is not silent.
                piece = await self._content.read(min(size, _CHUNK_PIECE_BYTES_MAX))
                if not piece:
                    raise _incomplete_body("it breaks off")
                await self._hash(hasher, piece)
                size -= len(piece)
                yield piece
            if await self._exactly(2) != b"\r\n":
                raise _incomplete_body("a chunk does not end where it should")
            self._check_chunk(hasher.hexdigest(), signature)
        self._check_chunk(hashlib.sha256().hexdigest(), signature)
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

    async def _hash(self, hasher: "hashlib._Hash", piece: bytes) -> None:
        if not self._signed:
            return
        if len(piece) < self._executor_bytes_min:
            hasher.update(piece)
        else:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._executor, hasher.update, piece)

    def _check_chunk(self, hashed: str, signature: str) -> None:
        if not self._signed:
            return
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
        is_ended = True
        for _ in range(_TRAILERS_MAX):
            line = await self._line(b"\n")
            if line == b"\r":
                if is_ended:
                    break
                # Of the lines before it, which LF alone had ended.
                is_ended = True
                continue
            is_ended = line.endswith(b"\r")
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
            raise _incomplete_body("it has trailing headers that its head did not announce")
        return trailers

    @staticmethod
    def _require(expected: str, given: str) -> None:
        if not same_signature(expected, given):
            raise S3Error("SignatureDoesNotMatch", "The signature of a chunk does not match.")

    async def _line(self, end: bytes = b"\r\n") -> bytes:
        """What stands before its end."""
        try:
            line = await self._content.readline()
        except ValueError as error:
            raise _incomplete_body("a chunk's header is too long") from error
        if not line.endswith(end) or len(line) > _CHUNK_LINE_BYTES_MAX:
            raise _incomplete_body("a chunk's header is cut off")
        return line.removesuffix(end)

    async def _exactly(self, count: int) -> bytes:
        try:
            return await self._content.readexactly(count)
        except asyncio.IncompleteReadError as error:
            raise _incomplete_body("it breaks off") from error


def _incomplete_body(why: str) -> S3Error:
    return S3Error("IncompleteBody", f"The body of the request cannot be used: {why}.")
