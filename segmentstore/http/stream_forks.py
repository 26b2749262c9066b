"""Forks: a new stream that begins with a copy of another one's first bytes.

- The fork keeps its source's byte offsets up to the fork point, and tokens minted for the source (or the source's own
  source) stay valid in the fork up to there.
- Bytes are copied in bounded pieces while the fork is still `initialising`; nobody sees half of them.
- A source whose front was truncated cannot be forked: offsets would no longer fit.

Fork point = Stream-Fork-Offset (default: the source's end) + Stream-Fork-Sub-Offset, which counts bytes or, in JSON
mode, messages.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from segmentstore.contracts.segments import Segment
from segmentstore.http import header_names
from segmentstore.http.names import is_reserved, name_of_path
from segmentstore.http.offsets import OffsetPlace, RequestedOffset, parse_offset
from segmentstore.http.refusals import Refusal, bad_request, conflict
from segmentstore.http.segment_reads import gather
from segmentstore.http.settings import HttpSettings
from segmentstore.http.stream_attributes import ForkOrigin, StreamConfiguration
from segmentstore.http.stream_directory import OpenStream, StreamDirectory
from segmentstore.http.stream_positions import byte_offset

ANCESTORS_MAX = 8

_COUNT = re.compile("0|[1-9][0-9]{0,14}")


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """The fork headers of a PUT, parsed."""

    source: str
    offset: RequestedOffset | None
    sub_offset: int

    @staticmethod
    def describes(asked: "ForkRequest | None", origin: ForkOrigin | None) -> bool:
        """Whether an existing stream came from what a second PUT asks for."""
        if asked is None or origin is None:
            return asked is None and origin is None
        if asked.source != origin.source or asked.sub_offset != origin.sub_offset:
            return False
        if asked.offset is None:
            return True
        offset = asked.offset.offset if asked.offset.place is OffsetPlace.TOKEN else 0
        return offset == origin.offset


@dataclass(frozen=True, slots=True)
class ForkPlan:
    """A fork that can be made: where its bytes come from and what it will be."""

    source: OpenStream
    source_name: str
    configuration: StreamConfiguration
    copied: int
    """Bytes [0, copied) of the source are inherited."""


class StreamForks:
    """Plans and copies forks."""

    def __init__(
        self, *, directory: StreamDirectory, settings: HttpSettings, stream_prefix: str
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._stream_prefix = stream_prefix

    def parse_headers(self, headers: Mapping[str, str]) -> ForkRequest | None:
        """None if no fork is asked for. Raises Refusal (400), InvalidRequestError."""
        source_path = headers.get(header_names.STREAM_FORKED_FROM)
        offset = headers.get(header_names.STREAM_FORK_OFFSET)
        sub_offset = headers.get(header_names.STREAM_FORK_SUB_OFFSET)
        if source_path is None:
            if offset is not None or sub_offset is not None:
                raise bad_request("Stream-Fork-Offset and -Sub-Offset need Stream-Forked-From")
            return None
        if sub_offset is not None and _COUNT.fullmatch(sub_offset) is None:
            raise bad_request(f"Stream-Fork-Sub-Offset is no count value={sub_offset[:32]!r}")
        return ForkRequest(
            source=self._source_name(source_path),
            offset=None if offset is None else parse_offset(offset),
            sub_offset=0 if sub_offset is None else int(sub_offset),
        )

    def _source_name(self, source_path: str) -> str:
        path = urlsplit(source_path).path if "://" in source_path else source_path
        if not path.startswith(self._stream_prefix):
            raise bad_request(f"Stream-Forked-From names no stream of this server path={path!r}")
        name = name_of_path(path[len(self._stream_prefix) :], self._settings.name_bytes_max)
        if is_reserved(name):
            raise bad_request(f"Stream-Forked-From names a reserved path path={path!r}")
        return name

    @asynccontextmanager
    async def plan(
        self,
        asked: ForkRequest,
        configuration: StreamConfiguration,
        *,
        content_type_given: bool,
        expiry_given: bool,
    ) -> AsyncIterator[ForkPlan]:
        """Check everything that can be refused; the source stays pinned, and counted, in the block.

        Raises Refusal: 404 (no source), 409 (source deleted, other content type), 400 (fork point past the end).
        """
        try:
            async with self._directory.open(asked.source) as source:
                if content_type_given:
                    if configuration.media_type != source.configuration.media_type:
                        raise conflict("a fork has the content type of its source")
                    content_type = configuration.content_type
                else:
                    content_type = source.configuration.content_type
                offset, copied = await self._fork_point(asked, source)
                origin = ForkOrigin(
                    source=asked.source,
                    source_id=source.properties.segment_id,
                    offset=offset,
                    sub_offset=asked.sub_offset,
                    copied=copied,
                    ancestors=_ancestors(source, copied),
                )
                configuration = replace(
                    configuration, content_type=content_type, fork_origin=origin
                )
                if not expiry_given:
                    configuration = replace(
                        configuration,
                        time_to_live_seconds=source.configuration.time_to_live_seconds,
                        expires_at=source.configuration.expires_at,
                    )
                self._directory.expiry.touch(source.properties, source.configuration)
                await self._directory.fork_begins(asked.source)
                made = False
                try:
                    yield ForkPlan(source, asked.source, configuration, copied)
                    made = True
                finally:
                    if not made:
                        await self._directory.release_source(origin)
        except Refusal as refusal:
            if refusal.status == 410:
                raise conflict(str(refusal)) from refusal
            raise

    async def inherit(self, plan: ForkPlan, fork: Segment) -> None:
        """Copy the inherited bytes into the new segment."""
        offset = 0
        while offset < plan.copied:
            length = min(self._settings.read_bytes_max, plan.copied - offset)
            piece = await gather(plan.source.segment, offset, length)
            assert piece, f"source ended early offset={offset} copied={plan.copied}"
            await asyncio.shield(fork.append(piece, offset=offset))
            offset += len(piece)

    async def _fork_point(self, asked: ForkRequest, source: OpenStream) -> tuple[int, int]:
        """(Stream-Fork-Offset, end of the inherited bytes), both in bytes."""
        properties = source.properties
        if properties.start_offset > 0:
            raise conflict(
                "a stream whose front was truncated cannot be forked"
                f" start_offset={properties.start_offset}"
            )
        offset = properties.length
        if asked.offset is not None:
            try:
                offset = byte_offset(asked.offset, properties, source.configuration)
            except Refusal as refusal:
                raise bad_request(f"Stream-Fork-Offset: {refusal}") from refusal
        if asked.sub_offset == 0:
            return offset, offset
        if not source.configuration.is_json:
            if offset + asked.sub_offset > properties.length:
                raise bad_request("Stream-Fork-Sub-Offset lies past the end of the source")
            return offset, offset + asked.sub_offset
        return offset, await self._behind_messages(source, offset, asked.sub_offset)

    async def _behind_messages(self, source: OpenStream, offset: int, count: int) -> int:
        """The offset behind `count` messages. Reads them, a piece at a time."""
        while True:
            piece = await gather(source.segment, offset, self._settings.window_bytes)
            if not piece:
                raise bad_request("Stream-Fork-Sub-Offset lies past the end of the source")
            lines = piece.count(b"\n")
            if lines < count:
                count -= lines
                offset += len(piece)
                continue
            position = -1
            for _ in range(count):
                position = piece.index(b"\n", position + 1)
            return offset + position + 1


def _ancestors(source: OpenStream, copied: int) -> list[tuple[int, int]]:
    origin = source.configuration.fork_origin
    inherited = [] if origin is None else origin.ancestors
    ancestors = [(ancestor, min(shared, copied)) for ancestor, shared in inherited]
    # Attribute values are small: of a long chain of forks the nearest ancestors are kept.
    return [*ancestors, (int(source.properties.segment_id), copied)][-ANCESTORS_MAX:]
