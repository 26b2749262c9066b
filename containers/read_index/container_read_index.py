"""The read indexes of one container's active segments, and what they share.

They share the container's side of the process's cache, the fetches from Tier 2, and the bound on waiting readers.

Invariants (check()):
- a segment id has at most one index here; one that was removed is reachable through a merge redirect at most;
- `unflushed_bytes`, by which the container throttles, is the memory of the pinned entries of all of them, those that
  wait to be freed included, and what the container uses of its share of the cache;
- after close() the container occupies no cache memory and no reader waits.
"""

from collections.abc import Callable
from dataclasses import dataclass

from containers.cache.cache_manager import CacheManager
from containers.cache.container_cache import ContainerCache
from containers.container_settings import ReadIndexSettings
from containers.read_index.segment_read_index import ReadableSegment, SegmentReadIndex
from containers.read_index.storage_fetch import StorageFetches
from containers.read_index.tail_waiters import WaiterLimit
from segmentstore.contracts.errors import ContainerStoppedError
from segmentstore.contracts.identifiers import SegmentId
from segmentstore.contracts.storage import ReadOnlyStorage
from segmentstore.runtime.guarded_callback import raise_again


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
    """Opens and removes the read indexes of one container."""

    def __init__(
        self,
        *,
        cache: CacheManager,
        storage: ReadOnlyStorage,
        settings: ReadIndexSettings | None = None,
        fail: Callable[[Exception], None] = raise_again,
    ) -> None:
        """`fail` ends the container when a callback of the loop fails in here."""
        settings = settings or ReadIndexSettings()
        self.cache = ContainerCache(cache, discards_per_turn=settings.discards_per_turn, fail=fail)
        self._fetches = StorageFetches(storage=storage, settings=settings.fetch, fail=fail)
        self._waiter_limit = WaiterLimit(settings.waiters_max)
        self._indexes: dict[SegmentId, SegmentReadIndex] = {}
        self._stopped: ContainerStoppedError | None = None

    @property
    def unflushed_bytes(self) -> int:
        """Cache memory of this container's bytes that Tier 2 lacks."""
        return self.cache.share.unflushed_bytes

    def open(self, metadata: ReadableSegment) -> SegmentReadIndex:
        """Make the index of a segment that became active, and set `metadata.read_index`."""
        segment_id = metadata.segment_id
        assert segment_id not in self._indexes, f"segment {segment_id} has a read index already"
        index = SegmentReadIndex(
            metadata, cache=self.cache, fetches=self._fetches, waiter_limit=self._waiter_limit
        )
        self._indexes[segment_id] = index
        metadata.read_index = index
        if self._stopped is not None:
            index.end_reads(self._stopped)
        return index

    def remove(self, segment_id: SegmentId) -> None:
        """The segment is not active any more: evicted, or its deletion is published. Unknown ids are fine.

        Its bytes are freed, unless a target still reads them through a redirect: then with the redirect.
        """
        index = self._indexes.pop(segment_id, None)
        if index is None:
            return
        index.is_removed = True
        if not index.is_redirected:
            index.discard_all()
            self.cache.manager.space_freed()

    async def close(self) -> None:
        """End every reader with ContainerStoppedError and give all memory back.

        Call it when nothing writes or flushes views of this container's bytes any more: their blocks may serve
        another container at once.
        """
        self._stopped = ContainerStoppedError("container stopped")
        for index in self._indexes.values():
            index.end_reads(self._stopped)
        await self._fetches.close()
        for index in self._indexes.values():
            index.discard_all()
        self._indexes.clear()
        self.cache.close()

    def statistics(self) -> ReadIndexStatistics:
        fetches = self._fetches
        return ReadIndexStatistics(
            segments=len(self._indexes),
            unflushed_bytes=self.unflushed_bytes,
            waiters=self._waiter_limit.count,
            fetches_running=fetches.running_count,
            fetches=fetches.fetch_count,
            fetches_joined=fetches.joined_count,
            fetched_bytes=fetches.fetched_bytes,
        )

    def check(self) -> None:
        """Prove the invariants; O(entries of all segments)."""
        self.cache.manager.check()
        pinned = self.cache.discarded_pinned_bytes()
        for segment_id, index in self._indexes.items():
            assert index.metadata.segment_id == segment_id, f"{index.metadata!r} at {segment_id}"
            index.check()
            pinned += index.pinned_bytes()
        assert pinned == self.unflushed_bytes, f"{pinned} pinned, counted {self.unflushed_bytes}"
