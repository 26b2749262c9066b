"""Journal files: made of zeros ahead of need, filled with frames, freed whole, recycled.

`Journal` is one file in use, `JournalFiller` makes one, `JournalPool` keeps spares ahead of need: filled in the
background, taken in order, taken back when freed.

Invariants of a journal:
- A journal that this process writes was created by it under its epoch, wholly overwritten with zeros, synced, and its
  name synced, before the first frame goes in; each later use of it is a new generation.
- `position` only grows within a generation, and is a multiple of the page size.
- Entries leave MARK_PAGES pages free at the end, so that a truncation can always be recorded.

Invariants of the pool:
- Every spare is whole, zero-filled or written before, and durable.
- Only journals of this pool, hence of this epoch and process, are recycled.
- `full` is true exactly while the last attempt to make a journal found no space and no spare was freed since.
- A pool that becomes full, or begins full, while its files have no room for the reserve first makes one of what is left
  free for others, at most of half of it: internal entries, and those that were accepted already, go into it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass

from segmentstore.runtime.cancellation import run_blocking
from segmentstore.runtime.files import NO_SPACE_ERRNOS, File, FileSystem
from segmentstore.runtime.waiting import wait_for_event
from tier1.file_log.directory import JournalName, LogDirectory
from tier1.file_log.frames import PAGE_BYTES
from tier1.file_log.settings import FileLogSettings

MARK_PAGES = 2
"""Pages that entries never use: one for the mark of idleness, the last for the mark of a truncation."""

_FILL_ZEROS = bytes(256 << 10)
"""One write of the filler. A log of another container that is synced meanwhile waits for one of them, not for all."""

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class Journal:
    """A journal file in use. `file` is None for one of an earlier epoch: it is read, then unlinked, never written."""

    path: str
    size_bytes: int
    file: File | None = None
    generation: int = 0
    position: int = 0
    first_number: int = 0
    """Frame number of the first frame that is needed."""
    last_address: int = 0
    """Highest address in it; the file may go when that is truncated."""
    unsynced: bool = False
    """A frame was written behind the last sync."""

    def begin(self, *, generation: int, first_number: int) -> None:
        """Start a new generation at offset 0."""
        assert generation > self.generation, (
            f"generations only grow: {generation} after {self.generation} path={self.path!r}"
        )
        self.generation = generation
        self.first_number = first_number
        self.position = 0
        self.unsynced = False

    def close(self) -> None:
        """Idempotent."""
        if self.file is not None:
            file, self.file = self.file, None
            file.close()

    def entry_capacity(self) -> int:
        """Bytes for frames with entries in the whole file."""
        return self.size_bytes - MARK_PAGES * PAGE_BYTES

    def entry_room(self) -> int:
        """Bytes left for frames with entries."""
        return max(0, self.entry_capacity() - self.position)

    def mark_room(self, *, truncation: bool) -> bool:
        """Whether one more mark fits; the last page is for truncations alone."""
        pages = 1 if truncation else 2
        return self.position + pages * PAGE_BYTES <= self.size_bytes

    def advance(self, length: int, *, last_address: int, synced: bool) -> None:
        """A frame was written at `position`."""
        self.position += length
        assert self.position <= self.size_bytes, (
            f"frame ends behind its file position={self.position} size_bytes={self.size_bytes} path={self.path!r}"
        )
        self.last_address = last_address
        self.unsynced = not synced


class JournalFiller:
    """Makes one journal, a step at a time, so that each executor job is short. Its methods block.

    Zeros go past the system's cache: a sync that brings megabytes from there to the disk holds up the syncs of every
    log on it, and each page of the cache costs more than the write.
    """

    def __init__(self, path: str, size_bytes: int, *, step_bytes: int, files: FileSystem) -> None:
        self._path = path
        self._size_bytes = size_bytes
        self._step_bytes = step_bytes
        self._files = files
        self._file: File | None = None
        self._made: Journal | None = None
        self._filled = 0

    def step(self) -> Journal | None:
        """Fill a little more; the journal once it is complete and durable, name included."""
        if self._file is None:
            self._file = self._files.open(self._path, create=True, exclusive=True)
        target = min(self._size_bytes, self._filled + self._step_bytes)
        while self._filled < target:
            length = min(len(_FILL_ZEROS), target - self._filled)
            self._file.write_direct(self._filled, [memoryview(_FILL_ZEROS)[:length]])
            self._filled += length
        self._file.sync_data()
        if self._filled < self._size_bytes:
            return None
        directory, _, _ = self._path.rpartition("/")
        self._files.sync_directory(directory)
        # Opened anew: what a file needs to write past the cache it keeps until it is closed.
        file = self._files.open(self._path)
        self._file.close()
        self._file = None
        self._made = Journal(path=self._path, size_bytes=self._size_bytes, file=file)
        return self._made

    def close(self) -> None:
        """Leave the file where it is, also one that the pool never took: the next owner removes it."""
        if self._file is not None:
            self._file.close()
        if self._made is not None:
            self._made.close()

    def abandon(self) -> None:
        """Give back what a failed step took. Idempotent."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()
            with suppress(FileNotFoundError):  # A new owner of the log may have been here.
                self._files.remove(self._path)


class NoJournalSpaceError(Exception):
    """The disk has no room for a further journal. Stays inside this package."""


class JournalPool:
    """The spare journals of one epoch."""

    def __init__(
        self,
        *,
        epoch: int,
        directory: LogDirectory,
        files: FileSystem,
        executor: Executor | None,
        settings: FileLogSettings,
        on_change: Callable[[], None],
    ) -> None:
        self._epoch = epoch
        self._directory = directory
        self._files = files
        self._executor = executor
        self._settings = settings
        self._on_change = on_change
        self._spares: deque[Journal] = deque()
        self._written: Journal | None = None
        self._serial = 0
        self._next_bytes = settings.journal_bytes_first
        self._full = False
        self._stopping = False
        self._wake = asyncio.Event()

    @property
    def full(self) -> bool:
        """No further journal can be made now."""
        return self._full

    @property
    def spares(self) -> tuple[Journal, ...]:
        return tuple(self._spares)

    def take(self) -> Journal | None:
        """The next journal to write, or None: on_change() is called when there is one."""
        if not self._spares:
            return None
        self._wake.set()
        self._written = self._spares.popleft()
        return self._written

    async def offer(self, journal: Journal) -> bool:
        """Take a freed journal of this epoch back; False if it is one too many and should be removed."""
        if journal.file is None or not await self._is_wanted(journal) or self._stopping:
            return False
        self._spares.append(journal)
        self._on_change()
        return True

    async def _is_wanted(self, journal: Journal) -> bool:
        if journal.size_bytes < self._settings.journal_bytes_first:
            return False  # made on a full disk; the largest entry may not fit
        if self._full or len(self._spares) < self._settings.spare_journals:
            return True
        if journal.size_bytes < self._settings.journal_bytes_max:
            return False
        # Files beyond need are kept only while the disk has plenty of space.
        few = len(self._spares) < self._settings.recycled_journals_max
        return few and await self._has_room(0)

    async def make_first(self, *, size_bytes_min: int, shrink: bool = False) -> Journal:
        """The journal an epoch starts with; with `shrink` rather a small one than none.

        Raises NoJournalSpaceError.
        """
        size_bytes = max(self._settings.journal_bytes_first, size_bytes_min)
        journal = None
        while journal is None:
            try:
                journal = await self._make(size_bytes, free_bytes_min=0)
            except NoJournalSpaceError:
                if not shrink or size_bytes == size_bytes_min:
                    raise
                size_bytes = max(size_bytes_min, size_bytes // 2 & -PAGE_BYTES)
        self._written = journal  # closed with the pool, should the opening end here
        self._next_bytes = 2 * max(size_bytes, self._settings.journal_bytes_first)
        self._next_bytes = min(self._next_bytes, self._settings.journal_bytes_max)
        if not await self._has_room(self._next_bytes):
            await self._keep_reserve()
            self._full = True
        return journal

    async def run(self) -> None:
        """Keep enough spares until stop(). Raises OSError when something else than space is in the way of one."""
        await self._keep_ballast()
        while not self._stopping:
            self._wake.clear()
            enough = len(self._spares) >= self._settings.spare_journals
            if enough and not self._full:
                await self._wake.wait()
                continue
            if enough:
                # Recycled files are enough for now, but no other task would find out that space is back.
                if await self._has_room(self._next_bytes):
                    self._set_full(full=False)
                    self._on_change()
                else:
                    await self._wait_for_space()
                continue
            try:
                journal = await self._make(
                    self._next_bytes, free_bytes_min=self._settings.free_bytes_min
                )
            except NoJournalSpaceError:
                if not self._full:
                    await self._keep_reserve()
                    self._set_full(full=True)
                    self._on_change()
                await self._wait_for_space()
                continue
            self._spares.append(journal)
            self._set_full(full=False)
            self._on_change()

    async def _keep_reserve(self) -> None:
        # The rest of the files is the reserve, unless the disk filled before there were any, or entries were faster.
        settings = self._settings
        room = self._written.entry_room() if self._written is not None else 0
        if room + sum(spare.entry_capacity() for spare in self._spares) >= settings.reserve_bytes:
            return
        free = await run_blocking(self._executor, self._files.free_bytes, self._directory.path)
        next_bytes = self._next_bytes
        whole = settings.reserve_bytes + settings.journal_bytes_first & -PAGE_BYTES
        # Rather a small second file than none: a truncation frees every file but the one that is being written.
        for size_bytes in (whole, settings.journal_bytes_first):
            if free - size_bytes < settings.free_bytes_min // 2:
                continue  # the disk may have many logs, and each wants one
            with suppress(NoJournalSpaceError):
                self._spares.append(await self._make(size_bytes, free_bytes_min=0))
                break
        else:
            _LOG.warning("no space for the log's reserve either path=%s", self._directory.path)
        # The log is full until there is room for the file that was due.
        self._next_bytes = next_bytes

    async def _wait_for_space(self) -> None:
        now = asyncio.get_running_loop().time()
        await wait_for_event(self._wake, until=now + self._settings.space_poll_seconds)

    async def _keep_ballast(self) -> None:
        # A file that is good for nothing but to be removed: the next owner opens with its space on a disk that is full.
        path, size_bytes = self._directory.ballast_path, self._settings.journal_bytes_first
        if await run_blocking(self._executor, self._files.exists, path):
            if await run_blocking(self._executor, self._files.size, path) >= size_bytes:
                return
            await run_blocking(self._executor, self._directory.remove_file, path)
        try:
            ballast = await self._fill(path, size_bytes)
        except NoJournalSpaceError:
            return
        await run_blocking(self._executor, ballast.close)

    def look_again(self) -> None:
        """Space may have come back."""
        self._wake.set()

    def stop(self) -> None:
        """Let run() end after the step it is in."""
        self._stopping = True
        self._wake.set()

    def close(self) -> None:
        """Close the files that it made; after run() has ended, and the writer. Blocks."""
        if self._written is not None:
            self._written.close()
        while self._spares:
            self._spares.popleft().close()

    def _set_full(self, *, full: bool) -> None:
        if full != self._full:
            _LOG.warning(
                "no space for journals: %s path=%s",
                "ordinary appends are refused until there is" if full else "over",
                self._directory.path,
            )
        self._full = full

    async def _has_room(self, size_bytes: int) -> bool:
        free = await run_blocking(self._executor, self._files.free_bytes, self._directory.path)
        return free >= size_bytes + self._settings.free_bytes_min

    async def _make(self, size_bytes: int, *, free_bytes_min: int) -> Journal:
        if free_bytes_min and not await self._has_room(size_bytes):
            raise NoJournalSpaceError
        self._serial += 1
        name = JournalName(self._epoch, self._serial)
        journal = await self._fill(self._directory.join(str(name)), size_bytes)
        self._next_bytes = min(self._settings.journal_bytes_max, 2 * size_bytes)
        return journal

    async def _fill(self, path: str, size_bytes: int) -> Journal:
        filler = JournalFiller(
            path, size_bytes, step_bytes=self._settings.fill_step_bytes, files=self._files
        )
        journal = None
        try:
            while journal is None:
                journal = await run_blocking(self._executor, filler.step)
        except OSError as error:
            await run_blocking(self._executor, filler.abandon)
            if error.errno in NO_SPACE_ERRNOS:
                raise NoJournalSpaceError from error
            raise
        except asyncio.CancelledError:
            filler.close()
            raise
        return journal
