"""A Tier 2 of plain bytes for the read index's tests: whole blocks come back, and reads can be held up.

A range that ends inside of a block comes without that block, unless less than half of the range would be left.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from random import Random

from segmentstore.contracts.errors import SegmentNotFoundError, SegmentTruncatedError
from segmentstore.contracts.identifiers import AttributeKey, AttributeValue, SegmentId
from segmentstore.contracts.storage import (
    AttributePage,
    SegmentRecord,
    StorageRead,
    StorageStatistics,
)


class MemoryTier2:
    """Published bytes by segment id. `hold()` makes reads wait until `release()`."""

    def __init__(self, *, block_bytes: int = 1000) -> None:
        self.published: dict[SegmentId, bytes] = {}
        self.start_offsets: dict[SegmentId, int] = {}
        self.reads: list[tuple[SegmentId, int, int]] = []
        self.running = 0
        self.running_most = 0
        self.error: Exception | None = None
        self.one_block_at_a_time = False
        """Answer with the block around the first byte only: all that the door promises."""
        self.delays: Random | None = None
        """Makes every read take a while, if set."""
        self.block_bytes = block_bytes
        self._held: deque[asyncio.Event] = deque()
        self._holds = False

    def hold(self) -> None:
        self._holds = True

    def release(self) -> None:
        self._holds = False
        while self._held:
            self.release_one()

    def release_one(self) -> None:
        """Only the one goes on that was held up first."""
        self._held.popleft().set()

    async def read(self, segment_id: SegmentId, offset: int, length: int) -> StorageRead:
        self.reads.append((segment_id, offset, length))
        self.running += 1
        self.running_most = max(self.running_most, self.running)
        try:
            await asyncio.sleep(self.delays.random() / 50 if self.delays else 0)
            if self._holds:
                gate = asyncio.Event()
                self._held.append(gate)
                await gate.wait()
        finally:
            self.running -= 1
        if self.error is not None:
            raise self.error
        content = self.published.get(segment_id)
        if content is None:
            raise SegmentNotFoundError(f"id {segment_id}")
        start_offset = self.start_offsets.get(segment_id, 0)
        if offset < start_offset:
            raise SegmentTruncatedError(f"id {segment_id}", start_offset=start_offset)
        if offset >= len(content):
            raise ValueError(f"offset={offset} is past {len(content)}")
        begin = max(start_offset, offset - offset % self.block_bytes)
        end = offset + (1 if self.one_block_at_a_time else length)
        border = end - end % self.block_bytes
        if end != border and (end == offset + 1 or 2 * border < offset + end):
            border += self.block_bytes
        end = border
        return StorageRead(begin, memoryview(content[begin:end]))

    async def find(self, name: str) -> SegmentRecord | None:
        raise NotImplementedError

    async def load(self, segment_ids: Sequence[SegmentId]) -> Mapping[SegmentId, SegmentRecord]:
        raise NotImplementedError

    async def load_attributes(
        self, segment_id: SegmentId, keys: Sequence[AttributeKey] | None
    ) -> Mapping[AttributeKey, AttributeValue]:
        raise NotImplementedError

    async def scan_attributes(
        self, segment_id: SegmentId, *, start: AttributeKey, end: AttributeKey, count: int
    ) -> AttributePage:
        raise NotImplementedError

    def list_segments(self, prefix: str, start_after: str) -> AsyncGenerator[SegmentRecord, None]:
        raise NotImplementedError

    def statistics(self) -> StorageStatistics:
        raise NotImplementedError
