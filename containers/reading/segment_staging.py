"""Where a segment's bytes come in: the block left open by the last append, and the blocks behind it.

Bytes are copied once, when an append is accepted, straight to their place in the cache; the ordered entries are
touched once per block.

Invariants:
- only the last entry is open for growth, and only while its end is the end of all that is staged (H54);
- bytes written in a block never change while its entry lives (H54);
- a run of n un-flushed bytes occupies at most max(2n, 4 KiB): the first block is small, later ones grow with it (H55);
- staging is all or nothing: what may be refused is asked for before anything is written (H22).
"""

from typing import TYPE_CHECKING

from containers.cache.cache_entry import NO_ROOM, CacheEntry
from containers.cache.cache_storage import CacheBlock
from containers.metadata.segment_metadata import SegmentMetadata
from containers.reading.segment_entries import SegmentEntries
from segmentstore.contracts.errors import DataCorruptionError
from segmentstore.contracts.identifiers import BufferView

if TYPE_CHECKING:
    from containers.reading.container_read_index import ContainerReadIndex


class SegmentStaging:
    """The incoming end of a segment's read index."""

    __slots__ = (
        "_container",
        "_entries",
        "_run_start",
        "_staged_end",
        "metadata",
    )

    def __init__(self, metadata: SegmentMetadata, container: "ContainerReadIndex") -> None:
        self.metadata = metadata
        self._container = container
        self._entries: SegmentEntries | None = None
        """None while there are none: most active segments have nothing cached."""
        self._run_start = 0
        """Where the run of un-flushed bytes began that decides how large the next block may be."""
        self._staged_end = 0
        """End of what is staged, while no block is open."""
        metadata.open_entry = container.no_entry

    @property
    def staged_end(self) -> int:
        """End of the last staged byte, or of the last merge."""
        entry = self.metadata.open_entry
        return self._staged_end if entry.limit == NO_ROOM else entry.end

    def stage(self, data: BufferView) -> int:
        """Copy bytes to the pending end of the segment; gives their end, to which the caller moves `pending_length`.

        Readable once the metadata's length has passed them. Raises CacheFullError, having changed nothing.
        """
        begin = self.metadata.pending_length
        end = self.metadata.open_entry.add(begin, data)
        if end == NO_ROOM:
            end = begin + len(data)
            self._stage_in_blocks(begin, data, recovering=False)
        return end

    def insert_recovered(self, offset: int, data: BufferView) -> None:
        """Put replayed bytes back at their offset; what Tier 2 has already is left out (H38).

        Raises CacheFullError with no effect, DataCorruptionError if the bytes overlap those before them.
        """
        if self.metadata.open_entry.add(offset, data) != NO_ROOM:
            return
        skipped = self.metadata.storage_length - offset
        if skipped >= len(data):
            return
        if skipped > 0:
            offset += skipped
            data = memoryview(data)[skipped:]
        if offset < self.staged_end:
            raise DataCorruptionError(
                f"replayed bytes overlap segment={self.metadata.segment_id} offset={offset}"
                f" staged_end={self.staged_end}"
            )
        self._stage_in_blocks(offset, data, recovering=True)

    def _stage_in_blocks(self, offset: int, data: BufferView, *, recovering: bool) -> None:
        size = len(data)
        if not size:
            return
        entry = self.metadata.open_entry
        staged_end = self._staged_end if entry.limit == NO_ROOM else entry.end
        assert offset >= staged_end, f"{offset} is staged already, up to {staged_end}"
        in_open_block = 0
        run_bytes = 0
        if offset == staged_end:
            run_bytes = offset - max(self._run_start, self.metadata.storage_length)
            room = entry.limit - staged_end
            if room > 0:
                in_open_block = min(size, room)
        blocks = self._container.allocate_run(
            size - in_open_block, run_bytes + in_open_block, recovering=recovering
        )
        # Nothing below may be refused: the bytes are staged whole or not at all.
        if not in_open_block and len(blocks) == 1:
            if offset != staged_end:
                self._run_start = offset
            self._open_block(blocks[0], offset, data)
            return
        view = memoryview(data)
        if in_open_block:
            entry.add(offset, view[:in_open_block])
            if in_open_block == size:
                return  # replay comes here for every append: the block stays open for the next one
        if offset != staged_end:
            self._run_start = offset
        written = in_open_block
        for block in blocks:
            piece = view[written : written + block.size_bytes]
            self._open_block(block, offset + written, piece)
            written += len(piece)

    def _open_block(self, block: CacheBlock, offset: int, first_bytes: BufferView) -> None:
        """In the place of the block that was open before."""
        if self._entries is None:
            self._entries = SegmentEntries()
        self._staged_end = self.staged_end
        entry = CacheEntry(self, offset, block)
        entry.add(offset, first_bytes)
        self.metadata.open_entry = entry
        self._entries.add_last(entry)

    def _close_open_block(self) -> None:
        """The last entry grows no more; the next bytes go to a block of their own."""
        self._staged_end = self.staged_end
        self.metadata.open_entry = self._container.no_entry

    def _close_run(self) -> None:
        """Begin small again with the next bytes."""
        self._close_open_block()
        self._run_start = self._staged_end

    def evicted(self, entry: CacheEntry) -> None:
        """The cache takes the entry's block back; its bytes are read from Tier 2 from now on."""
        assert self._entries is not None, f"{entry!r} is evicted from an empty index"
        assert entry.end <= self.metadata.storage_length, (
            f"{entry!r} is evicted above the storage length of {self.metadata!r}"
        )
        self._entries.take_out(entry)
        self._forget_empty_entries()

    def _forget_empty_entries(self) -> None:
        if self._entries is not None and not len(self._entries):
            self._entries = None
