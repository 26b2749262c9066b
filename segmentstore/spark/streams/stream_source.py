"""What a query reads, opened on the driver: its streams and segments, from the service or Tier 2, and its two ends.

Invariants:

- mode=offline, and a read without a controller, ask Tier 2 alone; otherwise the service says which segments there are.
- Every call looks again: maps of two calls may differ, since the stream goes on.
- Times are those of blocks: a start takes every block that may hold an event of that time or a later one, an end leaves
  out every block of later ones. What is not flushed has no time: a start takes it, an end too unless it ends before.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from segmentstore.codec.controller_records.stream_records import SealedSegmentRecord
from segmentstore.codec.stream_names import parse_segment
from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.spark.options import EARLIEST, LATEST, RECORD_TAG, Content, SourceOptions
from segmentstore.spark.streams.offsets import Position
from segmentstore.spark.streams.segment_graph import (
    StreamMetadata,
    StreamMissingError,
    StreamSegmentMetadata,
)
from segmentstore.spark.streams.tier2_catalog import Tier2StreamCatalog
from segmentstore.spark.tier2_access import (
    OPEN_ATTEMPTS,
    OPEN_PAUSE_SECONDS,
    Tier2Location,
    Tier2Reader,
    open_tier2_reader,
)

if TYPE_CHECKING:
    from segmentstore.client.store import Store
    from segmentstore.spark.streams.service_catalog import ServiceStreamCatalog


T = TypeVar("T")


class StreamSource:
    """Made by `open_stream_source`."""

    def __init__(
        self,
        *,
        options: SourceOptions,
        view: Tier2Reader | None,
        store: "Store | None",
        served: "ServiceStreamCatalog | None",
    ) -> None:
        self.options = options
        self.view = view
        """None: there is no Tier 2 to read."""
        self.store = store
        """None: the service is not asked."""
        self._streams: Tier2StreamCatalog | ServiceStreamCatalog
        if served is not None:
            self._streams = served
        else:
            assert view is not None, "neither Tier 2 nor the service is open"
            self._streams = Tier2StreamCatalog(view)

    async def scopes(self) -> list[str]:
        """Names of all scopes, in order."""
        return await self._streams.scopes()

    async def streams(self, scope: str) -> list[str]:
        """Names of a scope's streams, in order. Raises StreamMissingError."""
        return await self._found(lambda: self._streams.streams(scope))

    async def stream_metadata(self, scope: str, stream: str) -> StreamMetadata:
        """One stream as it is now. Raises StreamMissingError, StorageError, ClientError."""
        return await self._found(lambda: self._streams.stream_metadata(scope, stream))

    async def segment_metadata_of(self, name: str) -> StreamMetadata:
        """A single segment, as a stream of that segment alone. Raises as stream_metadata()."""
        streams, view = self._streams, self.view
        if not isinstance(streams, Tier2StreamCatalog):
            served = streams
            return await self._found(lambda: served.segment_metadata_of(name))
        assert view is not None, "published streams without Tier 2"
        return await self._found(lambda: tier2_segment_metadata(view, name))

    async def selected_streams(self) -> list[StreamMetadata]:
        """Everything that the options name: one stream, one segment, or every stream of a scope."""
        options = self.options
        if options.segment:
            return [await self.segment_metadata_of(options.segment)]
        if options.stream:
            return [await self.stream_metadata(options.scope, options.stream)]
        maps: list[StreamMetadata] = []
        for name in await self.streams(options.scope):
            try:
                maps.append(await self._streams.stream_metadata(options.scope, name))
            except StreamMissingError:
                # Deleted since it was listed.
                continue
        return maps

    def content_of(self, stream: StreamMetadata) -> Content:
        """What the stream's segments hold: as the options say, else as its tag does."""
        if self.options.content is not Content.AUTO:
            return self.options.content
        return Content.RECORD if RECORD_TAG in stream.tags else Content.RAW

    async def starts(self, stream: StreamMetadata, *, default: str = EARLIEST) -> dict[int, int]:
        """Where the options say that reading begins, by segment id.

        Raises InvalidRequestError; for a time SegmentNotFoundError and SegmentTruncatedError: `stream` is too old.
        """
        time_ms = self.options.starting_timestamp_ms
        if time_ms is not None:
            return {
                each.segment_id: await self._start_at(each, time_ms) for each in stream.segments
            }
        text = self.options.starting_offsets or default
        position = position_of(text)
        if position is not None:
            return position.starts_in(stream)
        return _edge(stream, is_latest=text.lower() == LATEST)

    async def ends(self, stream: StreamMetadata) -> dict[int, int]:
        """Where the options say that reading ends; the tails as they are if they say nothing. Raises as starts()."""
        time_ms = self.options.ending_timestamp_ms
        if time_ms is not None:
            return {each.segment_id: await self._end_at(each, time_ms) for each in stream.segments}
        text = self.options.ending_offsets or LATEST
        position = position_of(text)
        if position is not None:
            return position.ends_in(stream)
        return _edge(stream, is_latest=text.lower() == LATEST)

    async def ends_of_gone(
        self, scope: str, stream: str, segment_ids: Sequence[int]
    ) -> Sequence[SealedSegmentRecord | None]:
        """How segments that retention removed have ended, from the records in Tier 2; None where nothing is known."""
        if self.view is None or self.options.segment:
            return [None] * len(segment_ids)
        try:
            return await Tier2StreamCatalog(self.view).ends_of_gone(scope, stream, segment_ids)
        except StreamMissingError:
            return [None] * len(segment_ids)  # The records of the scope are not flushed yet.

    async def _found(self, look: Callable[[], Awaitable[T]]) -> T:
        """What the newest manifests show. Without the service a missing stream is looked for again, within a bound:
        what was flushed to volumes a moment ago is seen up to a second late."""
        for _ in range(OPEN_ATTEMPTS - 1):
            await self._look_again()
            try:
                return await look()
            except StreamMissingError:
                if self.store is not None:
                    raise
            await asyncio.sleep(OPEN_PAUSE_SECONDS)
        await self._look_again()
        return await look()

    async def _look_again(self) -> None:
        if self.view is not None:
            await self.view.refresh()

    async def _start_at(self, segment: StreamSegmentMetadata, time_ms: int) -> int:
        """O(blocks before it)."""
        start, end = segment.start_offset, segment.published_end
        record = None if self.view is None else await self.view.find(segment.name)
        container = None if self.view is None else await self.view.container(segment.container_id)
        if record is None or container is None or start >= end:
            return start
        async with aclosing(container.list_blocks(record.segment_id, start, end)) as blocks:
            async for block in blocks:
                if not block.times_known or block.highest_time_ms >= time_ms:
                    return max(start, block.first_event_offset or block.offset)
        return end

    async def _end_at(self, segment: StreamSegmentMetadata, time_ms: int) -> int:
        """O(blocks before it)."""
        start, end = segment.start_offset, segment.published_end
        record = None if self.view is None else await self.view.find(segment.name)
        container = None if self.view is None else await self.view.container(segment.container_id)
        if record is None or container is None or start >= end:
            return segment.end_offset
        async with aclosing(container.list_blocks(record.segment_id, start, end)) as blocks:
            async for block in blocks:
                if block.first_event_offset is not None and block.lowest_time_ms >= time_ms:
                    return max(start, block.first_event_offset)
        return segment.end_offset


async def tier2_segment_metadata(view: Tier2Reader, name: str) -> StreamMetadata:
    """A single segment from Tier 2 alone. Raises StreamMissingError, StorageError."""
    record = await view.find(name)
    if record is None:
        raise StreamMissingError(f"segment does not exist in Tier 2 name={name!r}")
    try:
        parts = parse_segment(name)
        scope, stream, segment_id = parts.scope, parts.stream, parts.segment_id
    except InvalidRequestError:
        # A name of its own, in no stream: one that is made again by that name has another id.
        scope, stream, segment_id = "", "", record.segment_id
    segment = StreamSegmentMetadata(
        segment_id=segment_id,
        name=name,
        epoch=segment_id >> 32,
        low=0.0,
        high=1.0,
        start_offset=record.start_offset,
        end_offset=record.length,
        published_end=record.length,
        is_sealed=record.sealed,
        container_id=view.container_id(name),
    )
    return StreamMetadata(
        scope=scope,
        stream=stream,
        segments=[segment],
        head={segment_id: record.start_offset},
        is_sealed=record.sealed,
    )


def position_of(text: str) -> Position | None:
    """The position that a user wrote; None for earliest and latest. Raises InvalidRequestError."""
    return None if text.lower() in (EARLIEST, LATEST) else Position.parse(text)


def _edge(stream: StreamMetadata, *, is_latest: bool) -> dict[int, int]:
    return {
        each.segment_id: each.end_offset if is_latest else each.start_offset
        for each in stream.segments
    }


def place_of(options: SourceOptions) -> Tier2Location | None:
    """Where Tier 2 is; None if the options do not say."""
    if not options.tier2:
        return None
    return Tier2Location(place=options.tier2, endpoint=options.endpoint, region=options.region)


@asynccontextmanager
async def open_stream_source(
    options: SourceOptions, *, executor: Executor | None
) -> AsyncIterator[StreamSource]:
    """Raises InvalidRequestError if there is no Tier 2 at the place, StorageError."""
    async with AsyncExitStack() as opened:
        place = place_of(options)
        view: Tier2Reader | None = None
        if place is not None:
            view = await opened.enter_async_context(open_tier2_reader(place, executor=executor))
        store: Store | None = None
        served: ServiceStreamCatalog | None = None
        if options.uses_service:
            # Only queries that ask the service need its client library.
            from segmentstore.spark.streams.service_catalog import open_service_catalog

            store, served = await opened.enter_async_context(open_service_catalog(options, view))
        yield StreamSource(options=options, view=view, store=store, served=served)
