"""Segments that stay resolved between two appends.

Opening a segment resolves its name, activates it and pins it, which costs more than the append itself. A hot
stream therefore keeps its open segment here, least recently used last out.

- At most `count_max` idle pins are kept; a pin idle for `idle_seconds` is released, so nothing stays pinned for ever.
- A pin that was forgotten (its segment was deleted, or its container stopped) is never handed out again.
- A pin is released only when nobody uses it.
"""

from collections import OrderedDict, deque
from contextlib import AbstractAsyncContextManager

from segmentstore.contracts.segments import Segment, SegmentApi
from segmentstore.http.stream_attributes import StreamConfiguration, configuration_of


class Pin:
    """One open segment, with what a stream's appends need to know of it."""

    __slots__ = (
        "configuration",
        "content_type_accepted",
        "forgotten",
        "last_used",
        "opened",
        "segment",
        "takes_plain_bytes",
        "users",
    )

    def __init__(self, segment: Segment, opened: AbstractAsyncContextManager[Segment]) -> None:
        self.segment = segment
        self.opened = opened
        self.configuration: StreamConfiguration = configuration_of(segment.info().core_attributes)
        self.takes_plain_bytes = not (self.configuration.may_expire or self.configuration.is_json)
        """Whether a body of the right type is stored as it comes, and nothing else happens."""
        self.content_type_accepted = self.configuration.content_type
        """The last Content-Type header that matched: clients repeat themselves."""
        self.users = 0
        self.last_used = 0.0
        self.forgotten = False


class SegmentPins:
    """A bounded cache of open segments. Use: pin = lease_nowait(name) or await lease(name); ...; release(pin)."""

    def __init__(self, *, segments: SegmentApi, count_max: int, idle_seconds: float) -> None:
        self._segments = segments
        self._count_max = count_max
        self._idle_seconds = idle_seconds
        self._pins: OrderedDict[str, Pin] = OrderedDict()
        self._retired: deque[Pin] = deque()

    def __len__(self) -> int:
        return len(self._pins)

    def lease_nowait(self, name: str) -> Pin | None:
        """The kept pin of that name, None if there is none."""
        pin = self._pins.get(name)
        if pin is not None:
            pin.users += 1
            self._pins.move_to_end(name)
        return pin

    async def lease(self, name: str) -> Pin:
        """Raises what open_segment raises."""
        await self._close_retired()
        opened = self._segments.open_segment(name)
        segment = await opened.__aenter__()
        pin = Pin(segment, opened)
        pin.users = 1
        if name in self._pins:
            # Somebody else opened it meanwhile; one of the two serves the next request.
            pin.forgotten = True
            return pin
        self._pins[name] = pin
        while len(self._pins) > self._count_max:
            self._retire(next(iter(self._pins)))
        return pin

    def release(self, pin: Pin, now: float) -> None:
        """The other end of a lease; `now` is the loop's time."""
        assert pin.users > 0, f"released more often than leased name={pin.segment.name!r}"
        pin.users -= 1
        pin.last_used = now
        if pin.forgotten and pin.users == 0:
            self._retired.append(pin)

    async def forget(self, name: str, pin: Pin | None = None) -> None:
        """Hand it out no more: for a pin that met the end of its segment, or before a delete."""
        if name in self._pins and pin in (None, self._pins[name]):
            self._retire(name)
        await self._close_retired()

    async def release_idle(self, now: float) -> None:
        """Called by the tick."""
        while self._pins:
            name, pin = next(iter(self._pins.items()))
            if pin.users or now - pin.last_used < self._idle_seconds:
                break
            self._retire(name)
        await self._close_retired()

    async def close(self) -> None:
        """Release every pin that nobody uses, and forget the rest."""
        while self._pins:
            self._retire(next(iter(self._pins)))
        await self._close_retired()

    def check(self) -> None:
        """Prove the bounds and that no forgotten pin is handed out. O(n)."""
        assert len(self._pins) <= self._count_max, f"pins={len(self._pins)} max={self._count_max}"
        for name, pin in self._pins.items():
            assert not pin.forgotten, f"a forgotten pin is still handed out name={name!r}"
        for pin in self._retired:
            assert pin.users == 0, f"retired in use name={pin.segment.name!r} users={pin.users}"

    def _retire(self, name: str) -> None:
        pin = self._pins.pop(name)
        pin.forgotten = True
        if pin.users == 0:
            self._retired.append(pin)

    async def _close_retired(self) -> None:
        while self._retired:
            await self._retired.popleft().opened.__aexit__(None, None, None)
