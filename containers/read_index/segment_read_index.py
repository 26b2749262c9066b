"""The read index of one active segment: where each of its bytes is, how bytes come in, and how readers get them.

A byte is in a cache block, or behind a merge redirect, which leads to the index of the merged source. What is neither
cached nor redirected and lies below the storage length is in Tier 2.

In: when an append is accepted its bytes are copied once, straight to their place in the cache, into the block left
open by the append before and new blocks behind it. They become readable when the metadata's `length` passes them. The
ordered entries are touched once per block.

Out: a read goes step by step, and what is not in the cache is waited for: bytes from Tier 2, or from an append that has
not happened yet. Each step, and each look after a wait, sees the segment as it is then, not as it was when the read
began: it may be truncated, sealed, merged or deleted meanwhile. Tier 2 is asked for a byte behind a merge
redirect under the source's id; when it does not know the source any more, the merge was published a moment ago and the
bytes are under the target's id.

Invariants (check() proves the first four):
- entries and redirects do not overlap, and cover [storage length, length) and whatever is staged behind it, except
  for the stretches of merges that are not yet committed;
- every entry that ends above the storage length is pinned: not evicted, not freed, not rewritten;
- only the last entry is open for growth, and only while its end is the end of all that is staged;
- the metadata's `has_tail_waiters` is true exactly while a waiter may be there, so that a commit need not look here;
- bytes written in a block never change while its entry lives;
- a run of n un-flushed bytes occupies at most max(2n, 4 KiB): the first block is small, later ones grow with it;
- staging is all or nothing: what may be refused is asked for before anything is written;
- a reader that waits at the tail is woken by the next append that commits, by the seal, and by the segment's end;
- after end_reads() every read ends with the error it was given, the first one if there were several.
"""

import asyncio
from asyncio import Future
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Protocol

from containers.cache.cache_entry import NO_ROOM, PINNED, CacheEntry
from containers.cache.cache_storage import BLOCK_BYTES_MIN, CacheBlock
from containers.cache.container_cache import ContainerCache
from containers.read_index.read_result_entry import (
    CachedEntry,
    EndOfSegmentEntry,
    TruncatedEntry,
    WaitingEntry,
)
from containers.read_index.segment_entries import SegmentEntries
from containers.read_index.storage_fetch import ReadAheadMark, StorageFetches
from containers.read_index.tail_waiters import TailWaiters, WaiterLimit
from segmentstore.contracts.errors import (
    BadOffsetError,
    CorruptedDataError,
    DataCorruptionError,
    SegmentNotFoundError,
    SegmentStoreError,
    SegmentTruncatedError,
    ServiceHaltError,
)
from segmentstore.contracts.identifiers import BufferView, SegmentId
from segmentstore.contracts.segments import ReadResultEntry, ReadResultEntryKind

PIECE_BYTES_MAX = 1024 * 1024
"""One entry has at most this many bytes: a copy of about 50 us."""

_WITH_BYTES = (ReadResultEntryKind.CACHE, ReadResultEntryKind.STORAGE)

StepEntry = CachedEntry | WaitingEntry | EndOfSegmentEntry | TruncatedEntry


class ReadableSegment(Protocol):
    """What a read index meets of its segment's metadata."""

    segment_id: SegmentId
    name: str
    start_offset: int
    length: int
    pending_length: int
    storage_length: int
    sealed: bool
    has_tail_waiters: bool
    """Kept by the read index."""
    open_entry: CacheEntry
    """Where the next append's bytes go. Set and changed by the read index."""
    read_index: "SegmentReadIndex"
    """Set when the index is opened."""


class MergeRedirect:
    """[offset, end) of the target is [0, end - offset) of the source.

    From the commit of the merge until it is published, these bytes of the target are read through the source's index:
    from its cache entries, or from Tier 2 under the source's id.
    """

    __slots__ = ("end", "offset", "source")

    def __init__(self, *, offset: int, end: int, source: "SegmentReadIndex") -> None:
        self.offset = offset
        self.end = end
        self.source = source

    def __repr__(self) -> str:
        source_id = self.source.metadata.segment_id
        return f"<redirect [{self.offset}, {self.end}) to segment {source_id}>"


class SegmentReadIndex:
    """The read index of one segment. All but reading is synchronous, and all of it belongs to the loop's thread."""

    __slots__ = (
        "_cache",
        "_discarded",
        "_end_error",
        "_entries",
        "_fetches",
        "_redirect",
        "_redirect_count",
        "_run_start",
        "_staged_end",
        "_unpinned_end",
        "_waiter_limit",
        "_waiters",
        "is_removed",
        "metadata",
        "read_ahead_marks",
    )

    def __init__(
        self,
        metadata: ReadableSegment,
        *,
        cache: ContainerCache,
        fetches: StorageFetches,
        waiter_limit: WaiterLimit,
    ) -> None:
        self.metadata = metadata
        self._cache = cache
        self._fetches = fetches
        self._waiter_limit = waiter_limit
        self._entries: SegmentEntries | None = None
        """None while there are none: most active segments have nothing cached."""
        self._run_start = 0
        """Where the run of un-flushed bytes began that decides how large the next block may be."""
        self._staged_end = 0
        """End of what is staged, while no block is open."""
        self._unpinned_end = metadata.storage_length
        """Entries that end at or below it are not pinned."""
        self._waiters: TailWaiters | None = None
        self._end_error: Exception | None = None
        """What every read ends with, once end_reads() was called."""
        self._discarded = False
        self.is_removed = False
        """The segment is not active any more; a merge redirect may still lead here. Set by ContainerReadIndex."""
        self._redirect: MergeRedirect | None = None
        """The stretch of another segment that is read through this index."""
        self._redirect_count = 0
        self.read_ahead_marks: list[ReadAheadMark] = []
        """Few, and most of the time none."""
        metadata.open_entry = cache.no_entry

    @property
    def segment_id(self) -> SegmentId:
        return self.metadata.segment_id

    @property
    def storage_length(self) -> int:
        """Tier 2 has everything below it."""
        return self.metadata.storage_length

    # --- bytes come in ------------------------------------------------------------------------

    @property
    def staged_end(self) -> int:
        """End of the last staged byte, or of the last merge."""
        entry = self.metadata.open_entry
        return self._staged_end if entry.limit == NO_ROOM else entry.end

    def stage(self, data: BufferView) -> int:
        """Copy bytes that the open entry did not take to the pending end of the segment; gives where they end.

        The caller moves `pending_length` to there. Readable once the metadata's length has passed them. Raises
        CacheFullError, having changed nothing.
        """
        begin = self.metadata.pending_length
        self._stage_in_blocks(begin, data, recovering=False)
        return begin + len(data)

    def insert_recovered(self, offset: int, data: BufferView) -> None:
        """Put replayed bytes back at their offset; what Tier 2 has already is left out.

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
        blocks = self._cache.allocate_run(
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
        self._entries.add(entry)

    def _close_open_block(self) -> None:
        """The last entry grows no more; the next bytes go to a block of their own."""
        self._staged_end = self.staged_end
        self.metadata.open_entry = self._cache.no_entry

    def _close_run(self) -> None:
        """Begin small again with the next bytes."""
        self._close_open_block()
        self._run_start = self._staged_end

    # --- readers wait at the tail -------------------------------------------------------------

    @property
    def has_waiters(self) -> bool:
        """Whether appended() would find a waiter to wake."""
        return self.metadata.has_tail_waiters

    def appended(self) -> None:
        """The metadata's length grew: wake the readers at the tail."""
        if self.has_waiters:
            self._wake()

    def sealed(self) -> None:
        """The metadata says sealed: nothing will ever follow, which readers at the tail must learn."""
        self._wake()

    def end_reads(self, error: Exception) -> None:
        """Deleted, merged away, or the container stopped: every read ends with this error from now on."""
        if self._end_error is None:
            self._end_error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiters is not None:
            self.metadata.has_tail_waiters = False
            self._waiters.wake()

    def readable(self, offset: int) -> "Future[None]":
        """Done when `offset` < length, or the segment is sealed, or reads have ended: look again then.

        A wake-up may come early for an offset past the length. Raises TooManyWaitersError.
        """
        metadata = self.metadata
        if offset < metadata.length or metadata.sealed or self._end_error is not None:
            future: Future[None] = asyncio.get_running_loop().create_future()
            future.set_result(None)
            return future
        return self.next_change()

    def next_change(self) -> "Future[None]":
        """Done after the next appended(), sealed() or end_reads(). The caller has not awaited since it looked.

        Cancel it to leave. Raises TooManyWaitersError at the container's limit.
        """
        self._waiter_limit.add()
        if self._waiters is None:
            self._waiters = TailWaiters()
        future = self._waiters.add()
        future.add_done_callback(self._waiter_left)
        self.metadata.has_tail_waiters = True
        return future

    def _waiter_left(self, future: "Future[None]") -> None:
        self._waiter_limit.remove()
        if self._waiters is not None:
            self._waiters.discard(future)
            self.metadata.has_tail_waiters = len(self._waiters) > 0

    def raise_if_ended(self) -> None:
        """Raises what end_reads() was told."""
        if self._end_error is not None:
            # One error object serves many readers: without this its traceback would grow with each.
            raise self._end_error.with_traceback(None)

    def raise_if_unreadable(self, offset: int) -> None:
        """Raises what end_reads() was told, or SegmentTruncatedError for an offset below the start offset."""
        self.raise_if_ended()
        metadata = self.metadata
        if offset < metadata.start_offset:
            raise SegmentTruncatedError(metadata.name, start_offset=metadata.start_offset)

    # --- bytes leave the cache ----------------------------------------------------------------

    def storage_advanced(self, storage_length: int) -> None:
        """Tier 2 has everything below `storage_length`: cached bytes there may go at any time."""
        assert storage_length >= self._unpinned_end, (
            f"storage length goes back from {self._unpinned_end} to {storage_length}"
        )
        self._unpin_below(storage_length)

    def skipped(self, offset: int) -> None:
        """Bytes below `offset` are truncated, and Tier 2 will not be given them: they are freed, up to a merge."""
        start_offset = self.metadata.start_offset
        assert offset <= start_offset, f"skipped up to {offset}, readable from {start_offset}"
        if self._redirect_count:
            # What is behind one stays in the index until that goes.
            merges = (item for item in self._entries or () if isinstance(item, MergeRedirect))
            offset = min(offset, next(merges).offset)
        if offset > self._unpinned_end:
            self._unpin_below(offset)

    def _unpin_below(self, end: int) -> None:
        if self._entries is not None:
            for entry in self._entries.cached_between(self._unpinned_end, end):
                if entry is self.metadata.open_entry:
                    self._close_run()
                if entry.generation == PINNED:
                    self._cache.unpin(entry)
        self._unpinned_end = end
        entry = self.metadata.open_entry
        if entry.limit - entry.offset > max(BLOCK_BYTES_MIN, 2 * (entry.end - end)):
            # What trickles in must not keep a block pinned that was sized for a long run.
            self._close_run()
        self.truncated(self.metadata.start_offset)
        self._cache.manager.space_freed()

    def truncated(self, start_offset: int) -> None:
        """Bytes below `start_offset` will never be read again; those that Tier 2 has, or skips, are freed."""
        if self._entries is None:
            return
        removed = self._entries.remove_below(min(start_offset, self._unpinned_end))
        if removed:
            self._forget_empty_entries()
            self._cache.discard(removed)

    def discard_all(self) -> None:
        """Let go of everything, and of the sources read through this index: Tier 2 has it, or it will not be read."""
        pending = [self]
        while pending:
            index = pending.pop()
            index._close_open_block()
            index._redirect = None
            index._redirect_count = 0
            index._discarded = True
            items = list(index._entries or ())
            index._entries = None
            pending.extend(item.source for item in items if isinstance(item, MergeRedirect))
            self._cache.discard([item for item in items if isinstance(item, CacheEntry)])

    def free_all(self) -> None:
        """discard_all(), and who waits for room is told."""
        self.discard_all()
        self._cache.manager.space_freed()

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

    # --- merges -------------------------------------------------------------------------------

    @property
    def is_redirected(self) -> bool:
        """Another segment's bytes are read through this index."""
        return self._redirect is not None

    def begin_merge(self, offset: int, source: "SegmentReadIndex") -> None:
        """From the merge's commit on, [offset, offset + the source's length) is the source's bytes."""
        assert source._redirect is None, f"source is merged already: {source._redirect!r}"
        source._close_open_block()
        end = offset + source.metadata.length
        if end == offset:
            return
        if self._entries is None:
            self._entries = SegmentEntries()
        redirect = MergeRedirect(offset=offset, end=end, source=source)
        if self.staged_end <= offset:
            self._close_open_block()
            self._staged_end = self._run_start = end
        self._entries.add(redirect)
        self._redirect_count += 1
        source._redirect = redirect

    def complete_merge(self, source: "SegmentReadIndex") -> None:
        """The merge is published and the target's storage length covers it: the source's index goes.

        While this segment itself waits to be merged, Tier 2 may have the bytes under its target only: the source stays.
        """
        redirect = source._redirect
        if redirect is None:
            return
        if self.metadata.storage_length < redirect.end:
            assert self._redirect is not None, (
                f"{redirect!r} is complete above storage length {self.metadata.storage_length}"
            )
            return
        assert self._entries is not None, f"{redirect!r} is not in an empty index"
        self._entries.take_out(redirect)
        self._redirect_count -= 1
        self._forget_empty_entries()
        source.discard_all()
        self._cache.manager.space_freed()

    def resolve(self, offset: int, end: int) -> "list[tuple[SegmentReadIndex, int, int]]":
        """Which indexes may have the byte at `offset`: this one, then the sources it is read through, innermost last.

        Each with the offset in its own segment, and with `end`, cut where its redirect ends.
        """
        index = self
        path = [(index, offset, end)]
        while index._redirect_count and index._entries is not None:
            item = index._entries.item_at(offset)
            if not isinstance(item, MergeRedirect):
                break
            end = min(end, item.end) - item.offset
            offset -= item.offset
            index = item.source
            path.append((index, offset, end))
        return path

    # --- bytes go out -------------------------------------------------------------------------

    async def read(
        self, offset: int, max_length: int, *, confirm: Callable[[], Awaitable[None]]
    ) -> AsyncGenerator[ReadResultEntry, None]:
        """Entries from `offset` on, as `Segment.read` promises them. Hold it in `aclosing`.

        `confirm` is awaited before anything but bytes is told: an end, a truncation, a refusal. It may raise.

        It ends when `max_length` bytes were delivered or an entry without bytes came; a STORAGE or FUTURE entry whose
        content was not taken is one. Raises BadOffsetError from the first step for an offset that is negative or past
        the length, and from any step what end_reads() was told.
        """
        end = offset + max_length
        while True:
            try:
                entry = self._next_entry(offset, end)
            except (BadOffsetError, SegmentNotFoundError):
                await confirm()
                raise
            if offset >= end:
                return
            if entry.kind not in _WITH_BYTES:
                await confirm()
            yield entry
            if not entry.length_taken:
                return
            offset += entry.length_taken

    def _next_entry(self, offset: int, end: int) -> StepEntry:
        """What a read of [offset, end) meets now."""
        self.raise_if_ended()
        metadata = self.metadata
        if not 0 <= offset <= metadata.length:
            raise BadOffsetError(metadata.name, expected=metadata.length, given=offset)
        if offset < metadata.start_offset:
            return TruncatedEntry(
                name=metadata.name, offset=offset, start_offset=metadata.start_offset
            )
        end = min(end, offset + PIECE_BYTES_MAX)
        if offset < metadata.length:
            content = b"".join(self._views_for_reader(offset, min(end, metadata.length)))
            if content:
                return CachedEntry(offset=offset, content=content)
            kind = ReadResultEntryKind.STORAGE
        elif metadata.sealed:
            return EndOfSegmentEntry(offset=offset)
        else:
            kind = ReadResultEntryKind.FUTURE
        return WaitingEntry(
            kind=kind, read=self.wait_for_bytes, offset=offset, length_max=end - offset
        )

    async def wait_for_bytes(self, offset: int, length_max: int) -> bytes:
        """From one byte to `length_max` bytes at `offset`, once they are there; b"" at the end of a sealed segment.

        Raises SegmentTruncatedError, StorageError, TooManyWaitersError, and what end_reads() was told.
        """
        metadata = self.metadata
        while True:
            self.raise_if_unreadable(offset)
            if offset < metadata.length:
                break
            if metadata.sealed:
                return b""
            await self.next_change()
        try:
            content = await self._read_committed(offset, min(offset + length_max, metadata.length))
        except SegmentStoreError:
            self.raise_if_unreadable(offset)
            raise
        self.raise_if_unreadable(offset)
        return content

    async def _read_committed(self, offset: int, end: int) -> bytes:
        misses = 0
        known_path: list[tuple[SegmentReadIndex, int, int]] = []
        while True:
            content = self.copy_cached(offset, end)
            if content:
                return content
            path = self.resolve(offset, end)
            if path != known_path:
                # A merge was completed while we waited: what was learnt about the old path is void.
                known_path = path
                misses = 0
            innermost, begin, inner_end = path[-1]
            length = innermost.uncached_end(begin, inner_end) - begin
            if misses == 0:
                length = min(length, innermost.metadata.storage_length - begin)
                if length <= 0:
                    raise ServiceHaltError(f"byte {begin} is nowhere: {innermost.metadata!r}")
            owner, begin, _ = path[-1 - misses]
            try:
                return await self._fetches.read(owner, begin, length)
            except (SegmentNotFoundError, SegmentTruncatedError, ValueError) as error:
                misses += 1
                if misses == len(path):
                    if self.resolve(offset, end) != path:
                        continue
                    raise CorruptedDataError(
                        f"tier 2 lacks bytes it should have segment={owner.metadata.segment_id} offset={begin}"
                    ) from error

    def read_cached(self, offset: int, length_max: int) -> bytes | None:
        """A copy of [offset, offset + length_max), cut at the length; None unless all of it is cached and readable.

        Raises nothing: whatever is unusual is left to read().
        """
        metadata = self.metadata
        end = min(offset + length_max, metadata.length)
        if offset < metadata.start_offset or offset >= end or self._end_error is not None:
            return None
        content = self.copy_cached(offset, end)
        return content if len(content) == end - offset else None

    def read_nowait(self, offset: int, length_max: int) -> bytes | None:
        """A copy of what is cached and committed from `offset` on, at most `length_max` bytes; None if nothing is.

        Raises BadOffsetError, SegmentTruncatedError, and what end_reads() was told.
        """
        return b"".join(self.views_nowait(offset, length_max)) or None

    def views_nowait(self, offset: int, length_max: int) -> list[memoryview]:
        """As read_nowait(), not copied: once the caller has given up the loop, others' bytes may be there."""
        length = self.metadata.length
        if not 0 <= offset <= length:
            self.raise_if_ended()
            raise BadOffsetError(self.metadata.name, expected=length, given=offset)
        self.raise_if_unreadable(offset)
        end = min(offset + length_max, length)
        return self._views_for_reader(offset, end) if offset < end else []

    def _views_for_reader(self, offset: int, end: int) -> list[memoryview]:
        """Of what is cached, for a reader that may want what follows too."""
        views: list[memoryview] = []
        reached = self._gather(offset, end, views)
        if self.read_ahead_marks and views:
            self._fetches.read_on(self, offset, reached)
        return views

    def copy_cached(self, offset: int, end: int) -> bytes:
        """The longest cached stretch of [offset, end) that begins at `offset`; b"" if there is none."""
        views: list[memoryview] = []
        self._gather(offset, end, views)
        return b"".join(views)

    def views(self, offset: int, length: int) -> list[memoryview]:
        """Views of staged or committed bytes that Tier 2 lacks; unchanged until the storage length passes them.

        Raises ServiceHaltError if any are missing: acknowledged bytes would be lost.
        """
        end = offset + length
        views: list[memoryview] = []
        reached = self._gather(offset, end, views)
        if reached != end:
            raise ServiceHaltError(
                f"un-flushed bytes are not in the cache segment={self.metadata.segment_id}"
                f" offset={offset} length={length} reached={reached}"
            )
        return views

    def _gather(self, offset: int, end: int, views: list[memoryview]) -> int:
        """Collect views of cached bytes from `offset` on; gives the offset of the first byte that is not cached."""
        cache = self._cache.manager
        if not self._redirect_count:
            return self._entries.gather(offset, end, cache, views) if self._entries else offset
        while offset < end:
            index, begin, inner_end = self.resolve(offset, end)[-1]
            if index._entries is None:
                break
            reached = index._entries.gather(begin, inner_end, cache, views)
            if reached == begin:
                break
            offset += reached - begin
        return offset

    def insert_fetched(self, offset: int, content: memoryview) -> None:
        """Keep bytes from Tier 2 where they are still missing and still wanted, as far as there is room."""
        metadata = self.metadata
        begin = max(offset, metadata.start_offset)
        end = min(offset + len(content), metadata.storage_length)
        while begin < end and not self._discarded:
            item = self._entries.item_at(begin) if self._entries is not None else None
            if item is not None:
                begin = item.end
                continue
            next_start = self._entries.next_start(begin) if self._entries is not None else None
            gap_end = end if next_start is None else min(end, next_start)
            block = self._cache.allocate_fetched(gap_end - begin)
            if block is None:
                return
            # The allocation may have evicted entries of ours: the gap is at least what it was.
            gap_end = min(gap_end, begin + block.size_bytes)
            entry = CacheEntry(self, begin, block)
            entry.add(begin, content[begin - offset : gap_end - offset])
            if self._entries is None:
                self._entries = SegmentEntries()
            self._entries.add(entry)
            self._cache.manager.add_fetched(entry)
            begin = gap_end

    def uncached_end(self, offset: int, end: int) -> int:
        """Where the uncached stretch that begins at `offset` ends, at most `end`."""
        next_start = self._entries.next_start(offset) if self._entries is not None else None
        return end if next_start is None else min(end, next_start)

    def next_missing(self, offset: int, limit: int) -> int:
        """The first offset of [offset, limit) that only Tier 2 has; `limit` if there is none."""
        if self._entries is None:
            return min(offset, limit)
        missing = self._entries.first_missing(offset, limit)
        return limit if missing is None else missing

    def can_keep_fetched(self, size: int) -> bool:
        """Whether reading ahead by so many bytes would leave them in the cache."""
        return not self._discarded and self._cache.manager.can_hold(size)

    def first_missing_offset(self) -> int | None:
        """The first readable byte that is neither in Tier 2 nor here; None if all are. Recovery halts on any."""
        metadata = self.metadata
        begin = max(metadata.start_offset, metadata.storage_length)
        if begin >= metadata.length:
            return None
        if self._entries is None:
            return begin
        return self._entries.first_missing(begin, metadata.length)

    def pinned_bytes(self) -> int:
        """Cache memory of un-flushed bytes, those of removed sources included; O(entries), for check()."""
        total = 0
        for item in self._entries or ():
            if isinstance(item, MergeRedirect):
                # A source that is still active counts for itself.
                if item.source.is_removed:
                    total += item.source.pinned_bytes()
            elif (
                isinstance(item, CacheEntry)
                and item.generation == PINNED
                and item.block is not None
            ):
                total += item.block.size_bytes
        return total

    def check(self) -> None:
        """Prove the invariants; O(entries)."""
        missing = None if self._discarded else self.first_missing_offset()
        assert missing is None, f"byte {missing} is nowhere: {self.metadata!r}"
        assert self._unpinned_end <= max(
            self.metadata.storage_length, self.metadata.start_offset
        ), f"un-pinned up to {self._unpinned_end}: {self.metadata!r}"
        redirects = 0
        last: object = None
        if self._entries is not None:
            self._entries.check()
            for last in self._entries:
                if isinstance(last, MergeRedirect):
                    redirects += 1
                    assert last.source._redirect is last, f"{last!r} is not known to its source"
                    continue
                assert isinstance(last, CacheEntry), f"{last!r} is neither entry nor redirect"
                pinned = last.end > self._unpinned_end
                assert pinned == (last.generation == PINNED), f"{last!r}: {self.metadata!r}"
                assert last.owner is self, f"{last!r} belongs to {last.owner!r}"
        assert redirects == self._redirect_count, f"{redirects} of {self._redirect_count} redirects"
        entry = self.metadata.open_entry
        if entry is not self._cache.no_entry:
            assert entry is last, f"open {entry!r} is not the last, {last!r}"
        assert self.has_waiters <= (self._waiters is not None and len(self._waiters) > 0), (
            "told of waiters where there are none"
        )
