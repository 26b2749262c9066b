"""Reading with a reader of the wheel: slices, waited for with patience.

A thread of the wheel that completes an awaited call holds the interpreter for a moment longer. Meanwhile a call of the
wheel that blocks (reader_offline, release_segment, flush) never lets go of the interpreter, and may wait for what that
thread has to do next: both stand still until a request of the wheel times out after 30 s. So nothing is called before
the thread has left.
"""

import asyncio
import sys
import threading
import time
from typing import Protocol

PATIENCE_SECONDS = 180.0
"""No promise, only an end."""


class Event(Protocol):
    """One event of a slice."""

    def data(self) -> bytes: ...


class Slice(Protocol):
    """Events of one segment that came together."""

    def __iter__(self) -> "Slice": ...
    def __next__(self) -> Event: ...


class Reader(Protocol):
    """What `StreamReaderGroup.create_reader` gives."""

    async def get_segment_slice_async(self) -> Slice: ...
    def release_segment(self, taken: Slice) -> None: ...
    def reader_offline(self) -> None: ...


async def next_slice(reader: Reader, seconds: float) -> Slice:
    """Raises TimeoutError if none came in time. The wheel may be called as soon as it is there."""
    taken = await asyncio.wait_for(reader.get_segment_slice_async(), seconds)
    this_thread = threading.get_ident()
    while any(thread != this_thread for thread in sys._current_frames()):
        await asyncio.sleep(0.001)
    return taken


async def next_events(reader: Reader, seconds: float) -> list[bytes] | None:
    """The events of the next slice; None if none came in time."""
    try:
        taken = await next_slice(reader, seconds)
    except TimeoutError:
        return None
    events = [bytes(event.data()) for event in taken]
    reader.release_segment(taken)
    return events


async def take(reader: Reader, count: int) -> list[bytes]:
    """`count` events; the reader stays online."""
    events: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(events) < count:
        assert time.monotonic() < deadline, f"read only {len(events)} of {count} events"
        events += await next_events(reader, 5) or []
    return events


async def take_all(reader: Reader, count: int) -> list[bytes]:
    """`count` events, and none more in the slices that they came in; the reader goes offline."""
    events = await take(reader, count)
    reader.reader_offline()
    assert len(events) == count, f"events too many: {events[count:][:5]}"
    return events
