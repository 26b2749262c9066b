"""When a stream is over: `Stream-Expires-At` by the wall clock, `Stream-TTL` by the last access.

- The last access is volatile, in the loop's time: reads must not write. A stream that this process has not seen before
  counts as accessed now, so a restart (or a full table) lets streams live longer, never shorter.
- Nothing is over while the clocks are not trusted (H77).
"""

import asyncio
from collections import OrderedDict

from segmentstore.contracts.segments import SegmentProperties
from segmentstore.http.stream_attributes import StreamConfiguration
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.clock_watch import ClockWatch


class StreamExpiry:
    """Remembers last accesses and judges ages."""

    def __init__(self, *, clock_watch: ClockWatch, wall_clock: WallClock, streams_max: int) -> None:
        self._clock_watch = clock_watch
        self._wall_clock = wall_clock
        self._streams_max = streams_max
        self._accessed: OrderedDict[tuple[int, int], float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._accessed)

    def touch(self, properties: SegmentProperties, configuration: StreamConfiguration) -> None:
        """The stream was read or written now."""
        if configuration.time_to_live_seconds is not None:
            self._remember((properties.container_id, properties.segment_id))

    def is_over(self, properties: SegmentProperties, configuration: StreamConfiguration) -> bool:
        """Whether the stream counts as absent. Asking is no access, except the very first time."""
        if not configuration.may_expire or not self._clock_watch.trusted():
            return False
        expires_at_ms = configuration.expires_at_ms
        if expires_at_ms is not None and self._wall_clock.now_ms() >= expires_at_ms:
            return True
        time_to_live = configuration.time_to_live_seconds
        if time_to_live is None:
            return False
        key = (properties.container_id, properties.segment_id)
        if key not in self._accessed:
            self._remember(key)
        return asyncio.get_running_loop().time() - self._accessed[key] >= time_to_live

    def forget(self, properties: SegmentProperties) -> None:
        """The stream is gone."""
        self._accessed.pop((properties.container_id, properties.segment_id), None)

    def _remember(self, key: tuple[int, int]) -> None:
        self._accessed[key] = asyncio.get_running_loop().time()
        self._accessed.move_to_end(key)
        if len(self._accessed) > self._streams_max:
            self._accessed.popitem(last=False)
