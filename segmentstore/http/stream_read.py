"""GET and HEAD /v1/stream/{name}: catch-up reads and long polls.

- One answer holds at most `read_bytes_max` bytes (in JSON mode whole messages, at least one).
- Stream-Up-To-Date is said only if the answer reaches the end; Stream-Closed only if it reaches the end of a closed
  stream. Both are read after the bytes, in the stretch that makes the answer.
- Only answers that can never change are cacheable: whole pieces of one incarnation that do not reach an open end.
"""

from random import Random

from aiohttp import web

from segmentstore.contracts.errors import SegmentNotFoundError
from segmentstore.contracts.segments import SegmentProperties
from segmentstore.http import header_names
from segmentstore.http.json_messages import array_of_lines
from segmentstore.http.offsets import (
    START,
    OffsetPlace,
    RequestedOffset,
    next_cursor,
    offset_token,
    parse_offset,
)
from segmentstore.http.refusals import bad_request
from segmentstore.http.responses import CONTENT_HEADERS
from segmentstore.http.segment_reads import wait_for_bytes
from segmentstore.http.settings import HttpSettings
from segmentstore.http.stream_directory import OpenStream, StreamDirectory
from segmentstore.http.stream_events import StreamEvents
from segmentstore.http.stream_pieces import check_message_boundary, read_piece
from segmentstore.http.stream_positions import byte_offset
from segmentstore.http.waiters import Waiters
from segmentstore.runtime.clock import WallClock

_CACHEABLE = "public, max-age=60, stale-while-revalidate=300"


class StreamRead:
    """Handles GET (an SSE request is handed on) and HEAD."""

    def __init__(
        self,
        *,
        directory: StreamDirectory,
        events: StreamEvents,
        waiters: Waiters,
        settings: HttpSettings,
        wall_clock: WallClock,
        random: Random,
    ) -> None:
        self._directory = directory
        self._events = events
        self._waiters = waiters
        self._settings = settings
        self._wall_clock = wall_clock
        self._random = random

    async def handle(self, request: web.BaseRequest, name: str) -> web.StreamResponse:
        async with self._directory.open(name) as stream:
            live = request.query.get("live")
            requested = _requested_offset(request, needed=live in {"long-poll", "sse"})
            self._directory.expiry.touch(stream.properties, stream.configuration)
            offset = byte_offset(requested, stream.properties, stream.configuration)
            if stream.configuration.is_json:
                await check_message_boundary(stream, offset)
            if live == "sse":
                return await self._events.handle(request, stream, offset)
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
                await self._directory.refuse_missing(stream.properties.name)
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
        at_end = end >= properties.length
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
            headers["Stream-Cursor"] = next_cursor(
                request.query.get("cursor"),
                now_ms=self._wall_clock.now_ms(),
                random=self._random,
            )
        if requested.place is not OffsetPlace.NOW:
            etag = _etag(properties, offset, end, closed=closed)
            headers["ETag"] = etag
            if not live and _matches(request.headers.get(header_names.IF_NONE_MATCH), etag):
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


def _etag(properties: SegmentProperties, start: int, end: int, *, closed: bool) -> str:
    # The id makes it one incarnation's: a recreated stream of equal length is another one.
    mark = ":c" if closed else ""
    return f'"{properties.container_id}.{properties.segment_id}:{start}:{end}{mark}"'


def _matches(if_none_match: str | None, etag: str) -> bool:
    if if_none_match is None:
        return False
    candidates = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return etag in candidates or "*" in candidates
