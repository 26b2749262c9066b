"""GET /v1/segments/{name}/read: a stretch of any size, in bounded pieces.

- The answer's length is fixed when it begins (Content-Length), from what exists then; it never waits for more.
- One window of bytes is held per reader; one that takes nothing for `write_seconds_max` is cut off.
- If bytes vanish under the reader (truncated, deleted), the connection is cut: a short body is never a whole one. What
  the first of them meets is the answer: it begins only when they are there.
"""

import asyncio
import re

from aiohttp import web

from segmentstore.contracts.errors import (
    BadOffsetError,
    SegmentStoreError,
    SegmentTruncatedError,
)
from segmentstore.contracts.segments import Segment, SegmentApi
from segmentstore.http.refusals import bad_request
from segmentstore.http.responses import CONTENT_HEADERS, CrossOrigin
from segmentstore.http.segment_reads import gather
from segmentstore.http.settings import HttpSettings

_COUNT = re.compile("[0-9]{1,18}")


def parse_count(text: str | None, name: str, default: int) -> int:
    """A number in a query. Raises Refusal (400)."""
    if text is None:
        return default
    if _COUNT.fullmatch(text) is None:
        raise bad_request(f"{name} is not a number value={text[:32]!r}")
    return int(text)


class SegmentStreaming:
    """Handles big reads."""

    def __init__(
        self, *, segments: SegmentApi, settings: HttpSettings, cross_origin: CrossOrigin
    ) -> None:
        self._segments = segments
        self._settings = settings
        self._cross_origin = cross_origin

    async def handle(self, request: web.BaseRequest, name: str) -> web.StreamResponse:
        async with self._segments.open_segment(name) as segment:
            properties = segment.info()
            offset = parse_count(request.query.get("offset"), "offset", properties.start_offset)
            if offset > properties.length:
                raise BadOffsetError(name, expected=properties.length, given=offset)
            if offset < properties.start_offset:
                raise SegmentTruncatedError(name, start_offset=properties.start_offset)
            available = properties.length - offset
            length = min(available, parse_count(request.query.get("length"), "length", available))
            end = offset + length
            first = await self._piece(segment, offset, end)
            response = web.StreamResponse(
                status=200,
                headers={
                    **CONTENT_HEADERS,
                    "Content-Type": "application/octet-stream",
                    "Content-Disposition": "attachment",
                    "Content-Length": str(length),
                    "Cache-Control": "no-store",
                    "Segment-Offset": str(offset),
                    "Segment-Length": str(properties.length),
                    "Segment-Sealed": "true" if properties.sealed else "false",
                },
            )
            self._cross_origin.add_to(response)
            await response.prepare(request)
            try:
                await self._stream(response, segment, offset, end, first)
            except (SegmentStoreError, TimeoutError, ConnectionError):
                response.force_close()
                if request.transport is not None:
                    request.transport.abort()
        return response

    async def _stream(
        self, response: web.StreamResponse, segment: Segment, offset: int, end: int, piece: bytes
    ) -> None:
        while piece:
            async with asyncio.timeout(self._settings.write_seconds_max):
                await response.write(piece)
            offset += len(piece)
            piece = await self._piece(segment, offset, end)

    async def _piece(self, segment: Segment, offset: int, end: int) -> bytes:
        """What follows; nothing at the end."""
        if offset >= end:
            return b""
        piece = await gather(segment, offset, min(self._settings.window_bytes, end - offset))
        assert piece, f"no bytes before the end offset={offset} end={end}"
        return piece
