"""Which log address may go when which checkpoint is behind us.

A frame's marker is the last operation started in it or before (H30). The log may be truncated to the last frame whose
marker lies before a checkpoint: everything the checkpoint's record touches stays. A checkpoint is a valid truncation
point once its last frame is durable (H28).

Invariants (check()): markers and addresses grow; valid truncation points grow.
"""

from bisect import bisect_left, bisect_right
from collections import deque

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

    def __len__(self) -> int:
        return len(self._frames)
