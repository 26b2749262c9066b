"""What comes in: segment names in paths, request bodies within their budgets, numbers and JSON.

A name is everything behind the route's prefix in the *raw* path, percent-decoded exactly once: `%2F` is a slash like
any other, `%252F` is the three characters `%2F`.

- A name is UTF-8, at most NAME_BYTES_MAX bytes, and holds no control character.
- None of its parts (between slashes) is empty, `.` or `..`: no proxy or file system may read it as a path step.
- `__ds` as first part is reserved for the control APIs of Durable Streams, FORK_REGISTRY_SUFFIX as end for the records
  of forks, `_system` for the store's own records.

A body is read whole, within a limit each, a limit together, and a time.

- A body larger than its limit is refused from its Content-Length, before a byte of it is read. A client that waits for
  `100 Continue` gets it when its body is about to be read, and not before everything that speaks against it is known.
- Bytes count against the shared budget from before they are read until the caller's `async with` ends, which is after
  their commit; so what waits for a slow Tier 1 is bounded as well.
- A body that breaks off raises; the caller never sees a part of one.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import aclosing, asynccontextmanager
from functools import lru_cache, partial
from urllib.parse import unquote_to_bytes

from aiohttp import web

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.contracts.segments import NAME_BYTES_MAX, SYSTEM_PREFIX, is_system_name
from segmentstore.http import header_names
from segmentstore.http.json_messages import parse_in_pieces
from segmentstore.http.responses import Refusal, bad_request, busy, too_large

RESERVED_PART = "__ds"
_CONTROL_CHARACTER = re.compile("[\x00-\x1f\x7f]")
_BROKEN_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
_QUERY_COUNT = re.compile("[0-9]{1,18}")
_BODY_PIECE_BYTES = 64 << 10
_JSON_NUMBER_END = 1 << 63


@lru_cache(maxsize=4096)
def name_of_path(raw_name: str) -> str:
    """Decode and check the raw rest of a path.

    Cached because a hot stream sends the same text with every append. Raises InvalidRequestError.
    """
    if _BROKEN_ESCAPE.search(raw_name):
        raise InvalidRequestError(f"name has a broken percent escape raw={raw_name!r}")
    encoded = unquote_to_bytes(raw_name)
    if len(encoded) > NAME_BYTES_MAX:
        raise InvalidRequestError(
            f"name is too long bytes={len(encoded)} bytes_max={NAME_BYTES_MAX}"
        )
    try:
        name = encoded.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"name is not UTF-8 raw={raw_name!r}") from error
    check_name(name)
    return name


def check_name(name: str) -> None:
    """Raises InvalidRequestError if no segment may have this name (its length aside)."""
    if _CONTROL_CHARACTER.search(name):
        raise InvalidRequestError(f"name holds a control character name={name!r}")
    for part in name.split("/"):
        if part in {"", ".", ".."}:
            raise InvalidRequestError(f"name has a part that is empty, '.' or '..' name={name!r}")


FORK_REGISTRY_SUFFIX = "#transaction." + "__ds_the_forks_of_this_stream".ljust(32, "_")
"""Behind a stream's name: the segment that counts its forks. Names with such a suffix share the stream's container."""


def is_reserved(name: str) -> bool:
    """Whether the name belongs to the stream protocol itself: to the control APIs, or to the records of forks."""
    return (
        name == RESERVED_PART
        or name.startswith(RESERVED_PART + "/")
        or name.endswith(FORK_REGISTRY_SUFFIX)
    )


def refuse_system_name(name: str) -> None:
    """Raises Refusal (403) for a segment that only the store itself reads and writes."""
    if is_system_name(name):
        raise Refusal(
            403,
            f"segments below {SYSTEM_PREFIX!r} are the store's own name={name!r}",
            kind="invalid",
        )


class BodyBudget:
    """Bytes of all bodies held now: of what has arrived, for what was announced costs a client nothing."""

    def __init__(self, *, bytes_max: int, retry_after_seconds: int) -> None:
        self._bytes_max = bytes_max
        self._retry_after_seconds = retry_after_seconds
        self.bytes_held = 0

    def require(self, count: int) -> None:
        """Raises Refusal (503) if there is no room for so many."""
        if self.bytes_held + count > self._bytes_max:
            raise busy("too many request bodies are under way", self._retry_after_seconds)

    def take(self, count: int) -> None:
        """Raises Refusal (503) at the limit."""
        self.require(count)
        self.bytes_held += count

    def give_back(self, count: int) -> None:
        assert count <= self.bytes_held, f"given back={count} held={self.bytes_held}"
        self.bytes_held -= count


class BodyReader:
    """Reads request bodies under one budget."""

    def __init__(
        self,
        *,
        budget: BodyBudget,
        seconds_max: float,
        silence_seconds_max: float,
        json_bytes_max: int,
        json_inline_bytes_max: int,
        executor: Executor | None,
        kept_bytes_max: int = 0,
    ) -> None:
        """`json_bytes_max` is for what a verb is asked by; content has a limit of its own.

        Above `json_inline_bytes_max` it is parsed in the executor (None: the loop's own).
        `kept_bytes_max`: a body up to this size can be read again, if that is asked for.
        """
        self._budget = budget
        self._json_bytes_max = json_bytes_max
        self._json_inline_bytes_max = json_inline_bytes_max
        self._executor = executor
        self._seconds_max = seconds_max
        self._silence_seconds_max = silence_seconds_max
        self.bytes_received = 0
        self._kept_bytes_max = kept_bytes_max
        self._kept: dict[int, bytes | None] = {}
        """By the identity of a request that may be answered again, by another node: its body, once it was read."""

    def keep(self, request: web.BaseRequest, body: bytes | None = None) -> None:
        """What is read of it is kept if it is small. With a body: that was read to its end, and what reads it next
        gets it. Until let_go(); outside the budget."""
        self._kept[id(request)] = body

    def kept(self, request: web.BaseRequest) -> bytes | None:
        """The whole body; None if it was not read, or is not small."""
        return self._kept.get(id(request))

    def _note_read(self, request: web.BaseRequest, body: bytes) -> None:
        key = id(request)
        if key in self._kept and len(body) <= self._kept_bytes_max:
            self._kept[key] = body

    def let_go(self, request: web.BaseRequest) -> None:
        """The request is over. Also if nothing was kept."""
        self._kept.pop(id(request), None)

    @property
    def budget(self) -> BodyBudget:
        return self._budget

    def read_nowait(self, request: web.BaseRequest, bytes_max: int) -> bytes | None:
        """The body if all of it has arrived, taken from the budget (give it back!); None if it has not.

        Raises Refusal: 413 (too large), 415 (encoded), 503 (budget).
        """
        if header_names.CONTENT_ENCODING in request.headers:
            refuse_encoding(request)
        content = request.content
        if not content.is_eof():
            return None
        body = content.read_nowait(-1)
        if not body:
            body = self._kept.get(id(request)) or b""
        if len(body) > bytes_max:
            raise too_large(len(body), bytes_max)
        self._budget.take(len(body))
        self.bytes_received += len(body)
        self._note_read(request, body)
        return body

    @asynccontextmanager
    async def read(self, request: web.BaseRequest, bytes_max: int) -> AsyncIterator[bytes]:
        """The whole body, held in the budget until the block ends.

        Raises Refusal: 413 (too large), 415 (encoded), 408 (too slow), 400 (broke off), 503 (budget).
        """
        body = self.read_nowait(request, bytes_max)
        if body is not None:
            try:
                yield body
            finally:
                self._budget.give_back(len(body))
            return
        declared = request.content_length
        if declared is not None and declared > bytes_max:
            raise too_large(declared, bytes_max)
        taken = 0
        pieces: list[bytes] = []
        try:
            if declared is not None:
                self._budget.require(declared)
            await send_continue(request)
            length = 0
            async with aclosing(self.pieces(request)) as arriving:
                async for piece in arriving:
                    length += len(piece)
                    self.bytes_received += len(piece)
                    if length > bytes_max:
                        raise too_large(length, bytes_max)
                    if length > taken:
                        self._budget.take(length - taken)
                        taken = length
                    pieces.append(piece)
            body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            self._note_read(request, body)
            yield body
        finally:
            self._budget.give_back(taken)

    async def read_json_object(
        self,
        request: web.BaseRequest,
        *,
        required: Collection[str] = (),
        optional: Collection[str] = (),
    ) -> Mapping[str, object]:
        """A body that is a JSON object of these fields; an empty body is one without fields.

        Raises InvalidRequestError, and what read() raises.
        """
        async with self.read(request, self._json_bytes_max) as body:
            parse = partial(_json_object, body, required=required, optional=optional)
            if len(body) <= self._json_inline_bytes_max:
                return parse()
            return await asyncio.get_running_loop().run_in_executor(self._executor, parse)

    async def pieces(self, request: web.BaseRequest) -> AsyncGenerator[bytes, None]:
        """What has arrived, as it arrives, outside the budget. Raises Refusal: 408 (too slow), 400 (broke off)."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._seconds_max
        while not request.content.at_eof():
            try:
                async with asyncio.timeout_at(
                    min(deadline, loop.time() + self._silence_seconds_max)
                ):
                    piece = await request.content.read(_BODY_PIECE_BYTES)
            except TimeoutError as error:
                raise Refusal(
                    408,
                    f"the body took too long seconds_max={self._seconds_max} "
                    f"silence_seconds_max={self._silence_seconds_max}",
                    kind="invalid",
                ) from error
            except (web.RequestPayloadError, ConnectionError) as error:
                raise Refusal(400, "the body broke off or is malformed", kind="invalid") from error
            if piece:
                yield piece


async def send_continue(request: web.BaseRequest) -> None:
    """Let a client send its body that waits to be told so."""
    if request.headers.get(header_names.EXPECT, "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # What was written is no part of the answer that follows.
        request.writer.output_size = 0


def refuse_encoding(request: web.BaseRequest) -> None:
    """Bodies are stored as they come, so an encoded one would be served as something it is not."""
    encoding = request.headers[header_names.CONTENT_ENCODING]
    if encoding.lower() != "identity":
        raise Refusal(415, f"content encoding is not supported value={encoding!r}", kind="invalid")


def parse_count(text: str | None, name: str, default: int) -> int:
    """A number in a query. Raises Refusal (400)."""
    if text is None:
        return default
    if _QUERY_COUNT.fullmatch(text) is None:
        raise bad_request(f"{name} is not a number value={text[:32]!r}")
    return int(text)


def parse_containers(request: web.BaseRequest) -> Sequence[ContainerId] | None:
    """The part of the store that another node asks for; None for all of it. Raises Refusal (400)."""
    text = request.query.get("containers")
    if text is None:
        return None
    return [ContainerId(parse_count(each, "containers", 0)) for each in text.split(",")]


def is_true(value: str | None) -> bool:
    """Stream-Closed and its like: `true` in any case; everything else counts as absent."""
    return value is not None and value.strip().lower() == "true"


def json_number(fields: Mapping[str, object], name: str) -> int:
    """A field that holds a number from 0 on. Raises Refusal (400)."""
    value = fields[name]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _JSON_NUMBER_END:
        raise bad_request(f"{name} is not a number {name}={value!r}")
    return value


def _json_object(
    body: bytes, *, required: Collection[str], optional: Collection[str]
) -> Mapping[str, object]:
    """See `BodyReader.read_json_object`."""
    value = parse_json(body) if body else {}
    if not isinstance(value, dict):
        raise InvalidRequestError("the body is not a JSON object")
    unknown = sorted(value.keys() - {*required, *optional})
    if unknown:
        raise InvalidRequestError(f"the body has unknown fields fields={unknown}")
    missing = sorted(set(required) - value.keys())
    if missing:
        raise InvalidRequestError(f"the body lacks fields fields={missing}")
    return value


def parse_json(text: str | bytes) -> object:
    """In the thread of the loop what is short alone. Raises InvalidRequestError."""
    try:
        if isinstance(text, bytes):
            # As json.loads() does.
            text = text.decode(json.detect_encoding(text), "surrogatepass")
        value = parse_in_pieces(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"not JSON: {error}") from error
    return value
