"""One container's side of the cache: its share, the blocks it asks for, and those that it gives back.

What the read indexes of a container's segments have in common. The cache itself is the process's.

Invariants:
- a run of n un-flushed bytes gets at most max(2n, 4 KiB) of memory, and all of its blocks or none;
- an entry that was discarded is found by no index; while it waits for its turn to be released its memory still counts,
  as un-flushed if it is pinned;
- after close() the container occupies no cache memory and has no share.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from containers.cache.cache_entry import PINNED, CacheEntry
from containers.cache.cache_manager import CacheManager
from containers.cache.cache_storage import BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, CacheBlock
from segmentstore.contracts.errors import CacheFullError
from segmentstore.runtime.guarded_callback import guarded, raise_again


class ContainerCache:
    """Allocates for the read indexes of one container, and releases behind them."""

    __slots__ = (
        "_discard_is_scheduled",
        "_discarded",
        "_discards_per_turn",
        "_run_turn",
        "manager",
        "no_entry",
        "share",
    )

    def __init__(
        self,
        manager: CacheManager,
        *,
        discards_per_turn: int,
        fail: Callable[[Exception], None] = raise_again,
    ) -> None:
        """`fail` ends the container when a turn of the loop that frees memory fails."""
        self.manager = manager
        self.share = manager.shares.open()
        """Until close()."""
        self.no_entry = CacheEntry.empty()
        """Stands where an index has no open entry."""
        self._discards_per_turn = discards_per_turn
        self._discarded: deque[CacheEntry] = deque()
        self._discard_is_scheduled = False
        self._run_turn = guarded(self._continue_discarding, fail)

    # --- blocks -------------------------------------------------------------------------------

    def allocate_run(self, size: int, run_bytes: int, *, recovering: bool) -> list[CacheBlock]:
        """Blocks for `size` more bytes behind a run of `run_bytes`; all of them, or CacheFullError.

        When memory is short or split up there are more and smaller ones than planned.
        """
        blocks: list[CacheBlock] = []
        try:
            while size > 0:
                # All blocks before it are full, and neither what holds the new bytes nor what doubles the run makes
                # its memory more than twice its bytes.
                block_bytes = 1 << (size - 1).bit_length()
                if run_bytes > block_bytes:
                    block_bytes = 1 << run_bytes.bit_length() >> 1
                if block_bytes < BLOCK_BYTES_MIN:
                    block_bytes = BLOCK_BYTES_MIN
                elif block_bytes > BLOCK_BYTES_MAX:
                    block_bytes = BLOCK_BYTES_MAX
                block = self.manager.allocate_unflushed(
                    block_bytes, share=self.share, recovering=recovering
                )
                blocks.append(block)
                run_bytes += block.size_bytes
                size -= block.size_bytes
        except CacheFullError:
            for block in blocks:
                self.manager.return_unflushed(block, share=self.share)
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
        return self.manager.allocate_fetched(block_bytes)

    # --- entries ------------------------------------------------------------------------------

    def unpin(self, entry: CacheEntry) -> None:
        """All bytes of the entry are in Tier 2 now."""
        self.manager.make_evictable(entry, share=self.share)

    def discard(self, entries: Sequence[CacheEntry]) -> None:
        """Free the blocks of entries that no index finds any more, over several turns if they are many."""
        for entry in entries:
            entry.owner = None
        self._discarded.extend(entries)
        if not self._discard_is_scheduled:
            self._release_discarded(self._discards_per_turn)

    def _release_discarded(self, count_max: int) -> None:
        self._discard_is_scheduled = False
        for _ in range(min(count_max, len(self._discarded))):
            self.manager.release(self._discarded.popleft(), share=self.share)
        if self._discarded:
            self._discard_is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run_turn)

    def _continue_discarding(self) -> None:
        if self._discarded:
            self._release_discarded(self._discards_per_turn)
            self.manager.space_freed()

    def close(self) -> None:
        """Give everything back. Every entry has been discarded."""
        self._release_discarded(len(self._discarded))
        self.manager.shares.close(self.share)
        self.manager.space_freed()

    def discarded_pinned_bytes(self) -> int:
        """Un-flushed memory that waits to be released; O(discarded entries), for check()."""
        return sum(
            entry.block.size_bytes
            for entry in self._discarded
            if entry.block is not None and entry.generation == PINNED
        )
