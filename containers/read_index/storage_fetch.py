"""Reads from Tier 2 on behalf of readers: shared, bounded, and ahead of readers that read in order.

A fetch belongs to the container, not to the reader that caused it. Readers that want a byte a running fetch was asked
for wait for that one; one that goes away leaves it running for the others.

Invariants:
- at most `fetches_max` reads of Tier 2 are under way; read-ahead begins only while some of them are free;
- a reader in order that finds everything in the cache is read ahead of from a mark on, half-way through what was
  fetched ahead of it; a segment has at most `marks_max` of them;
- Tier 2 owes a fetch its first byte and no more; a reader that joined one and got nothing asks for its own byte;
- a fetch ends every one of its waiters exactly once: with bytes, with Tier 2's error, or with ContainerStoppedError;
- no task outlives close().
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, Protocol

from containers.container_settings import StorageFetchSettings
from segmentstore.contracts.errors import ContainerStoppedError, CorruptedDataError
from segmentstore.contracts.identifiers import SegmentId
from segmentstore.contracts.storage import ReadOnlyStorage, StorageRead
from segmentstore.runtime.guarded_callback import guarded, raise_again


class ReadAheadMark(NamedTuple):
    """A reader of the byte at `offset` is read ahead of, further than `window` the next time."""

    offset: int
    window: int


class FetchTarget(Protocol):
    """The segment that bytes are fetched for: what is missing in its cache, and where fetched bytes go."""

    read_ahead_marks: list[ReadAheadMark]

    @property
    def segment_id(self) -> SegmentId: ...

    @property
    def storage_length(self) -> int: ...

    def copy_cached(self, offset: int, end: int) -> bytes: ...

    def uncached_end(self, offset: int, end: int) -> int: ...

    def next_missing(self, offset: int, limit: int) -> int: ...

    def can_keep_fetched(self, size: int) -> bool: ...

    def insert_fetched(self, offset: int, content: memoryview) -> None: ...


class StorageFetch:
    """One read of Tier 2 under way, of [begin, end) of a segment."""

    __slots__ = ("begin", "end", "finished", "outcome", "reach", "segment_id", "task", "window")

    def __init__(self, *, segment_id: SegmentId, begin: int, end: int) -> None:
        self.segment_id = segment_id
        self.begin = begin
        self.end = end
        self.reach = begin
        """Where its answer may begin: the one in front of it ended before a block that ours begins with."""
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.outcome: StorageRead | BaseException | None = None
        self.task: asyncio.Task[StorageRead] | None = None
        self.window = 0
        """How far ahead of its reader it belongs; 0 if nothing says that the reader reads in order."""


class StorageFetches:
    """The fetches of one container."""

    def __init__(
        self,
        *,
        storage: ReadOnlyStorage,
        settings: StorageFetchSettings,
        fail: Callable[[Exception], None] = raise_again,
    ) -> None:
        """`fail` ends the container when a fetch cannot tell the readers that wait for it."""
        self._storage = storage
        self._settings = settings
        self._slots = asyncio.Semaphore(settings.fetches_max)
        self._running: dict[SegmentId, list[StorageFetch]] = {}
        self._sequences: OrderedDict[tuple[SegmentId, int], int] = OrderedDict()
        """Where a sequential reader would go on -> how far to read ahead then."""
        self._closed = False
        self._fail = fail
        self.running_count = 0
        self.fetch_count = 0
        self.joined_count = 0
        self.fetched_bytes = 0

    async def read(self, target: FetchTarget, offset: int, length: int) -> bytes:
        """From one byte to `length` bytes at `offset`, copied.

        Raises whatever `ReadOnlyStorage.read` raises, and ContainerStoppedError.
        """
        segment_id = target.segment_id
        fetch = self._find(segment_id, offset)
        while fetch is not None and fetch.begin != offset:
            self.joined_count += 1
            content = _piece(await self._wait(fetch), offset, length)
            content = content or target.copy_cached(offset, offset + length)
            if content:
                return content
            # Tier 2 ends at a block, and this one ended before our byte: that comes with the fetch behind if its block
            # reaches back so far, else only a fetch of the byte will do.
            fetch = self._find(segment_id, offset, exact=True)
        if fetch is None:
            end = offset + min(length, self._settings.fetch_bytes_max)
            fetch = self._start(target, offset, end)
        else:
            self.joined_count += 1
        self._read_ahead(target, offset, fetch)
        content = _piece(await self._wait(fetch), offset, length)
        if not content:
            raise CorruptedDataError(
                f"tier 2 did not give the byte asked for segment={segment_id} offset={offset}"
            )
        return content

    async def close(self) -> None:
        """Cancel every fetch, wait for it, and end its waiters with ContainerStoppedError."""
        self._closed = True
        fetches = [fetch for running in self._running.values() for fetch in running]
        tasks = [fetch.task for fetch in fetches if fetch.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # Done callbacks run one turn later; the container that closes us relies on nothing being left.
        for fetch in fetches:
            self._finish(fetch, ContainerStoppedError("container stopped during a read"))

    def _find(
        self, segment_id: SegmentId, offset: int, *, exact: bool = False
    ) -> StorageFetch | None:
        """A running fetch that was asked for the byte at `offset`; with `exact`, one whose first block has it."""
        for fetch in self._running.get(segment_id, ()):
            if fetch.begin == offset or fetch.reach <= offset < (
                fetch.begin if exact else fetch.end
            ):
                return fetch
        return None

    def _start(self, target: FetchTarget, offset: int, end: int) -> StorageFetch:
        if self._closed:
            raise ContainerStoppedError("container stopped before a read")
        alignment = self._settings.alignment_bytes
        # Tier 2 answers with the whole block around the first byte asked for, and promises no more: so it is asked for
        # the very byte that is wanted, not for an aligned one before it.
        end = max(end, min(end + -end % alignment, target.storage_length), offset + 1)
        fetch = StorageFetch(segment_id=target.segment_id, begin=offset, end=end)
        self._running.setdefault(fetch.segment_id, []).append(fetch)
        self.running_count += 1
        self.fetch_count += 1
        fetch.task = asyncio.get_running_loop().create_task(self._run(fetch, target))
        fetch.task.add_done_callback(guarded(lambda task: self._task_done(fetch, task), self._fail))
        return fetch

    async def _run(self, fetch: StorageFetch, target: FetchTarget) -> StorageRead:
        async with self._slots:
            read = await self._storage.read(fetch.segment_id, fetch.begin, fetch.end - fetch.begin)
        self.fetched_bytes += len(read.content)
        target.insert_fetched(read.offset, read.content)
        self._note_end(fetch, read)
        return read

    def _task_done(self, fetch: StorageFetch, task: "asyncio.Task[StorageRead]") -> None:
        if task.cancelled():
            self._finish(fetch, ContainerStoppedError("container stopped during a read"))
        else:
            self._finish(fetch, task.exception() or task.result())

    def _finish(self, fetch: StorageFetch, outcome: StorageRead | BaseException) -> None:
        if fetch.outcome is not None:
            return
        fetch.outcome = outcome
        running = self._running[fetch.segment_id]
        running.remove(fetch)
        if not running:
            del self._running[fetch.segment_id]
        self.running_count -= 1
        if not fetch.finished.done():
            fetch.finished.set_result(None)

    async def _wait(self, fetch: StorageFetch) -> StorageRead:
        await asyncio.shield(fetch.finished)
        outcome = fetch.outcome
        if isinstance(outcome, BaseException):
            # One error object serves many readers: without this its traceback would grow with each.
            raise outcome.with_traceback(None)
        assert outcome is not None, f"fetch of {fetch.begin} finished without an outcome"
        return outcome

    def _read_ahead(self, target: FetchTarget, offset: int, fetch: StorageFetch) -> None:
        """Fetch what comes behind `fetch`, if an earlier fetch ended exactly where this read begins."""
        window = self._sequences.pop((fetch.segment_id, offset), None)
        if window is None:
            return
        fetch.window = self._grown(window)
        self._fetch_ahead(target, fetch.end, fetch.window)

    def read_on(self, target: FetchTarget, offset: int, end: int) -> None:
        """[offset, end) was found in the cache: fetch what comes behind it if there was a mark in it."""
        for mark in target.read_ahead_marks:
            if offset <= mark.offset < end:
                target.read_ahead_marks.remove(mark)
                self._fetch_ahead(target, end, self._grown(mark.window))
                return

    def _grown(self, window: int) -> int:
        settings = self._settings
        return min(settings.read_ahead_bytes_max, max(2 * window, settings.fetch_bytes_max))

    def _fetch_ahead(self, target: FetchTarget, position: int, window: int) -> None:
        """Of the `window` bytes from `position` on, what is missing; and a mark in the middle of them."""
        if self._closed or not target.can_keep_fetched(window):
            return
        storage_length, marks = target.storage_length, target.read_ahead_marks
        limit = min(position + window, storage_length)
        if limit < storage_length:
            marks.append(ReadAheadMark(position + window // 2, window))
            if len(marks) > self._settings.marks_max:
                del marks[0]
        while self.running_count < self._settings.fetches_max:
            position = target.next_missing(position, limit)
            if position >= limit:
                return
            ahead = self._find(target.segment_id, position)
            if ahead is None:
                # A whole step, beyond the limit if need be: of short ones Tier 2 reads the same blocks several times.
                end = position + self._settings.ahead_fetch_bytes_max
                end = target.uncached_end(position, min(end, storage_length))
                ahead = self._start(target, position, end)
                ahead.window = window
            position = ahead.end

    def _note_end(self, fetch: StorageFetch, read: StorageRead) -> None:
        end = read.offset + len(read.content)
        for behind in self._running[fetch.segment_id]:
            if behind.begin == fetch.end > end:
                behind.reach = end
        self._sequences[fetch.segment_id, end] = fetch.window
        if len(self._sequences) > self._settings.sequences_max:
            self._sequences.popitem(last=False)


def _piece(read: StorageRead, offset: int, length: int) -> bytes:
    skipped = offset - read.offset
    return bytes(read.content[skipped : skipped + length]) if skipped >= 0 else b""
