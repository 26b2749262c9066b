"""Which streams exist, for all verbs: a segment that is neither expired, nor half created, nor deleted.

StreamDirectory finds, expires and deletes streams. It keeps the open segments of hot streams (a HandleCache), the
last accesses by which streams expire (StreamExpiry), and the names that forks keep taken (ForkRegistry).

- A stream that is over is removed by what notices it first: a request for it, or the sweep.
- A create that crashed before its first bytes were stored left a segment marked `initialising`; it counts as absent and
  the next create or deletion of that name removes it.
- What holds a name's lock waits for no other name's lock: two requests can never wait for one another. The counts of
  forks have locks of their own, which are taken last.
- A removal runs to its end, also if its client leaves: what is counted and what is stored never part.
"""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, NoReturn, TypeVar

from segmentstore.contracts.errors import (
    InvalidRequestError,
    SegmentExistsError,
    SegmentNotFoundError,
    SegmentStoreError,
)
from segmentstore.contracts.identifiers import AttributeKey, AttributeValue
from segmentstore.contracts.segments import (
    NAME_BYTES_MAX,
    AttributeUpdate,
    AttributeUpdateType,
    ReadOnlySegment,
    Segment,
    SegmentApi,
    SegmentProperties,
    SegmentReads,
)
from segmentstore.http.requests import FORK_REGISTRY_SUFFIX, RESERVED_PART, is_reserved
from segmentstore.http.responses import conflict, gone, not_found
from segmentstore.http.stream_attributes import (
    DELETED_KEY,
    FORK_COUNT_KEY,
    FORK_ORIGIN_KEY,
    ForkOrigin,
    StreamConfiguration,
    configuration_of,
)
from segmentstore.runtime.cancellation import finish_despite_cancellation
from segmentstore.runtime.clock import ClockWatch, WallClock
from segmentstore.runtime.handle_cache import HandleCache
from segmentstore.runtime.keyed_locks import KeyedLocks

logger = logging.getLogger(__name__)

_LONG_NAMES_PREFIX = RESERVED_PART + "/forks/"

_Result = TypeVar("_Result")
ListPage = Callable[[str, int], Awaitable[Sequence[SegmentProperties]]]
"""Segments behind a name, at most so many."""


@dataclass(frozen=True, slots=True)
class OpenStream:
    """An existing stream, pinned while its context lasts."""

    segment: ReadOnlySegment
    properties: SegmentProperties
    """As of opening."""
    configuration: StreamConfiguration


class StreamDirectory:
    """Finds, expires and deletes streams."""

    def __init__(
        self,
        *,
        segments: SegmentApi,
        reads: SegmentReads,
        handles: "HandleCache[StreamHandle]",
        expiry: "StreamExpiry",
        forks: "ForkRegistry",
        list_here: ListPage | None = None,
        is_here: Callable[[str], bool] = lambda _name: True,
    ) -> None:
        """`list_here` lists the segments whose containers are here, by name (None: all of `segments`); `is_here` says
        of a name whether its container is."""
        self._list_here = list_here or _listing_of(segments)
        self.is_here = is_here
        self.segments = segments
        self._reads = reads
        self.handles = handles
        self.expiry = expiry
        self.forks = forks
        self.locks = KeyedLocks[str]()
        self.expired_count = 0

    def open(self, name: str) -> AbstractAsyncContextManager[OpenStream]:
        """Raises Refusal: 404 (absent or over), 410 (deleted, but it still has forks)."""
        return self._open_in(self.segments, name)

    def open_for_reading(self, name: str) -> AbstractAsyncContextManager[OpenStream]:
        """As open(), also of a container that stays down: what Tier 2 has of the stream. For reads of bytes alone."""
        return self._open_in(self._reads, name)

    @asynccontextmanager
    async def _open_in(self, segments: SegmentReads, name: str) -> AsyncIterator[OpenStream]:
        async with self._find(name, segments) as stream:
            if stream is not None:
                yield stream
                return
        await self.expire(name)
        await self.raise_not_found(name)

    @asynccontextmanager
    async def open_locked(self, name: str) -> AsyncIterator[OpenStream | None]:
        """For a caller that holds the name's lock: the stream, None if there is none."""
        await self._remove_if_expired(name)
        async with self._find(name, self.segments) as stream:
            yield stream

    @asynccontextmanager
    async def _find(self, name: str, segments: SegmentReads) -> AsyncIterator[OpenStream | None]:
        async with AsyncExitStack() as stack:
            try:
                segment = await stack.enter_async_context(segments.open_segment(name))
            except SegmentNotFoundError:
                segment = None
            if segment is None:
                yield None
                return
            properties = segment.info()
            configuration = configuration_of(properties.core_attributes)
            if properties.is_half_created or self.expiry.has_expired(properties, configuration):
                yield None
                return
            yield OpenStream(segment, properties, configuration)

    async def raise_not_found(self, name: str) -> NoReturn:
        """Raises the Refusal for a name that has no stream."""
        if await self.forks.is_deleted(name):
            raise gone(f"stream was deleted; its forks live on name={name!r}")
        raise not_found(f"stream does not exist name={name!r}")

    async def expire(self, name: str) -> None:
        """Remove the stream if it is (still) over."""
        async with self.locks.held(name):
            await self._remove_if_expired(name)

    async def access(
        self, properties: SegmentProperties, configuration: StreamConfiguration
    ) -> None:
        """The stream is read or written now. Raises SegmentNotFoundError if it is over; it is removed then."""
        if self.expiry.has_expired(properties, configuration):
            await self.expire(properties.name)
            raise SegmentNotFoundError(properties.name)
        self.expiry.touch(properties, configuration)

    async def _remove_if_expired(self, name: str) -> None:
        """The part of expire() that needs the name's lock."""
        try:
            properties = await self.segments.info(name)
        except SegmentNotFoundError:
            return
        configuration = configuration_of(properties.core_attributes)
        if not self.expiry.has_expired(properties, configuration):
            return
        self.expired_count += 1
        logger.info("stream expired name=%r", name)
        await self._remove(properties, configuration)

    async def delete(self, name: str) -> None:
        """The verb. Raises Refusal: 404, 410."""
        async with self.locks.held(name):
            async with self.open_locked(name) as stream:
                if stream is None:
                    await self.remove_half_created(name)
                    await self.raise_not_found(name)
                properties, configuration = stream.properties, stream.configuration
            await self._remove(properties, configuration)

    async def create_segment(
        self, name: str, updates: Sequence[AttributeUpdate]
    ) -> SegmentProperties:
        """A segment that is no stream. Raises SegmentExistsError, Refusal (409) for a name that forks keep taken."""
        async with self.locks.held(name):
            if await self.forks.is_deleted(name) and not await self._exists(name):
                raise conflict("stream was deleted; its forks still need its name")
            try:
                return await self.segments.create(name, updates)
            except SegmentExistsError:
                await self.remove_half_created(name)
            return await self.segments.create(name, updates)

    async def _exists(self, name: str) -> bool:
        try:
            await self.segments.info(name)
        except SegmentNotFoundError:
            return False
        return True

    async def delete_segment(self, name: str) -> None:
        """The segment of that name, whatever it is as a stream. Raises SegmentNotFoundError."""
        async with self.locks.held(name):
            properties = await self.segments.info(name)
            await self._remove(properties, configuration_of(properties.core_attributes))
            properties.require_created()

    async def merge_segment(self, target: str, source: str) -> int:
        """As SegmentApi.merge(); the source is gone as if it had been deleted. Its length in the target."""
        async with self.locks.held(source):
            properties = await self.segments.info(source)
            configuration = configuration_of(properties.core_attributes)
            merge = partial(self.segments.merge, target, source)
            return await finish_despite_cancellation(
                self._take_away(properties, configuration, merge)
            )

    def forget_container(self, container_id: int, belongs: Callable[[str], bool]) -> None:
        """It runs here no more; `belongs` says of a name whether it is its."""
        self.handles.discard_names(belongs)
        self.expiry.forget_container(container_id)

    async def remove_half_created(self, name: str) -> None:
        """Under the name's lock, so that no create of this process is under way: what an earlier one left behind."""
        try:
            properties = await self.segments.info(name)
        except SegmentNotFoundError:
            return
        if properties.is_half_created:
            await self._remove(properties, configuration_of(properties.core_attributes))

    async def _remove(
        self, properties: SegmentProperties, configuration: StreamConfiguration
    ) -> None:
        """Delete under the name's lock."""
        delete = partial(self.segments.delete, properties.name)
        await finish_despite_cancellation(self._take_away(properties, configuration, delete))

    async def _take_away(
        self,
        properties: SegmentProperties,
        configuration: StreamConfiguration,
        take: Callable[[], Awaitable[_Result]],
    ) -> _Result:
        """All that ends with a stream, in order; what `take` gave.

        Callers let it run to its end, also if the client leaves meanwhile.
        """
        await self.handles.discard_name(properties.name)
        taken = await self.forks.remove_source(properties.name, configuration.fork_origin, take)
        self.expiry.forget(properties)
        return taken

    async def sweep_page(self, start_after: str, count_max: int) -> tuple[str, Exception | None]:
        """Expire what is over among the next streams.

        Where to go on ("" at the end), and what went wrong at one of them: it keeps none of the others.
        """
        page = await self._list_here(start_after, count_max)
        fault: Exception | None = None
        for properties in page:
            try:
                configuration = configuration_of(properties.core_attributes)
                if not is_reserved(properties.name) and self.expiry.has_expired(
                    properties, configuration
                ):
                    await self.expire(properties.name)
            except SegmentStoreError as error:
                logger.info("expiry is put off name=%r: %s", properties.name, error)
            except Exception as error:  # noqa: BLE001  # the caller tells of it
                fault = error
        return page[-1].name if len(page) == count_max else "", fault


def _listing_of(segments: SegmentApi) -> ListPage:
    async def page(start_after: str, count_max: int) -> Sequence[SegmentProperties]:
        return await segments.list_segments(start_after=start_after, limit=count_max)

    return page


class StreamHandle:
    """One open segment, with what a stream's appends need to know of it."""

    __slots__ = ("configuration", "content_type_accepted", "segment", "takes_plain_bytes")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.configuration: StreamConfiguration = configuration_of(segment.info().core_attributes)
        self.takes_plain_bytes = not (self.configuration.may_expire or self.configuration.is_json)
        """Whether a body of the right type is stored as it comes, and nothing else happens."""
        self.content_type_accepted = self.configuration.content_type
        """The last Content-Type header that matched: clients repeat themselves."""


@asynccontextmanager
async def open_stream_handle(segments: SegmentApi, name: str) -> AsyncIterator[StreamHandle]:
    """Raises what open_segment raises; SegmentNotFoundError also for a segment that is half created."""
    async with segments.open_segment(name) as segment:
        segment.info().require_created()
        yield StreamHandle(segment)


class StreamExpiry:
    """When a stream is over: `Stream-Expires-At` by the wall clock, `Stream-TTL` by the last access.

    - The last access is volatile, in the loop's time: reads must not write. A stream that this process has not seen
      before counts as accessed now, so after a restart (or with a full table) streams expire later, never earlier.
    - A stream that has changed since its last access was written by something else (a segment verb, another server of
      this process): it counts as accessed when that is seen. So no writer's stream expires under it.
    - A container that goes to another node takes its accesses along, which are unknown there: a stream that comes back
      counts as accessed then.
    - Nothing is over while the clocks are not trusted.
    """

    def __init__(self, *, clock_watch: ClockWatch, wall_clock: WallClock, streams_max: int) -> None:
        self._clock_watch = clock_watch
        self._wall_clock = wall_clock
        self._streams_max = streams_max
        self._accessed: OrderedDict[tuple[int, int], _Access] = OrderedDict()

    def __len__(self) -> int:
        return len(self._accessed)

    def touch(self, properties: SegmentProperties, configuration: StreamConfiguration) -> None:
        """The stream was read or written now; `properties` are as of now, so behind a write."""
        if configuration.time_to_live_seconds is not None:
            self._remember(properties)

    def touch_written(self, segment: Segment, configuration: StreamConfiguration) -> None:
        """As touch(), behind a write that is done. A container that went away since then makes no refusal of it."""
        if configuration.may_expire:
            with suppress(SegmentStoreError):
                self.touch(segment.info(), configuration)

    def has_expired(
        self, properties: SegmentProperties, configuration: StreamConfiguration
    ) -> bool:
        """Whether the stream counts as absent. Asking is no access, except the very first time."""
        if not configuration.may_expire or not self._clock_watch.trusted():
            return False
        expires_at_ms = configuration.expires_at_ms
        if expires_at_ms is not None and self._wall_clock.now_ms() >= expires_at_ms:
            return True
        time_to_live = configuration.time_to_live_seconds
        if time_to_live is None:
            return False
        accessed = self._accessed.get((properties.container_id, properties.segment_id))
        if accessed is None or accessed.state != _state_of(properties):
            self._remember(properties)
            return time_to_live == 0 and accessed is not None
        return asyncio.get_running_loop().time() - accessed.at >= time_to_live

    def forget(self, properties: SegmentProperties) -> None:
        """The stream is gone."""
        self._accessed.pop((properties.container_id, properties.segment_id), None)

    def forget_container(self, container_id: int) -> None:
        """It is elsewhere from now on, where its streams are accessed: here they are unknown. O(streams)."""
        for key in [key for key in self._accessed if key[0] == container_id]:
            del self._accessed[key]

    def _remember(self, properties: SegmentProperties) -> None:
        key = (properties.container_id, properties.segment_id)
        self._accessed[key] = _Access(asyncio.get_running_loop().time(), _state_of(properties))
        self._accessed.move_to_end(key)
        if len(self._accessed) > self._streams_max:
            self._accessed.popitem(last=False)


class _Access(NamedTuple):
    """The last one that is known of."""

    at: float
    """The loop's time."""
    state: tuple[int, int, bool]
    """Of the segment then."""


def _state_of(properties: SegmentProperties) -> tuple[int, int, bool]:
    """Other values of it mean that another request changed the segment."""
    return properties.length, properties.start_offset, properties.sealed


class ForkRegistry:
    """Which streams have forks: one that is deleted while forks of it exist answers 410 until the last fork is gone.

    A fork copies its inherited bytes, so it needs nothing of its source. What remains is the source's name: it stays
    taken. The registry of a source is a small segment of its own (of a name that users cannot reach), because the
    source itself may be sealed when it is forked and is really removed when it is deleted. Its name is the source's
    with a suffix, behind which it lives in the source's container: what is asked of the two is asked of one node. A
    name that leaves no room for the suffix has its registry under its SHA-256, in whatever container that is; where not
    all containers are here, in a cluster, a stream of such a name cannot be forked.

    - The registry exists from the first fork on; it counts forks up before the copy begins and down after a fork is
      gone.
    - A crash in between leaves the count too high: the name of a deleted source then stays taken. Never data. So does
      a source whose container is away when its fork goes: what was done by then is not reported as undone.
    - Each registry has a lock. While it is held, no other lock is waited for.
    - A source is marked as deleted before it is deleted, in one stretch under the lock. A mark on a stream that still
      exists (a crash, a merge that was refused) means nothing.
    """

    def __init__(self, *, segments: SegmentApi, has_all_containers: bool = True) -> None:
        self._segments = segments
        self._has_all_containers = has_all_containers
        self._locks = KeyedLocks[str]()

    async def is_deleted(self, name: str) -> bool:
        """Whether the stream was deleted and its name is still taken by its forks."""
        attributes = await self._attributes(name)
        return attributes is not None and DELETED_KEY in attributes

    async def count_up(self, source: str, source_id: int) -> None:
        """A fork of the source begins. Raises SegmentNotFoundError if the source of that id is gone.

        Counted only while the source exists: what removes it then sees the count, and keeps the name taken. A fork of
        a name that was free already could have a successor of that name for its own fork, and neither ever goes.
        """
        registry = self._registry_of(source)
        if registry is None:
            raise InvalidRequestError(
                f"in a cluster the name is too long for a stream with forks name={source!r}"
            )
        async with self._locks.held(source):
            if (await self._segments.info(source)).segment_id != source_id:
                raise SegmentNotFoundError(source)
            with suppress(SegmentExistsError):
                await self._segments.create(registry)
            await self._accumulate(registry, 1)

    async def release(self, origin: ForkOrigin | None) -> None:
        """A fork is gone: its source's name, and its source's source's, may become free. Raises nothing."""
        while origin is not None:
            source = origin.source
            try:
                async with self._locks.held(source):
                    origin = await self._count_down(source)
            except SegmentStoreError as error:
                logger.warning("a fork that is gone stays counted source=%r: %s", source, error)
                return

    async def remove_source(
        self, name: str, origin: ForkOrigin | None, take: Callable[[], Awaitable[_Result]]
    ) -> _Result:
        """Take the stream away by `take`. If it has forks, its name stays taken; if not, its origin has a fork less.

        What `take` gave.
        """
        async with self._locks.held(name):
            registry = self._registry_of(name)
            has_forks = registry is not None and await self._attributes(name) is not None
            if registry is not None and has_forks:
                updates = [AttributeUpdate(DELETED_KEY, 1)]
                if origin is not None:
                    updates.append(AttributeUpdate(FORK_ORIGIN_KEY, origin.encode()))
                await self._segments.update_attributes(registry, updates)
            taken = await take()
        if not has_forks:
            await self.release(origin)
        return taken

    async def _count_down(self, source: str) -> ForkOrigin | None:
        """If that frees the source's name, what the source itself was forked from."""
        registry = self._registry_of(source)
        attributes = await self._attributes(source)
        if registry is None or attributes is None:
            return None
        count = attributes.get(FORK_COUNT_KEY)
        if isinstance(count, int) and count > 1:
            await self._accumulate(registry, -1)
            return None
        await self._segments.delete(registry)
        if DELETED_KEY not in attributes:
            return None
        origin = configuration_of(attributes).fork_origin
        if origin is None or await self._is_fork_of(source, origin):
            # It still exists, and is released when it goes.
            return None
        return origin

    async def _is_fork_of(self, name: str, origin: ForkOrigin) -> bool:
        try:
            properties = await self._segments.info(name)
        except SegmentNotFoundError:
            return False
        return configuration_of(properties.core_attributes).fork_origin == origin

    async def _accumulate(self, registry: str, change: int) -> None:
        update = AttributeUpdate(FORK_COUNT_KEY, change, AttributeUpdateType.ACCUMULATE)
        await self._segments.update_attributes(registry, [update])

    async def _attributes(self, name: str) -> dict[AttributeKey, AttributeValue] | None:
        registry = self._registry_of(name)
        if registry is None:
            return None
        try:
            return dict(await self._segments.attributes(registry))
        except SegmentNotFoundError:
            return None

    def _registry_of(self, source: str) -> str | None:
        """The name of its registry; None if it can have none."""
        beside = source + FORK_REGISTRY_SUFFIX
        if len(beside.encode()) <= NAME_BYTES_MAX:
            return beside
        if not self._has_all_containers:
            return None
        return _LONG_NAMES_PREFIX + hashlib.sha256(source.encode()).hexdigest()
