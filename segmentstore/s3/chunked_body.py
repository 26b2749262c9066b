"""Bodies in chunks of their own (`aws-chunked`), each with a signature if the client signs them.

    hex length [";chunk-signature=" 64 hex] CR LF, bytes, CR LF      repeated
    "0" [";chunk-signature=" 64 hex] CR LF                           the end of the bytes
    name ":" value CR LF                                             trailing headers
    ["x-amz-trailer-signature:" 64 hex CR LF] CR LF                  and theirs

Invariants: no byte is handed out before its chunk's signature was checked; the lengths of the chunks add up to what the
request declared; what is held at a time is one chunk.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Mapping
from concurrent.futures import Executor

from aiohttp import StreamReader

from segmentstore.s3.authentication import Authenticated
from segmentstore.s3.failures import S3Failure
from segmentstore.s3.signature_v4 import chunk_signature, same_signature, trailer_signature

SIGNED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
SIGNED_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
_KINDS = (SIGNED, SIGNED_TRAILER, UNSIGNED_TRAILER)

_LINE_BYTES_MAX = 4096
_TRAILERS_MAX = 16
_EXTENSION = "chunk-signature="
_TRAILER_SIGNATURE = "x-amz-trailer-signature"


def is_chunked(payload: str) -> bool:
    """Whether a body of that kind comes in chunks. Raises S3Failure for kinds that are not known."""
    if payload.startswith("STREAMING-") and payload not in _KINDS:
        raise S3Failure("NotImplemented", f"Payloads of this kind are not implemented: {payload}")
    return payload in _KINDS


class ChunkedBody:
    """Reads one body. pieces() to its end, then `trailers`."""

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
        """The bytes of each chunk. Raises S3Failure."""
        left = self._length
        while True:
            size, signature = self._header(await self._line())
            if size > left:
                raise _incomplete("its chunks are longer than it declares")
            if size == 0:
                break
            chunk = await self._exactly(size)
            if await self._exactly(2) != b"\r\n":
                raise _incomplete("a chunk does not end where it should")
            await self._check_chunk(chunk, signature)
            left -= size
            yield chunk
        await self._check_chunk(b"", signature)
        if left:
            raise _incomplete("its chunks are shorter than it declares")
        self.trailers = await self._read_trailers()

    def _header(self, line: bytes) -> tuple[int, str]:
        try:
            size, _, extension = line.decode("ascii").partition(";")
            if not size or len(size) > 16 or not size.isalnum():
                raise ValueError(size)
            length = int(size, 16)
        except ValueError as error:
            raise _incomplete("a chunk has no length") from error
        if not self._signed:
            return length, ""
        if not extension.startswith(_EXTENSION):
            raise S3Failure("SignatureDoesNotMatch", "A chunk of the body is not signed.")
        return length, extension[len(_EXTENSION) :]

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
            if name == _TRAILER_SIGNATURE:
                signature = value
            else:
                trailers[name] = value
                signed += f"{name}:{value}\n".encode()
        else:
            raise _incomplete("it has too many trailing headers")
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
            raise _incomplete("it has trailing headers that nobody announced")
        return trailers

    @staticmethod
    def _require(expected: str, given: str) -> None:
        if not same_signature(expected, given):
            raise S3Failure("SignatureDoesNotMatch", "The signature of a chunk does not match.")

    async def _line(self) -> bytes:
        try:
            line = await self._content.readline()
        except ValueError as error:
            raise _incomplete("a chunk's header is too long") from error
        if not line.endswith(b"\r\n") or len(line) > _LINE_BYTES_MAX:
            raise _incomplete("a chunk's header is cut off")
        return line[:-2]

    async def _exactly(self, count: int) -> bytes:
        try:
            return await self._content.readexactly(count)
        except asyncio.IncompleteReadError as error:
            raise _incomplete("it breaks off") from error


def _incomplete(why: str) -> S3Failure:
    return S3Failure("IncompleteBody", f"The body of the request cannot be used: {why}.")
