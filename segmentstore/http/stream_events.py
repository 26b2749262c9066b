"""GET /v1/stream/{name}?live=sse: server-sent events.

    event: data     one per stretch of bytes, always followed by
    event: control  {"streamNextOffset", "streamCursor" unless closed, "upToDate", "streamClosed"}

- Text and JSON go as they are, everything else in base64 (said once in a header). A payload's lines are split at CRLF,
  CR and LF, each with its own `data:`, so no content can forge an event.
- Text is cut between characters: bytes of a character that is not complete yet are held back, and the control event's
  offset lies before them. Only at the end of a closed stream are they sent (as U+FFFD).
- The connection ends: at the end of a closed stream, when the stream is deleted, after `sse_seconds`, when the
  client takes nothing for `write_seconds_max`, and when the server stops. One window of bytes is held at most.
"""

import asyncio
import base64
import json
import re
from random import Random

from aiohttp import web

from segmentstore.contracts.errors import SegmentNotFoundError, SegmentTruncatedError
from segmentstore.http import json_messages
from segmentstore.http.offsets import next_cursor, offset_token
from segmentstore.http.refusals import Refusal
from segmentstore.http.responses import CONTENT_HEADERS, CrossOrigin
from segmentstore.http.segment_reads import wait_for_bytes
from segmentstore.http.settings import HttpSettings
from segmentstore.http.stream_directory import OpenStream
from segmentstore.http.stream_pieces import read_piece
from segmentstore.http.waiters import Waiters
from segmentstore.runtime.clock import WallClock

_LINE_END = re.compile("\r\n|\r|\n")


def data_event(payload: str) -> str:
    """One data event; the payload may hold any line ends."""
    lines = "".join(f"data:{line}\n" for line in _LINE_END.split(payload))
    return f"event: data\n{lines}\n"


def control_event(*, next_offset: str, cursor: str | None, up_to_date: bool, closed: bool) -> str:
    """One control event; a closed end has no cursor, for nobody needs to come back."""
    control: dict[str, str | bool] = {"streamNextOffset": next_offset}
    if cursor is not None and not closed:
        control["streamCursor"] = cursor
    if up_to_date:
        control["upToDate"] = True
    if closed:
        control["streamClosed"] = True
    return f"event: control\ndata:{json.dumps(control, separators=(',', ':'))}\n\n"


def whole_characters_length(content: bytes) -> int:
    """How many bytes of the content are not part of a character cut off at its end."""
    for back in range(1, min(3, len(content)) + 1):
        byte = content[-back]
        if byte & 0xC0 == 0x80:
            continue
        needed = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return len(content) - back if needed > back else len(content)
    return len(content)


class StreamEvents:
    """Serves SSE connections."""

    def __init__(
        self,
        *,
        waiters: Waiters,
        settings: HttpSettings,
        cross_origin: CrossOrigin,
        wall_clock: WallClock,
        random: Random,
    ) -> None:
        self._waiters = waiters
        self._settings = settings
        self._cross_origin = cross_origin
        self._wall_clock = wall_clock
        self._random = random

    async def handle(
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
            self._cross_origin.add_to(response)
            await response.prepare(request)
            connection = _Connection(self, request, response, stream, offset)
            try:
                await connection.run()
            except (SegmentNotFoundError, SegmentTruncatedError, Refusal):
                # Deleted, truncated under a slow reader, too many waiters: it asks again and learns why.
                pass
            except TimeoutError:
                # It takes nothing: what is in its socket's buffer is all it will get.
                response.force_close()
                if request.transport is not None:
                    request.transport.abort()
            except ConnectionError:
                response.force_close()
        return response

    @property
    def waiters(self) -> Waiters:
        return self._waiters

    @property
    def settings(self) -> HttpSettings:
        return self._settings

    def cursor(self, client_cursor: str | None) -> str:
        return next_cursor(client_cursor, now_ms=self._wall_clock.now_ms(), random=self._random)


class _Connection:
    """One reader's position."""

    def __init__(
        self,
        events: StreamEvents,
        request: web.BaseRequest,
        response: web.StreamResponse,
        stream: OpenStream,
        offset: int,
    ) -> None:
        self._events = events
        self._response = response
        self._stream = stream
        self._segment = stream.segment
        self._offset = offset
        """Everything before it was sent."""
        self._held = b""
        """Bytes from `offset` on that are not a whole character yet."""
        self._client_cursor = request.query.get("cursor")

    async def run(self) -> None:
        """Until the stream, the connection's time or the server ends. Raises TimeoutError for a stuck client."""
        settings = self._events.settings
        deadline = asyncio.get_running_loop().time() + settings.sse_seconds
        while True:
            if await self._send_what_is_there():
                return
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0 or self._events.waiters.stopping:
                return
            try:
                async with self._events.waiters.wait(min(left, settings.long_poll_seconds)):
                    await wait_for_bytes(self._segment, self._offset + len(self._held), 1)
            except TimeoutError:
                continue

    async def _send_what_is_there(self) -> bool:
        """One piece and its control event (or a control event alone); True at the end of a closed stream."""
        settings = self._events.settings
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
                    cursor=self._events.cursor(self._client_cursor),
                    up_to_date=at_end,
                    closed=closed,
                )
                async with asyncio.timeout(settings.write_seconds_max):
                    await self._response.write(event.encode())
            sent_any = True
            self._held = content[taken:]
            if closed:
                return True
            if at_end or self._events.waiters.stopping:
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
        length = len(content) if closed else whole_characters_length(content)
        return content[:length].decode(errors="replace"), length
