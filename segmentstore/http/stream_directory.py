"""Which streams exist, for all verbs: a segment that is neither expired, nor half created, nor deleted.

- A stream that is over is removed by whoever notices it first: a request for it, or the sweep.
- A create that crashed before its first bytes were stored left a segment marked `initialising`; it counts as absent and
  the next create of that name removes it.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import NoReturn

from segmentstore.contracts.errors import SegmentNotFoundError
from segmentstore.contracts.segments import Segment, SegmentApi, SegmentProperties
from segmentstore.http.fork_registry import ForkRegistry
from segmentstore.http.name_locks import NameLocks
from segmentstore.http.names import is_reserved
from segmentstore.http.pins import SegmentPins
from segmentstore.http.refusals import gone, not_found
from segmentstore.http.stream_attributes import (
    INITIALISING_KEY,
    ForkOrigin,
    StreamConfiguration,
    configuration_of,
)
from segmentstore.http.stream_expiry import StreamExpiry

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenStream:
    """An existing stream, pinned while its context lasts."""

    segment: Segment
    properties: SegmentProperties
    """As of opening."""
    configuration: StreamConfiguration


class StreamDirectory:
    """Finds, expires and deletes streams."""

    def __init__(
        self, *, segments: SegmentApi, pins: SegmentPins, expiry: StreamExpiry, forks: ForkRegistry
    ) -> None:
        self.segments = segments
        self.pins = pins
        self.expiry = expiry
        self.forks = forks
        self.locks = NameLocks()
        self.expired_count = 0

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[OpenStream]:
        """Raises Refusal: 404 (absent or over), 410 (deleted, but its forks live)."""
        async with self._find(name) as stream:
            if stream is not None:
                yield stream
                return
        await self.expire(name)
        await self.refuse_missing(name)

    @asynccontextmanager
    async def open_locked(self, name: str) -> AsyncIterator[OpenStream | None]:
        """For a caller that holds the name's lock: the stream, None if there is none."""
        origin = await self.remove_if_over(name)
        await self.release_source(origin)
        async with self._find(name) as stream:
            yield stream

    @asynccontextmanager
    async def _find(self, name: str) -> AsyncIterator[OpenStream | None]:
        async with AsyncExitStack() as stack:
            try:
                segment = await stack.enter_async_context(self.segments.open_segment(name))
            except SegmentNotFoundError:
                segment = None
            if segment is None:
                yield None
                return
            properties = segment.info()
            configuration = configuration_of(properties.core_attributes)
            if INITIALISING_KEY in properties.core_attributes or self.expiry.is_over(
                properties, configuration
            ):
                yield None
                return
            yield OpenStream(segment, properties, configuration)

    async def refuse_missing(self, name: str) -> NoReturn:
        """Raises the Refusal for a name that has no stream."""
        if await self.forks.is_deleted(name):
            raise gone(f"stream was deleted; its forks live on name={name!r}")
        raise not_found(f"stream does not exist name={name!r}")

    async def expire(self, name: str) -> None:
        """Remove the stream if it is (still) over."""
        async with self.locks.hold(name):
            origin = await self.remove_if_over(name)
        await self.release_source(origin)

    async def remove_if_over(self, name: str) -> ForkOrigin | None:
        """The part of expire() that needs the name's lock."""
        try:
            properties = await self.segments.info(name)
        except SegmentNotFoundError:
            return None
        configuration = configuration_of(properties.core_attributes)
        if not self.expiry.is_over(properties, configuration):
            return None
        self.expired_count += 1
        logger.info("stream expired name=%r", name)
        return await self.remove(name, properties, configuration)

    async def delete(self, name: str) -> None:
        """The verb. Raises Refusal: 404, 410."""
        async with self.locks.hold(name):
            async with self.open_locked(name) as stream:
                if stream is None:
                    await self.refuse_missing(name)
                properties, configuration = stream.properties, stream.configuration
            origin = await self.remove(name, properties, configuration)
        await self.release_source(origin)

    async def fork_begins(self, source: str) -> None:
        """Count a fork of the source before its bytes are copied."""
        async with self.locks.hold(source):
            await self.forks.count_up(source)

    async def remove(
        self, name: str, properties: SegmentProperties, configuration: StreamConfiguration
    ) -> ForkOrigin | None:
        """Delete under the name's lock; what the caller must hand to release_source() after the lock."""
        await self.pins.forget(name)
        has_forks = await self.forks.delete_source(name, configuration.fork_origin)
        await self.segments.delete(name)
        self.expiry.forget(properties)
        return None if has_forks else configuration.fork_origin

    async def release_source(self, origin: ForkOrigin | None) -> None:
        """A fork is gone: its source's name, and its source's source's, may become free."""
        while origin is not None:
            source = origin.source
            async with self.locks.hold(source):
                origin = await self.forks.count_down(source)

    async def sweep_page(self, start_after: str, count_max: int) -> str:
        """Expire what is over among the next streams; where to go on, "" at the end."""
        page = await self.segments.list_segments(start_after=start_after, limit=count_max)
        for properties in page:
            configuration = configuration_of(properties.core_attributes)
            if not is_reserved(properties.name) and self.expiry.is_over(properties, configuration):
                await self.expire(properties.name)
        return page[-1].name if len(page) == count_max else ""
