"""Requests that cannot be accepted yet: writers are slowed, the cache has no room, or an attribute is not in memory.

The queue keeps call order per segment: while a segment has a request here, every later one of it that must not
overtake queues behind it. A segment that waits for an attribute steps aside with its requests and lets other segments
go on. Requests are held, never dropped; their bytes are bounded.

Invariant: of one segment, what stands aside was called before what stands in the queue. Hence every new request goes to
the end of the queue, also one of a segment that stepped aside: others of it may be in the queue still, because a batch
takes only so many. What comes back from aside goes to the front.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from containers.attributes.attribute_updates import UnknownAttributesError
from containers.container_settings import OperationProcessorSettings
from containers.log.throttler import STOP, Throttle
from containers.metadata.segment_metadata import SegmentMetadata
from segmentstore.contracts.errors import CacheFullError, SegmentStoreError
from segmentstore.contracts.identifiers import AttributeKey
from segmentstore.runtime.waiting import wait_for_event

_LOOK_AGAIN_SECONDS = 0.05
"""The longest wait for room before the queue looks again without a call of wake()."""


class WaitingRequest:
    """One request in the queue."""

    __slots__ = ("attempt", "attributes", "fail", "length", "segment")

    def __init__(
        self,
        segment: SegmentMetadata,
        *,
        length: int,
        attempt: Callable[[], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self.segment = segment
        self.length = length
        self.attempt = attempt
        """Accepts the request, or refuses it through its future; raises what means "not yet"."""
        self.fail = fail
        self.attributes: dict[AttributeKey, None] = {}
        """All that it was ever found to need: asked for one after the other, the first may leave memory before the last
        has come, for ever."""


class AdmissionQueue:
    """The queue and the task that works it off."""

    def __init__(
        self,
        *,
        throttle: Callable[[], Throttle],
        fetch_attributes: Callable[[SegmentMetadata, list[AttributeKey]], Awaitable[None]],
        request_flush: Callable[[], None],
        queue_has_room: Callable[[], bool],
        settings: OperationProcessorSettings,
    ) -> None:
        self._throttle = throttle
        self._fetch_attributes = fetch_attributes
        self._request_flush = request_flush
        self._queue_has_room = queue_has_room
        self._bytes_max = settings.waiting_bytes_max
        self._batch_requests_max = settings.admitted_requests_max
        self._batch_bytes_max = settings.admitted_bytes_max
        self._bytes = 0
        self._requests: deque[WaitingRequest] = deque()
        self._waiting_for_attributes: dict[SegmentMetadata, deque[WaitingRequest]] = {}
        self._wake = asyncio.Event()
        self.needs_cache_room = False
        """The head of the queue found no room in the cache: a request that comes now must not take it away."""

    def __len__(self) -> int:
        return len(self._requests) + sum(
            len(each) for each in self._waiting_for_attributes.values()
        )

    @property
    def has_room(self) -> bool:
        return self._bytes < self._bytes_max

    def add(self, request: WaitingRequest) -> None:
        """Queue behind what waits already."""
        request.segment.waiting_requests += 1
        self._bytes += request.length
        self._requests.append(request)
        self._wake.set()

    def wake(self) -> None:
        """Something changed that may let requests through."""
        if self._requests:
            self._wake.set()

    async def run(self) -> None:
        """Work the queue off until cancelled."""
        async with asyncio.TaskGroup() as fetches:
            while True:
                while not self._requests:
                    self._wake.clear()
                    await self._wake.wait()
                await self._wait_for_throttle()
                if not self._queue_has_room():
                    self._wake.clear()
                    await self._wait(_LOOK_AGAIN_SECONDS)
                    continue
                self.needs_cache_room = not self._admit_batch(fetches)
                if self.needs_cache_room:
                    self._request_flush()
                    self._wake.clear()
                    await self._wait(_LOOK_AGAIN_SECONDS)
                await asyncio.sleep(0)

    async def _wait_for_throttle(self) -> None:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        while True:
            delay = self._throttle().delay_seconds
            left = begin + delay - loop.time()
            if delay == 0.0 or left <= 0.0:
                return
            self._request_flush()
            self._wake.clear()
            await self._wait(0.25 if delay == STOP else left)

    async def _wait(self, seconds: float) -> None:
        """Until woken, at most this long: gauges may fall without a word."""
        await wait_for_event(self._wake, until=asyncio.get_running_loop().time() + seconds)

    def _admit_batch(self, fetches: asyncio.TaskGroup) -> bool:
        """Let the head of the queue through; False if the cache has no room for it."""
        requests = self._requests
        length = 0
        for _ in range(self._batch_requests_max):
            if not requests or length >= self._batch_bytes_max:
                break
            request = requests.popleft()
            segment = request.segment
            waiting = self._waiting_for_attributes.get(segment)
            if waiting is not None:
                waiting.append(request)
                continue
            try:
                request.attempt()
            except CacheFullError:
                requests.appendleft(request)
                return False
            except UnknownAttributesError as unknown:
                self._waiting_for_attributes[segment] = deque([request])
                request.attributes.update(dict.fromkeys(unknown.keys))
                fetches.create_task(self._fetch(segment, list(request.attributes)))
                continue
            length += request.length
            self._leave(request)
        return True

    def _leave(self, request: WaitingRequest) -> None:
        request.segment.waiting_requests -= 1
        self._bytes -= request.length

    async def _fetch(self, segment: SegmentMetadata, keys: list[AttributeKey]) -> None:
        error: SegmentStoreError | None = None
        try:
            await self._fetch_attributes(segment, keys)
        except SegmentStoreError as failure:
            error = failure
        waiting = self._waiting_for_attributes.pop(segment)
        if error is not None and waiting:
            # Only the one that needs it fails: those behind may not need the attribute at all.
            first = waiting.popleft()
            self._leave(first)
            first.fail(error)
        self._requests.extendleft(reversed(waiting))
        self._wake.set()

    def fail_all(self, error: Exception) -> None:
        """The container ends: every waiting request fails."""
        self.needs_cache_room = False
        for requests in [self._requests, *self._waiting_for_attributes.values()]:
            while requests:
                request = requests.popleft()
                self._leave(request)
                request.fail(error)
