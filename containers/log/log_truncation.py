"""Which log address may go when which checkpoint is behind us.

A frame's marker is the last operation started in it or before. The log may be truncated to the last frame whose
marker lies before a checkpoint: everything the checkpoint's record touches stays. A checkpoint is a valid truncation
point once its last frame is durable. `TruncationMarkers` knows both; `LogTruncation` truncates by them, when the
storage writer says what is in Tier 2 (writer_source.py).

Invariants (check()): markers and addresses grow; valid truncation points grow.
"""

import asyncio
from asyncio import Future
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable

from containers.log.checkpoints import CheckpointPolicy
from segmentstore.contracts.durable_data_log import DurableDataLog
from segmentstore.contracts.identifiers import LogAddress, SequenceNumber


class TruncationMarkers:
    """Frames by marker, and the checkpoints among the operations."""

    def __init__(self) -> None:
        self._frames: deque[tuple[SequenceNumber, LogAddress]] = deque()
        self._points: list[SequenceNumber] = []

    def add_frame(self, marker: SequenceNumber, address: LogAddress) -> None:
        """Note a durable frame."""
        if self._frames:
            assert marker >= self._frames[-1][0], f"marker {marker} behind {self._frames[-1]}"
            assert address > self._frames[-1][1], f"address {address} behind {self._frames[-1]}"
        self._frames.append((marker, address))

    def add_truncation_point(self, checkpoint: SequenceNumber) -> None:
        """Note a durable metadata checkpoint."""
        assert not self._points or checkpoint > self._points[-1], f"{checkpoint} in {self._points}"
        self._points.append(checkpoint)

    def closest_valid_truncation_point(self, number: SequenceNumber) -> SequenceNumber | None:
        """The newest checkpoint at or before `number`."""
        place = bisect_right(self._points, number)
        return self._points[place - 1] if place else None

    def address_before(self, checkpoint: SequenceNumber) -> LogAddress | None:
        """The last frame that the checkpoint does not need; None if there is none. Amortised O(1)."""
        address: LogAddress | None = None
        for marker, candidate in self._frames:
            if marker >= checkpoint:
                break
            address = candidate
        return address

    def truncated(self, address: LogAddress, checkpoint: SequenceNumber) -> None:
        """Forget frames up to the address and checkpoints before this one."""
        while self._frames and self._frames[0][1] <= address:
            self._frames.popleft()
        self._points = self._points[bisect_left(self._points, checkpoint) :]


class LogTruncation:
    """Truncates the log behind what the storage writer has acknowledged."""

    def __init__(
        self,
        *,
        markers: TruncationMarkers,
        checkpoints: CheckpointPolicy,
        log: DurableDataLog,
        storage_checkpoint: Callable[[], "Future[int]"],
    ) -> None:
        """`storage_checkpoint` writes what Tier 2 has of each segment: the log says so before it forgets."""
        self._markers = markers
        self._checkpoints = checkpoints
        self._log = log
        self._storage_checkpoint = storage_checkpoint
        self._begins_at = SequenceNumber(0)
        """The checkpoint that the log begins with, of those that truncate() was led to."""
        self._was_led_on = asyncio.Event()

    async def wait_until_it_begins_at(self, checkpoint: SequenceNumber) -> None:
        """Returns when nothing before that checkpoint, or a later one, would be replayed."""
        while self._begins_at < checkpoint:
            self._was_led_on.clear()
            await self._was_led_on.wait()

    async def truncate(self, acknowledged: SequenceNumber) -> None:
        """To the last frame that no checkpoint needs which may begin the log, if there is one."""
        # A checkpoint right behind the last acknowledged operation needs nothing before it.
        checkpoint = self._markers.closest_valid_truncation_point(SequenceNumber(acknowledged + 1))
        if checkpoint is None:
            return
        address = self._markers.address_before(checkpoint)
        if address is not None:
            self._checkpoints.ignore_operation()
            await self._storage_checkpoint()
            await self._log.truncate(address)
            self._markers.truncated(address, checkpoint)
        self._begins_at = checkpoint
        self._was_led_on.set()
