"""The tail of a segment: who waits there for more, and what they are told when nothing will come.

Invariants:
- whoever waits is woken by the next append that commits, by the seal, and by the segment's end (H58);
- after gone() every read ends with the error it was given, the first one if there were several;
- the metadata's `has_tail_waiters` is true exactly while a waiter may be there, so that a commit need not look here.
"""

import asyncio
from asyncio import Future
from typing import TYPE_CHECKING

from containers.metadata.segment_metadata import SegmentMetadata
from containers.reading.segment_staging import SegmentStaging
from containers.reading.tail_waiters import TailWaiters
from segmentstore.contracts.errors import SegmentTruncatedError

if TYPE_CHECKING:
    from containers.reading.container_read_index import ContainerReadIndex


class SegmentTail(SegmentStaging):
    """The end of a segment's read index at which readers wait."""

    __slots__ = ("_gone", "_waiters")

    def __init__(self, metadata: SegmentMetadata, container: "ContainerReadIndex") -> None:
        super().__init__(metadata, container)
        self._waiters: TailWaiters | None = None
        self._gone: Exception | None = None

    @property
    def has_waiters(self) -> bool:
        """Whether appended() would find anyone to wake."""
        return self.metadata.has_tail_waiters

    def appended(self) -> None:
        """The metadata's length grew: wake the readers at the tail."""
        if self.has_waiters:
            self._wake()

    def sealed(self) -> None:
        """The metadata says sealed: nothing will ever follow, which readers at the tail must learn."""
        self._wake()

    def gone(self, error: Exception) -> None:
        """Deleted, merged away, or the container stopped: every read ends with this error from now on."""
        if self._gone is None:
            self._gone = error
        self._wake()

    def _wake(self) -> None:
        if self._waiters is not None:
            self.metadata.has_tail_waiters = False
            self._waiters.wake()

    def readable(self, offset: int) -> "Future[None]":
        """Done when `offset` < length, or the segment is sealed or gone: look again then (H58).

        A wake-up may come early for an offset past the length. Raises TooManyWaitersError.
        """
        metadata = self.metadata
        if offset < metadata.length or metadata.sealed or self._gone is not None:
            future: Future[None] = asyncio.get_running_loop().create_future()
            future.set_result(None)
            return future
        return self.next_change()

    def next_change(self) -> "Future[None]":
        """Done after the next appended(), sealed() or gone(). The caller looked at the state in the same stretch.

        Cancel it to leave. Raises TooManyWaitersError at the container's limit.
        """
        self._container.add_waiter()
        if self._waiters is None:
            self._waiters = TailWaiters()
        future = self._waiters.add()
        future.add_done_callback(self._waiter_left)
        self.metadata.has_tail_waiters = True
        return future

    def _waiter_left(self, future: "Future[None]") -> None:
        self._container.remove_waiter()
        if self._waiters is not None:
            self._waiters.discard(future)
            self.metadata.has_tail_waiters = len(self._waiters) > 0

    def raise_if_gone(self) -> None:
        """Raises what gone() was told."""
        if self._gone is not None:
            # One error object serves many readers: without this its traceback would grow with each.
            raise self._gone.with_traceback(None)

    def raise_if_unreadable(self, offset: int) -> None:
        """Raises what gone() was told, or SegmentTruncatedError for an offset below the start offset."""
        self.raise_if_gone()
        metadata = self.metadata
        if offset < metadata.start_offset:
            raise SegmentTruncatedError(metadata.name, start_offset=metadata.start_offset)
