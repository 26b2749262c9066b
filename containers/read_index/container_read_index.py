"""The read indexes of one container's active segments, and what they share.

They share the process's cache (through its manager), the fetches from Tier 2, the bound on waiting readers and the
gauge of un-flushed bytes that the container throttles by.

Invariants (check()):
- a segment id has at most one index here; one that was removed is reachable through a merge redirect at most;
- `unflushed_bytes` is the memory of the pinned entries of all of them, those that wait to be freed included, and
  what the container uses of its share of the cache;
- after close() the container occupies no cache memory and nobody waits.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from containers.cache.cache_entry import PINNED, CacheEntry
from containers.cache.cache_manager import CacheManager
from containers.cache.cache_storage import BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, CacheBlock
from containers.container_settings import ReadIndexSettings
from containers.metadata.segment_metadata import SegmentMetadata
from containers.read_index.segment_read_index import SegmentReadIndex
from containers.read_index.storage_fetch import StorageFetches
from segmentstore.contracts.errors import CacheFullError, ContainerStoppedError, TooManyWaitersError
from segmentstore.contracts.identifiers import SegmentId
from segmentstore.contracts.storage import ReadOnlyStorage


@dataclass(frozen=True, slots=True)
class ReadIndexStatistics:
    """A snapshot of one container."""

    segments: int
    unflushed_bytes: int
    """Cache memory, not data bytes."""
    waiters: int
    fetches_running: int
    fetches: int
    fetches_joined: int
    fetched_bytes: int


class ContainerReadIndex:
    """Opens, finds and removes the read indexes of one container."""

    def __init__(
        self,
        *,
        cache: CacheManager,
        storage: ReadOnlyStorage,
        settings: ReadIndexSettings | None = None,
    ) -> None:
        self.cache = cache
        self._settings = settings or ReadIndexSettings()
        self.fetches = StorageFetches(storage=storage, settings=self._settings.fetch)
        self.share = cache.shares.open()
        """Until close()."""
        self.no_entry = CacheEntry.empty()
        """Stands where an index has no open entry."""
        self._indexes: dict[SegmentId, SegmentReadIndex] = {}
        self._discarded: deque[CacheEntry] = deque()
        self._discard_is_scheduled = False
        self._waiter_count = 0
        self._stopped: ContainerStoppedError | None = None

    @property
    def unflushed_bytes(self) -> int:
        """Cache memory of this container's bytes that Tier 2 lacks."""
        return self.share.unflushed_bytes

    def open(self, metadata: SegmentMetadata) -> SegmentReadIndex:
        """Make the index of a segment that became active, and set `metadata.read_index`."""
        segment_id = metadata.segment_id
        assert segment_id not in self._indexes, f"segment {segment_id} has a read index already"
        index = SegmentReadIndex(metadata, self)
        self._indexes[segment_id] = index
        metadata.read_index = index
        if self._stopped is not None:
            index.gone(self._stopped)
        return index

    def get(self, segment_id: SegmentId) -> SegmentReadIndex | None:
        """The index of an active segment."""
        return self._indexes.get(segment_id)

    def is_open(self, index: SegmentReadIndex) -> bool:
        """Whether this very index serves an active segment."""
        return self._indexes.get(index.metadata.segment_id) is index

    def remove(self, segment_id: SegmentId) -> None:
        """The segment is not active any more: evicted, or its deletion is published. Unknown ids are fine.

        Its bytes are freed, unless a target still reads them through a redirect: then with the redirect.
        """
        index = self._indexes.pop(segment_id, None)
        if index is not None and not index.is_redirected:
            index.discard_all()
            self.cache.room_made()

    async def close(self) -> None:
        """End every reader with ContainerStoppedError and give all memory back.

        Call it when nothing writes or flushes views of this container's bytes any more: their blocks may serve
        another container at once.
        """
        self._stopped = ContainerStoppedError("container stopped")
        for index in self._indexes.values():
            index.gone(self._stopped)
        await self.fetches.close()
        for index in self._indexes.values():
            index.discard_all()
        self._indexes.clear()
        self._release_discarded(len(self._discarded))
        self.cache.shares.close(self.share)
        self.cache.room_made()

    def statistics(self) -> ReadIndexStatistics:
        return ReadIndexStatistics(
            segments=len(self._indexes),
            unflushed_bytes=self.unflushed_bytes,
            waiters=self._waiter_count,
            fetches_running=self.fetches.running_count,
            fetches=self.fetches.fetch_count,
            fetches_joined=self.fetches.joined_count,
            fetched_bytes=self.fetches.fetched_bytes,
        )

    # --- for the indexes ----------------------------------------------------------------------

    def add_waiter(self) -> None:
        """Take a place among the waiting readers. Raises TooManyWaitersError."""
        if self._waiter_count >= self._settings.waiters_max:
            raise TooManyWaitersError(f"too many readers wait waiters={self._waiter_count}")
        self._waiter_count += 1

    def remove_waiter(self) -> None:
        """Give the place back."""
        self._waiter_count -= 1

    def allocate_run(self, size: int, run_bytes: int, *, recovering: bool) -> list[CacheBlock]:
        """Blocks for `size` more bytes behind a run of `run_bytes`; all of them, or CacheFullError.

        When memory is short or split up there are more and smaller ones than planned.
        """
        blocks: list[CacheBlock] = []
        try:
            while size > 0:
                # All blocks before it are full, and neither what holds the new bytes nor what doubles the run makes
                # its memory more than twice its bytes (H55).
                block_bytes = 1 << (size - 1).bit_length()
                if run_bytes > block_bytes:
                    block_bytes = 1 << run_bytes.bit_length() >> 1
                if block_bytes < BLOCK_BYTES_MIN:
                    block_bytes = BLOCK_BYTES_MIN
                elif block_bytes > BLOCK_BYTES_MAX:
                    block_bytes = BLOCK_BYTES_MAX
                block = self.cache.allocate_unflushed(
                    block_bytes, share=self.share, recovering=recovering
                )
                blocks.append(block)
                run_bytes += block.size_bytes
                size -= block.size_bytes
        except CacheFullError:
            for block in blocks:
                self.cache.return_unflushed(block, share=self.share)
            raise
        return blocks

    def has_room(self, size_bytes: int) -> bool:
        """Whether blocks of so many bytes for un-flushed bytes would be had, whatever their sizes."""
        return self.share.room_bytes() >= size_bytes

    def allocate_fetched(self, size: int) -> CacheBlock | None:
        """A block for the first of `size` bytes from Tier 2, at least three quarters used if more than 4 KiB."""
        size = min(size, BLOCK_BYTES_MAX)
        block_bytes = max(BLOCK_BYTES_MIN, 1 << (size - 1).bit_length())
        if block_bytes > BLOCK_BYTES_MIN and 4 * size < 3 * block_bytes:
            block_bytes //= 2
        return self.cache.allocate_fetched(block_bytes)

    def unpin(self, entry: CacheEntry) -> None:
        """All bytes of the entry are in Tier 2 now."""
        self.cache.make_evictable(entry, share=self.share)

    def discard(self, entries: Sequence[CacheEntry]) -> None:
        """Free the blocks of entries that no index finds any more, over several turns if they are many."""
        for entry in entries:
            entry.owner = None
        self._discarded.extend(entries)
        if not self._discard_is_scheduled:
            self._release_discarded(self._settings.discards_per_turn)

    def _release_discarded(self, count_max: int) -> None:
        self._discard_is_scheduled = False
        for _ in range(min(count_max, len(self._discarded))):
            self.cache.release(self._discarded.popleft(), share=self.share)
        if self._discarded:
            self._discard_is_scheduled = True
            asyncio.get_running_loop().call_soon(self._continue_discarding)

    def _continue_discarding(self) -> None:
        if self._discarded:
            self._release_discarded(self._settings.discards_per_turn)
            self.cache.room_made()

    def check(self) -> None:
        """Prove the invariants; O(entries of all segments)."""
        self.cache.check()
        pinned = sum(
            entry.block.size_bytes
            for entry in self._discarded
            if entry.block is not None and entry.generation == PINNED
        )
        for segment_id, index in self._indexes.items():
            assert index.metadata.segment_id == segment_id, f"{index.metadata!r} at {segment_id}"
            index.check()
            pinned += index.pinned_bytes()
        assert pinned == self.unflushed_bytes, f"{pinned} pinned, counted {self.unflushed_bytes}"
