"""GET and HEAD /v1/stream/{name}: catch-up reads, long polls and server-sent events.

- One answer holds at most `read_bytes_max` bytes (in JSON mode whole messages, at least one).
- Stream-Up-To-Date is said only if the answer reaches the end; Stream-Closed only if it reaches the end of a closed
  stream. Both are read after the bytes, in the stretch that makes the answer.
- Only answers that can never change are cacheable: whole pieces of one incarnation that do not reach an open end.
- The number of requests that wait for bytes that do not exist yet (long polls and SSE connections) is bounded: one too
  many is told to come back.
- Every wait ends by its own deadline, or at once when the server stops.

Server-sent events (GET with live=sse):

    event: data     one per stretch of bytes, always followed by
    event: control  {"streamNextOffset", "streamCursor" unless closed, "upToDate", "streamClosed"}

- Text and JSON go as they are, everything else in base64 (said once in a header). A payload's lines are split at CRLF,
  CR and LF, each with its own `data:`, so no content can forge an event.
- Text is cut between characters, and not behind a CR, whose LF may follow: two events would make two line ends of one.
  Bytes of a character that is not complete yet, or that CR, are held back, and the control event's offset lies before
  them. Only at the end of a closed stream are they sent (the bytes of half a character as U+FFFD).
- The connection ends: at the end of a closed stream, when the stream cannot be read any further (deleted, its container
  stopped), after `sse_seconds`, when the client takes nothing for `write_seconds_max`, and when the server stops. One
  window of bytes is held at most.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from random import Random

from aiohttp import web

from segmentstore.contracts.errors import SegmentNotFoundError, SegmentStoreError
from segmentstore.contracts.segments import SegmentProperties
from segmentstore.http import header_names, json_messages
from segmentstore.http.cross_origin import CrossOrigin
from segmentstore.http.json_messages import array_of_lines
from segmentstore.http.offsets import (
    START,
    OffsetPlace,
    RequestedOffset,
    next_cursor,
    offset_token,
    parse_offset,
)
from segmentstore.http.responses import (
    CONTENT_HEADERS,
    Refusal,
    bad_request,
    begun,
    busy,
)
from segmentstore.http.settings import HttpSettings
from segmentstore.http.stream_directory import OpenStream, StreamDirectory
from segmentstore.http.stream_ranges import (
    byte_offset,
    check_message_boundary,
    read_piece,
    wait_for_bytes,
)
from segmentstore.runtime.clock import WallClock

_CACHEABLE = "public, max-age=60, stale-while-revalidate=300"


class Waiters:
    """Counts and ends the waits of long polls and SSE connections."""

    def __init__(self, *, waiters_max: int, connections_max: int, retry_after_seconds: int) -> None:
        self._waiters_max = waiters_max
        self._connections_max = connections_max
        self._retry_after_seconds = retry_after_seconds
        self._waits: dict[int, asyncio.Timeout] = {}
        self._next_number = 0
        self.connections = 0
        self.stopping = False

    def __len__(self) -> int:
        return len(self._waits)

    @asynccontextmanager
    async def wait(self, seconds: float) -> AsyncIterator[None]:
        """Around one wait. TimeoutError comes out of it when the time is over or the server stops.

        Raises Refusal (503) if too many wait already.
        """
        if len(self._waits) >= self._waiters_max:
            raise busy("too many readers wait for bytes", self._retry_after_seconds)
        number = self._next_number
        self._next_number += 1
        try:
            async with asyncio.timeout(0 if self.stopping else seconds) as timeout:
                self._waits[number] = timeout
                yield
        finally:
            self._waits.pop(number, None)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[None]:
        """Around one SSE connection. Raises Refusal (503) if there are too many."""
        if self.connections >= self._connections_max:
            raise busy("too many event streams are open", self._retry_after_seconds)
        self.connections += 1
        try:
            yield
        finally:
            self.connections -= 1

    def stop(self) -> None:
        """End every wait now and all later ones at once."""
        self.stopping = True
        now = asyncio.get_running_loop().time()
        for timeout in self._waits.values():
            if not timeout.expired():
                timeout.reschedule(now)


class StreamRead:
    """Handles GET and HEAD."""

    def __init__(
        self,
        *,
        directory: StreamDirectory,
        waiters: Waiters,
        settings: HttpSettings,
        cross_origin: CrossOrigin,
        wall_clock: WallClock,
        random: Random,
    ) -> None:
        self._directory = directory
        self._waiters = waiters
        self._settings = settings
        self._cross_origin = cross_origin
        self._wall_clock = wall_clock
        self._random = random

    async def handle(self, request: web.BaseRequest, name: str) -> web.StreamResponse:
        live = request.query.get("live")
        # An event stream cannot say "there may be more, which this server cannot give": it is refused whole.
        open_stream = self._directory.open if live == "sse" else self._directory.open_for_reading
        async with open_stream(name) as stream:
            requested = _requested_offset(request, needed=live in {"long-poll", "sse"})
            self._directory.expiry.touch(stream.properties, stream.configuration)
            offset = byte_offset(requested, stream.properties, stream.configuration)
            if stream.configuration.is_json:
                await check_message_boundary(stream, offset)
            if live == "sse":
                return await self._send_events(request, stream, offset)
            if live == "long-poll":
                return await self._long_poll(request, stream, requested, offset)
            if requested.place is OffsetPlace.NOW:
                return self._answer(request, stream, requested, offset, b"")
            content = await read_piece(stream, offset, self._settings.read_bytes_max)
            return self._answer(request, stream, requested, offset, content)

    async def head(self, name: str) -> web.Response:
        """Metadata only; not an access."""
        async with self._directory.open(name) as stream:
            properties, configuration = stream.properties, stream.configuration
        headers = {
            **CONTENT_HEADERS,
            "Content-Type": configuration.content_type,
            "Cache-Control": "no-store",
            "Stream-Next-Offset": offset_token(properties.segment_id, properties.length),
        }
        if properties.sealed:
            headers["Stream-Closed"] = "true"
        if configuration.time_to_live_seconds is not None:
            headers["Stream-TTL"] = str(configuration.time_to_live_seconds)
        if configuration.expires_at is not None:
            headers["Stream-Expires-At"] = configuration.expires_at
        return web.Response(status=200, headers=headers)

    async def _send_events(
        self, request: web.BaseRequest, stream: OpenStream, offset: int
    ) -> web.StreamResponse:
        """Raises Refusal (503) if too many connections are open."""
        async with self._waiters.connection():
            headers = {
                **CONTENT_HEADERS,
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-cache, no-store",
                "X-Accel-Buffering": "no",
            }
            if not stream.configuration.is_text:
                headers["Stream-SSE-Data-Encoding"] = "base64"
            response = web.StreamResponse(status=200, headers=headers)
            self._cross_origin.add_to(request, response)
            connection = _EventConnection(
                response=response,
                stream=stream,
                offset=offset,
                waiters=self._waiters,
                settings=self._settings,
                cursor=lambda: self._cursor(request),
            )
            async with begun(request, response):
                # Deleted, truncated, its container stopped, too many waiters: the reader asks again, from where the
                # last control event left it, and learns why.
                with suppress(SegmentStoreError, Refusal):
                    await connection.run()
        return response

    def _cursor(self, request: web.BaseRequest) -> str:
        return next_cursor(
            request.query.get("cursor"), now_ms=self._wall_clock.now_ms(), random=self._random
        )

    async def _long_poll(
        self,
        request: web.BaseRequest,
        stream: OpenStream,
        requested: RequestedOffset,
        offset: int,
    ) -> web.Response:
        content = await read_piece(stream, offset, self._settings.read_bytes_max)
        if not content and not stream.segment.info().sealed:
            try:
                async with self._waiters.wait(self._settings.long_poll_seconds):
                    await wait_for_bytes(stream.segment, offset, 1)
            except TimeoutError:
                pass
            except SegmentNotFoundError:
                await self._directory.raise_not_found(stream.properties.name)
            content = await read_piece(stream, offset, self._settings.read_bytes_max)
        response = self._answer(request, stream, requested, offset, content, live=True)
        if not content:
            # 204 says: still nothing. It has no content, so also no type.
            response.headers.pop("Content-Type", None)
            response.body = None
            response.set_status(204)
        return response

    def _answer(
        self,
        request: web.BaseRequest,
        stream: OpenStream,
        requested: RequestedOffset,
        offset: int,
        content: bytes,
        *,
        live: bool = False,
    ) -> web.Response:
        properties = stream.segment.info()
        end = offset + len(content)
        at_end = properties.is_end(end)
        closed = at_end and properties.sealed
        headers = {
            **CONTENT_HEADERS,
            "Content-Type": stream.configuration.content_type,
            "Stream-Next-Offset": offset_token(properties.segment_id, end),
            "Cache-Control": _cache_control(requested, live=live, open_end=at_end and not closed),
        }
        if at_end:
            headers["Stream-Up-To-Date"] = "true"
        if closed:
            headers["Stream-Closed"] = "true"
        if live and not closed:
            headers["Stream-Cursor"] = self._cursor(request)
        if requested.place is not OffsetPlace.NOW:
            etag = _etag(properties, offset, end, at_end=at_end, closed=closed)
            headers["ETag"] = etag
            if not live and _matches_etag(request.headers.get(header_names.IF_NONE_MATCH), etag):
                return web.Response(status=304, headers=headers)
        body = array_of_lines(content) if stream.configuration.is_json else content
        return web.Response(status=200, headers=headers, body=body)


def _requested_offset(request: web.BaseRequest, *, needed: bool) -> RequestedOffset:
    given = request.query.getall("offset", [])
    if len(given) > 1:
        raise bad_request("offset is given more than once")
    if not given:
        if needed:
            raise bad_request("a live read needs an offset")
        return START
    return parse_offset(given[0])


def _cache_control(requested: RequestedOffset, *, live: bool, open_end: bool) -> str:
    if live or requested.place is OffsetPlace.NOW:
        return "no-store"
    if open_end or requested.place is not OffsetPlace.TOKEN:
        return "no-cache"
    return _CACHEABLE


def _etag(
    properties: SegmentProperties, start: int, end: int, *, at_end: bool, closed: bool
) -> str:
    # The id makes it one incarnation's: a recreated stream of equal length is another one. The mark makes an answer
    # that reached the end another one than the same bytes with more behind them: a 304 cannot take headers back.
    mark = ":c" if closed else ":u" if at_end else ""
    return f'"{properties.container_id}.{properties.segment_id}:{start}:{end}{mark}"'


def _matches_etag(if_none_match: str | None, etag: str) -> bool:
    if if_none_match is None:
        return False
    candidates = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return etag in candidates or "*" in candidates


class _EventConnection:
    """One SSE connection: its reader's position."""

    def __init__(
        self,
        *,
        response: web.StreamResponse,
        stream: OpenStream,
        offset: int,
        waiters: Waiters,
        settings: HttpSettings,
        cursor: Callable[[], str],
    ) -> None:
        self._waiters = waiters
        self._settings = settings
        self._cursor = cursor
        self._response = response
        self._stream = stream
        self._segment = stream.segment
        self._offset = offset
        """Everything before it was sent."""
        self._held = b""
        """Bytes from `offset` on that are not a whole character, or a whole line end, yet."""

    async def run(self) -> None:
        """Until the stream, the connection's time or the server ends. Raises TimeoutError for a stuck client."""
        settings = self._settings
        deadline = asyncio.get_running_loop().time() + settings.sse_seconds
        while True:
            if await self._send_what_is_there():
                return
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0 or self._waiters.stopping:
                return
            try:
                async with self._waiters.wait(min(left, settings.long_poll_seconds)):
                    await wait_for_bytes(self._segment, self._offset + len(self._held), 1)
            except TimeoutError:
                continue

    async def _send_what_is_there(self) -> bool:
        """One piece and its control event (or a control event alone); True at the end of a closed stream."""
        settings = self._settings
        sent_any = False
        while True:
            start = self._offset + len(self._held)
            content = self._held + await read_piece(self._stream, start, settings.window_bytes)
            properties = self._segment.info()
            end = self._offset + len(content)
            at_end = end >= properties.length
            closed = at_end and properties.sealed
            payload, taken = self._payload(content, closed=closed)
            if taken or not sent_any or closed:
                self._offset += taken
                event = data_event(payload) if taken else ""
                event += control_event(
                    next_offset=offset_token(properties.segment_id, self._offset),
                    cursor=self._cursor(),
                    up_to_date=at_end,
                    closed=closed,
                )
                async with asyncio.timeout(settings.write_seconds_max):
                    await self._response.write(event.encode())
            sent_any = True
            self._held = content[taken:]
            if closed:
                return True
            if at_end or self._waiters.stopping:
                return False

    def _payload(self, content: bytes, *, closed: bool) -> tuple[str, int]:
        """What to send for the content, and how many of its bytes that is."""
        configuration = self._stream.configuration
        if not content:
            return "", 0
        if configuration.is_json:
            return json_messages.array_of_lines(content).decode(), len(content)
        if not configuration.is_text:
            return base64.b64encode(content).decode(), len(content)
        length = len(content) if closed else whole_text_length(content)
        return content[:length].decode(errors="replace"), length


def data_event(payload: str) -> str:
    """One data event; the payload may hold any line ends, and be nothing else.

    Readers take one space away behind the colon, so a line that begins with a space gets another one before it.
    """
    lines = payload.replace("\r\n", "\n").replace("\r", "\n")
    fields = f"\n{lines}".replace("\n", "\ndata:").replace("\ndata: ", "\ndata:  ")
    return f"event: data{fields}\n\n"


def control_event(*, next_offset: str, cursor: str | None, up_to_date: bool, closed: bool) -> str:
    """One control event; a closed end has no cursor, for its reader need not come back."""
    control: dict[str, str | bool] = {"streamNextOffset": next_offset}
    if cursor is not None and not closed:
        control["streamCursor"] = cursor
    if up_to_date:
        control["upToDate"] = True
    if closed:
        control["streamClosed"] = True
    return f"event: control\ndata:{json.dumps(control, separators=(',', ':'))}\n\n"


def whole_text_length(content: bytes) -> int:
    """How many bytes of the content are sent whatever follows: no part of a character, and no CR, at its end."""
    return len(content) - 1 if content.endswith(b"\r") else whole_characters_length(content)


def whole_characters_length(content: bytes) -> int:
    """How many bytes of the content are not part of a character cut off at its end."""
    for back in range(1, min(3, len(content)) + 1):
        byte = content[-back]
        if byte & 0xC0 == 0x80:
            continue
        needed = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return len(content) - back if needed > back else len(content)
    return len(content)
