"""Several segments read at once, their pieces in one bounded line.

Invariants:

- Each feed has one piece on its way or waiting for room; `pieces_ahead_max` more wait in line. A slow user therefore
  stops the reading, not the memory.
- After `stop` nothing of that segment comes out any more, also not what was in line already.
- A feed that fails ends the line: its error is raised by this and every later `next`.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from segmentstore.client.owned_tasks import OwnedTasks
from segmentstore.client.segment_feed import SegmentFeed


@dataclass(slots=True)
class Piece:
    """Some events of a segment, or its end."""

    feed: SegmentFeed
    events: list[tuple[bytes, int]] | None


class SegmentFeeds:
    """`start` and `stop` segments; `next` gives what arrived."""

    def __init__(self, *, pieces_ahead_max: int) -> None:
        self._line: asyncio.Queue[Piece | BaseException] = asyncio.Queue(pieces_ahead_max)
        self._feeds: dict[tuple[str, int], SegmentFeed] = {}
        self._owned: dict[tuple[str, int], OwnedTasks] = {}

    @property
    def active(self) -> Sequence[tuple[str, int]]:
        """Stream and segment id of what is being read, in the order of their start."""
        return list(self._feeds)

    def start(self, feed: SegmentFeed) -> None:
        """Begin to read."""
        key = (feed.stream, feed.segment_id)
        assert key not in self._feeds, f"segment is read already {key}"
        self._feeds[key] = feed
        tasks = self._owned[key] = OwnedTasks(self.fail)
        tasks.start(self._pump(feed), name=f"read {feed.stream}/{feed.segment_id}")

    async def stop(self, stream: str, segment_id: int) -> None:
        """Read no more of the segment."""
        key = (stream, segment_id)
        self._feeds.pop(key, None)
        tasks = self._owned.pop(key, None)
        if tasks is not None:
            await tasks.close()

    async def next(self) -> Piece:
        """The piece that arrived first; of an ended segment the last one has no events. Raises a feed's error."""
        while True:
            piece = await self._line.get()
            if isinstance(piece, BaseException):
                self.fail(piece)
                raise piece
            key = (piece.feed.stream, piece.feed.segment_id)
            if self._feeds.get(key) is piece.feed:
                return piece

    async def close(self) -> None:
        """Read nothing any more. Closing twice is fine."""
        for stream, segment_id in self.active:
            await self.stop(stream, segment_id)

    async def _pump(self, feed: SegmentFeed) -> None:
        while True:
            events = await feed.next_events()
            await self._line.put(Piece(feed, events))
            if events is None:
                return

    def fail(self, error: BaseException) -> None:
        """End the line with an error."""
        # The line may be full; the error must not wait behind what nobody will take.
        while self._line.full():
            self._line.get_nowait()
        self._line.put_nowait(error)
