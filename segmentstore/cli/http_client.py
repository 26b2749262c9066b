"""The segment verbs over HTTP, for the command line.

Invariants:

- Every failure is a SegmentStoreError whose kind is the server's (or UNAVAILABLE when there was no answer), so that
  exit codes and retry rules need no parsing of messages.
- An answer that is not as ours are is such a failure too, of kind INVALID: another web server is at the address, or a
  store of another version.
- Nothing is retried here: only the caller knows whether a request may be sent twice.
- A name is one percent-encoded stretch of the path; slashes in it stay slashes.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar, cast
from urllib.parse import quote

import aiohttp
from yarl import URL

from segmentstore.contracts.errors import ErrorKind, InvalidRequestError, SegmentStoreError
from segmentstore.http.offsets import offset_token, parse_offset

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 120.0
_NO_CONTENT = 204

_Field = TypeVar("_Field")


class ServerError(SegmentStoreError):
    """The server refused, or did not answer."""

    def __init__(self, message: str, kind: ErrorKind, status: int = 0) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status
        """0: there was no answer, so the outcome is unknown."""


@dataclass(frozen=True, slots=True)
class SegmentStatus:
    """A segment as the server describes it; offsets and lengths in bytes."""

    name: str
    segment_id: int
    container: int
    start_offset: int
    length: int
    storage_length: int
    sealed: bool
    last_modified_ms: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of one read answer."""

    offset: int
    content: bytes

    @property
    def end_offset(self) -> int:
        return self.offset + len(self.content)


@dataclass(frozen=True, slots=True)
class _Answer:
    """JSON of a server, which may be any server."""

    server: str
    values: object

    def take(self, field: str, kind: type[_Field]) -> _Field:
        """Raises ServerError."""
        value = self.values.get(field) if isinstance(self.values, dict) else None
        if not isinstance(value, kind):
            raise _not_ours(self.server, f"{field} is missing in its answer")
        return value

    def rows(self, field: str) -> list["_Answer"]:
        """Raises ServerError."""
        return [_Answer(self.server, each) for each in self.take(field, list)]


class HttpClient:
    """One server. Hold it in `async with`."""

    def __init__(self, server: str, *, connections_max: int = 64) -> None:
        """Raises InvalidRequestError for an address that no server can have."""
        self._server = _checked_address(server).rstrip("/")
        self._connections_max = connections_max
        self._reads: aiohttp.ClientSession | None = None
        self._changes: aiohttp.ClientSession | None = None
        """Over the same connections. aiohttp sends a PUT or DELETE a second time when its connection broke, and tells
        of the second one alone: a segment that the first one created would be one that existed already."""

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=_CONNECT_SECONDS, sock_read=_ANSWER_SECONDS
        )
        connector = aiohttp.TCPConnector(limit=self._connections_max)
        self._reads = aiohttp.ClientSession(
            timeout=timeout, connector=connector, auto_decompress=False
        )
        self._changes = aiohttp.ClientSession(
            timeout=timeout, connector=connector, connector_owner=False, auto_decompress=False
        )
        # It has no argument for it.
        self._changes._retry_connection = False
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._changes is not None:
            await self._changes.close()
        if self._reads is not None:
            await self._reads.close()

    async def create(self, name: str) -> SegmentStatus:
        """Raises ServerError of kind CONFLICT if it exists."""
        return _status(await self._json("PUT", self._verb(name, "create")))

    async def ensure(self, name: str) -> SegmentStatus:
        """The segment, created if it does not exist."""
        try:
            return await self.create(name)
        except ServerError as error:
            if error.kind is not ErrorKind.CONFLICT:
                raise
            return await self.info(name)

    async def append(self, name: str, content: bytes, *, offset: int | None = None) -> int:
        """The new length. With `offset`, kind CONFLICT unless that is the length before."""
        query = {} if offset is None else {"offset": str(offset)}
        answer = await self._json("POST", self._verb(name, "append"), query=query, body=content)
        return answer.take("length", int)

    async def read(self, name: str, offset: int, length: int) -> Piece:
        """The bytes [offset, offset + length), or fewer where the segment ends before."""
        query = {"offset": str(offset), "length": str(length)}
        async with self._answer("GET", self._verb(name, "read"), query, None) as response:
            content = await response.read()
            _raise_for(response, content)
            told = response.headers.get("Segment-Offset", "")
            if not (told.isascii() and told.isdecimal()):
                raise _not_ours(self._server, "Segment-Offset is missing in its answer")
            return Piece(int(told), content)

    async def follow(self, info: SegmentStatus, offset: int) -> AsyncGenerator[Piece, None]:
        """Pieces from `offset` on, waiting for more at the end, until the segment is sealed and read.

        Ends with an error of kind NOT_FOUND if the segment is deleted. Hold it in `aclosing`.
        """
        path = f"/v1/stream/{_quoted(info.name)}"
        while True:
            query = {"live": "long-poll", "offset": offset_token(info.segment_id, offset)}
            async with self._answer("GET", path, query, None) as response:
                content = await response.read()
                _raise_for(response, content)
                following = self._next_offset(response)
                closed = response.headers.get("Stream-Closed") == "true"
                as_json = response.content_type == "application/json"
            if as_json and following > offset:
                # A JSON stream answers with an array of its messages; followers get the bytes as they are stored.
                content = (await self.read(info.name, offset, following - offset)).content
            if following > offset:
                yield Piece(offset, content)
            offset = following
            if closed:
                return

    async def info(self, name: str) -> SegmentStatus:
        return _status(await self._json("GET", self._verb(name, "info")))

    async def seal(self, name: str) -> int:
        """The final length."""
        return (await self._json("POST", self._verb(name, "seal"))).take("length", int)

    async def truncate(self, name: str, offset: int) -> None:
        answer = await self._json("POST", self._verb(name, "truncate"), value={"offset": offset})
        answer.take("start_offset", int)

    async def merge(self, target: str, source: str) -> int:
        """The target's new length."""
        answer = await self._json("POST", self._verb(target, "merge"), value={"source": source})
        return answer.take("length", int)

    async def delete(self, name: str) -> None:
        answer = await self._json("DELETE", f"/v1/segments/{_quoted(name)}")
        answer.take("deleted", str)

    async def flush(self, name: str) -> None:
        """Wait until what was acknowledged, of the segment's container, is in Tier 2."""
        answer = await self._json("POST", self._verb(name, "flush"))
        answer.take("storage_length", int)

    async def flush_all(self) -> None:
        """Wait until everything that was acknowledged is in Tier 2."""
        await self._done("POST", "/v1/flush")

    async def list_page(
        self, prefix: str, after: str, limit: int
    ) -> tuple[list[SegmentStatus], str | None]:
        """Segments behind `after`, and where the next page begins; it may be empty and not be the last one."""
        query = {"prefix": prefix, "after": after, "limit": str(limit)}
        answer = await self._json("GET", "/v1/segments", query=query)
        segments = [_status(each) for each in answer.rows("segments")]
        is_last = answer.take("next", object) is None
        return segments, None if is_last else answer.take("next", str)

    async def list_all(
        self, prefix: str = "", page: int = 1000
    ) -> AsyncGenerator[SegmentStatus, None]:
        """Every segment in name order, page by page. Hold it in `aclosing`."""
        after: str | None = ""
        while after is not None:
            segments, after = await self.list_page(prefix, after, page)
            for segment in segments:
                yield segment

    async def make_backup(self, name: str) -> list[dict[str, str | int | bool]]:
        """What was pinned, a row for each container."""
        answer = await self._json("POST", f"/v1/backups/{_quoted(name)}")
        return _backup_rows(answer, "pinned")

    async def drop_backup(self, name: str) -> bool:
        """False if there is none of that name."""
        try:
            await self._done("DELETE", f"/v1/backups/{_quoted(name)}")
        except ServerError as error:
            if error.kind is not ErrorKind.NOT_FOUND:
                raise
            return False
        return True

    async def list_backups(self) -> list[dict[str, str | int | bool]]:
        """By name."""
        answer = await self._json("GET", "/v1/backups")
        return _backup_rows(answer, "backups")

    async def health(self) -> Mapping[str, object]:
        """What `/health` says, whatever its status."""
        async with self._answer("GET", "/health", {}, None) as response:
            answer = self._parsed(await response.read())
            answer.take("ready", bool)
            return cast("dict[str, object]", answer.values)

    @staticmethod
    def _verb(name: str, verb: str) -> str:
        return f"/v1/segments/{_quoted(name)}/{verb}"

    async def _json(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        value: object = None,
    ) -> _Answer:
        if value is not None:
            body = json.dumps(value).encode()
        async with self._answer(method, path, query or {}, body) as response:
            content = await response.read()
            _raise_for(response, content)
            return self._parsed(content)

    def _parsed(self, content: bytes) -> _Answer:
        try:
            return _Answer(self._server, json.loads(content))
        except ValueError as error:
            raise _not_ours(self._server, "its answer is no JSON") from error

    async def _done(self, method: str, path: str) -> None:
        """Of what is answered without a content."""
        async with self._answer(method, path, {}, None) as response:
            _raise_for(response, await response.read())
            if response.status != _NO_CONTENT:
                raise _not_ours(self._server, f"it answered {response.status}")

    def _next_offset(self, response: aiohttp.ClientResponse) -> int:
        try:
            return parse_offset(response.headers.get("Stream-Next-Offset", "")).offset
        except InvalidRequestError as error:
            raise _not_ours(self._server, "Stream-Next-Offset is missing in its answer") from error

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, query: Mapping[str, str], body: bytes | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        session = self._reads if method == "GET" else self._changes
        assert session is not None, "the client is used outside its async with"
        for text in query.values():
            # URL leaves out what it cannot encode: a listing would be one of another prefix.
            text.encode()
        url = URL(self._server + path, encoded=True).with_query(dict(query))
        try:
            async with session.request(method, url, data=body) as response:
                yield response
        except (aiohttp.ClientConnectorError, aiohttp.InvalidURL) as error:
            raise ServerError(
                f"no server answers at {self._server}: start one with 'segmentstore standalone', or name another "
                "with --server",
                ErrorKind.UNAVAILABLE,
            ) from error
        except aiohttp.ClientResponseError as error:
            raise _not_ours(self._server, "its answer is no HTTP") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            outcome = "" if method == "GET" else "; it may have done what was asked"
            raise ServerError(
                f"the server at {self._server} broke off or did not answer in time{outcome}: "
                f"{str(error) or type(error).__name__}",
                ErrorKind.UNAVAILABLE,
            ) from error


def _checked_address(server: str) -> str:
    try:
        url = URL(server)
        is_sound = url.scheme in {"http", "https"} and bool(url.host)
    except ValueError:
        is_sound = False
    if not is_sound:
        # Asked nevertheless, it would look like a server that is away for a while.
        raise InvalidRequestError(f"an address looks like http://127.0.0.1:9091 given={server!r}")
    return server


def _quoted(name: str) -> str:
    if not name:
        # Its path would be that of something else.
        raise InvalidRequestError("a name is not empty")
    return quote(name, safe="/")


def _raise_for(response: aiohttp.ClientResponse, content: bytes) -> None:
    if response.status < 400:
        return
    try:
        refusal = json.loads(content)
        message, kind = str(refusal["error"]), ErrorKind(refusal["kind"])
    except (ValueError, KeyError, TypeError):
        # Not one of our own refusals: a proxy, or a route that does not exist.
        message = f"the server answered {response.status} {response.reason}"
        kind = ErrorKind.UNAVAILABLE if response.status >= 500 else ErrorKind.INVALID
    raise ServerError(message, kind, response.status)


def _not_ours(server: str, why: str) -> ServerError:
    """The error of an answer that none of our servers gives."""
    return ServerError(
        f"{server} answers, but not as a segmentstore of this version: name another address with --server ({why})",
        ErrorKind.INVALID,
    )


def _status(answer: _Answer) -> SegmentStatus:
    return SegmentStatus(
        name=answer.take("name", str),
        segment_id=answer.take("segment_id", int),
        container=answer.take("container", int),
        start_offset=answer.take("start_offset", int),
        length=answer.take("length", int),
        storage_length=answer.take("storage_length", int),
        sealed=answer.take("sealed", bool),
        last_modified_ms=answer.take("last_modified_ms", int),
    )


def _backup_rows(answer: _Answer, field: str) -> list[dict[str, str | int | bool]]:
    rows = answer.rows(field)
    for each in rows:
        each.take("made_ms", int)
    return [cast("dict[str, str | int | bool]", each.values) for each in rows]
