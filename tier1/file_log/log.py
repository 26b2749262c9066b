"""A durable data log in a directory of one host.

How it works, and what each file here adds to it:

    append()       FrameWriter (frame_writer.py) -> FramePlanner (frame_planner.py) -> FrameFlush (frame_flush.py)
                   -> frames (frames.py) -> files (journals.py), made ahead by JournalPool
    initialize()   LogOpening (opening.py): lock and epoch (directory.py), scan and chain (recovery.py)

Invariants (L1 to L8 of DurableDataLog apart):
- Nothing that read() returns can vanish afterwards: it was synced before, here or by an earlier owner.
- States move forward only: NEW -> OPENING -> OPEN -> CLOSED; a failed writer stays OPEN and refuses everything.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from random import Random

from segmentstore.contracts.durable_data_log import LogEntry, LogStatistics, WriteSettings
from segmentstore.contracts.errors import (
    AppendTooLargeError,
    DurableDataLogError,
    LogCorruptedError,
    LogNotPrimaryError,
)
from segmentstore.contracts.identifiers import BufferView, Epoch, LogAddress
from segmentstore.runtime.cancellation import run_blocking
from segmentstore.runtime.files import FileSystem
from tier1.file_log.directory import LogDirectory, LogIdentity
from tier1.file_log.frame_flush import InlineSyncPolicy
from tier1.file_log.frame_writer import FrameWriter
from tier1.file_log.journals import Journal, JournalPool
from tier1.file_log.opening import LogOpening, OpenedLog
from tier1.file_log.recovery import FoundFrame, read_durable_frame
from tier1.file_log.settings import DurabilityRules, FileLogSettings
from tier1.log_states import LogState, LogStates

_READ_AHEAD_BYTES = 1 << 20


class FileDurableDataLog:
    """Implements DurableDataLog. The executor needs two threads: one writes frames, one fills journals meanwhile."""

    def __init__(
        self,
        path: str,
        *,
        files: FileSystem,
        executor: Executor | None,
        random: Random,
        settings: FileLogSettings | None = None,
        owner: str = "",
        epoch_floor: int = 0,
        pace: InlineSyncPolicy | None = None,
        rules: DurabilityRules | None = None,
    ) -> None:
        """path: absolute, made if missing. owner: this process, for the message that others get while it holds the log.

        epoch_floor: the new epoch is above it; for a log that replaces a lost one.
        pace: when small frames may be written on the loop; shared by the logs of a loop. Without it none are.
        """
        self._path = path
        self._files = files
        self._executor = executor
        self._settings = settings or FileLogSettings()
        self._write_settings = WriteSettings(
            entry_bytes_max=self._settings.entry_bytes_max,
            outstanding_bytes_max=self._settings.outstanding_bytes_max,
        )
        self._epoch_floor = epoch_floor
        self._pace = pace
        self._rules = rules or DurabilityRules()
        self._directory = LogDirectory(path, files=files, random=random, owner=owner)
        self._states = LogStates()
        self._identity: LogIdentity | None = None
        self._epoch = Epoch(0)
        self._opened: OpenedLog | None = None
        self._pool: JournalPool | None = None
        self._writer: FrameWriter | None = None
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._appended = False
        self._discarded: deque[Journal] = deque()
        self._releasing = asyncio.Lock()
        self._closing = asyncio.Lock()

    @property
    def log_id(self) -> bytes:
        return self._known_identity().log_id

    @property
    def follows(self) -> bytes:
        return self._known_identity().follows

    @property
    def follows_changes(self) -> int | None:
        return self._known_identity().follows_changes

    def _known_identity(self) -> LogIdentity:
        assert self._identity is not None, "the log id is known after initialize()"
        return self._identity

    @property
    def is_new(self) -> bool:
        return self._opened is not None and self._opened.is_new

    @property
    def epoch(self) -> Epoch:
        return self._epoch

    @property
    def write_settings(self) -> WriteSettings:
        return self._write_settings

    # --- life cycle --------------------------------------------------------------------------

    async def initialize(self) -> Epoch:
        """As DurableDataLog says. Also raises LogFullError if there is no space for one journal; nothing is lost."""
        self._states.move_to(LogState.OPENING)
        try:
            with self._translated():
                await self._open()
        except BaseException:
            await self.close()
            raise
        if self._states.is_closed:
            # Closed while opening: what came into being since then is released as well.
            await self.close()
            raise DurableDataLogError(f"the log is closed path={self._path!r}")
        self._states.move_to(LogState.OPEN)
        return self._epoch

    async def _open(self) -> None:
        opening = LogOpening(
            directory=self._directory,
            files=self._files,
            executor=self._executor,
            settings=self._settings,
            rules=self._rules,
        )
        self._identity, epoch = await opening.claim(epoch_floor=self._epoch_floor)
        self._epoch = Epoch(epoch)
        self._pool = JournalPool(
            epoch=epoch,
            directory=self._directory,
            files=self._files,
            executor=self._executor,
            settings=self._settings,
            on_change=self._on_pool_change,
        )
        async with self._judged():
            self._opened = await opening.recover(log_id=self.log_id, epoch=epoch, pool=self._pool)
        self._writer = FrameWriter(
            first=self._opened.first,
            journals=self._opened.journals,
            log_path=self._path,
            directory=self._directory,
            pool=self._pool,
            executor=self._executor,
            pace=self._pace,
            settings=self._settings,
            rules=self._rules,
        )
        loop = asyncio.get_running_loop()
        self._tasks = (
            loop.create_task(self._writer.run(), name=f"log-writer {self._path}"),
            loop.create_task(self._fill(self._pool, self._writer), name=f"log-filler {self._path}"),
        )

    async def close(self) -> None:
        """As DurableDataLog says; the last synced frame is vouched for by a mark."""
        async with self._closing:
            if not self._states.is_closed:
                self._states.move_to(LogState.CLOSED)
            if self._writer is not None:
                self._writer.stop()
            if self._pool is not None:
                self._pool.stop()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await run_blocking(self._executor, self._close_files)

    def _close_files(self) -> None:
        for journal in (*self._discarded, *(self._writer.journals if self._writer else ())):
            journal.close()
        if self._pool is not None:
            self._pool.close()
        self._directory.unlock()

    # --- entries -----------------------------------------------------------------------------

    async def read(self) -> AsyncGenerator[LogEntry, None]:
        """As DurableDataLog says. Payloads of one frame share its memory."""
        opened = self._opened
        assert opened is not None, "read() comes after initialize()"
        assert not self._appended, "read() comes before the first append()"
        for group in frames_read_together(opened.frames):
            with self._translated():
                async with self._judged():
                    entries = await run_blocking(self._executor, self._read_group, group)
            for address, payload in entries:
                if address > opened.truncated_up_to:
                    yield LogEntry(LogAddress(address), payload)

    def _read_group(self, group: Sequence[FoundFrame]) -> list[tuple[int, memoryview]]:
        return [
            entry
            for frame in group
            if frame.header.entry_count
            for entry in read_durable_frame(self._files, frame)
        ]

    def append(
        self, entry: Sequence[BufferView], *, internal: bool = False
    ) -> "asyncio.Future[LogAddress]":
        """As DurableDataLog says. An entry above entry_bytes_max fails (AppendTooLargeError); the log stays open.

        Cancelling the future gives up waiting, not the entry.
        """
        writer = self._writer
        assert writer is not None, "append() comes after initialize()"
        self._appended = True
        length = len(entry[0]) if len(entry) == 1 else sum(map(len, entry))
        if length > self._settings.entry_bytes_max:
            too_large = AppendTooLargeError(
                length=length, length_max=self._settings.entry_bytes_max
            )
            future: asyncio.Future[LogAddress] = asyncio.get_running_loop().create_future()
            future.set_exception(too_large)
            return future
        return writer.append(entry, length=length, internal=internal)

    async def truncate(self, up_to: LogAddress) -> None:
        """As DurableDataLog says. Entries are gone at once; files go, oldest first, when all of theirs are."""
        assert self._writer is not None, "truncate() comes after initialize()"
        async with self._releasing:
            self._discarded.extend(await self._writer.truncate(up_to))
            try:
                await self._release_discarded()
            except OSError as error:
                failure = await self._blame(error)
                self._writer.fail(failure)
                raise failure from error

    async def _release_discarded(self) -> None:
        assert self._pool is not None, "an open log has a pool"
        while self._discarded:
            # It leaves the list only when it has gone somewhere else: a cancelled truncate() is continued by the next.
            if not await self._pool.offer(self._discarded[0]):
                await run_blocking(self._executor, self._discard, self._discarded[0])
            self._discarded.popleft()
        self._pool.look_again()

    def _discard(self, journal: Journal) -> None:
        journal.close()
        self._directory.remove_file(journal.path)

    async def check_owner(self) -> None:
        """As DurableDataLog says: one look at the name of the own epoch."""
        if self._states.present is not LogState.OPEN:
            raise DurableDataLogError(
                f"the log is {self._states.present.value} path={self._path!r}"
            )
        with self._translated():
            await run_blocking(self._executor, self._directory.check_epoch)

    def statistics(self) -> LogStatistics:
        writer, pool = self._writer, self._pool
        if writer is None or pool is None or self._opened is None:
            return LogStatistics(0, 0, 0, 0.0, 0, full=False)
        journals = (*writer.journals, *pool.spares)
        return LogStatistics(
            outstanding_entries=writer.pending.outstanding_entries,
            outstanding_bytes=writer.pending.outstanding_bytes,
            stored_bytes=sum(journal.size_bytes for journal in journals),
            sync_seconds_recent=writer.sync_seconds,
            cut_frames=self._opened.cut_frames,
            full=writer.full,
        )

    def check(self) -> None:
        """Prove the invariants of what is in memory."""
        if self._writer is not None:
            self._writer.check()

    # --- evidence ----------------------------------------------------------------------------

    async def disable(self, why: str) -> None:
        """As DurableDataLog says; once fenced, nothing: the evidence belongs to the new owner, and so does the log."""
        with self._translated():
            await run_blocking(self._executor, partial(self._directory.disable, why))

    async def enable(self) -> None:
        with self._translated():
            await run_blocking(self._executor, self._directory.enable)

    # --- inside ------------------------------------------------------------------------------

    async def _fill(self, pool: JournalPool, writer: FrameWriter) -> None:
        try:
            await pool.run()
        except OSError as error:
            writer.fail(await self._blame(error))
        except Exception as error:  # noqa: BLE001 - a task's top: without journals the log cannot go on
            writer.fail(error)

    def _on_pool_change(self) -> None:
        if self._writer is not None:
            self._writer.look_again()

    async def _blame(self, error: OSError) -> DurableDataLogError:
        """A new owner removes files that the one before it still makes: that one has been fenced, its disk is sound."""
        try:
            await run_blocking(self._executor, self._directory.check_epoch)
        except LogNotPrimaryError as fenced:
            return fenced
        except OSError:  # The first one says more.
            pass
        return self._disk_error(error)

    def _disk_error(self, error: OSError) -> DurableDataLogError:
        failure = DurableDataLogError(f"the disk of the log failed: {error} path={self._path!r}")
        failure.__cause__ = error
        return failure

    @asynccontextmanager
    async def _judged(self) -> AsyncIterator[None]:
        """A frame that is gone because another owner has moved on is no damage: then LogNotPrimaryError is raised."""
        try:
            yield
        except (LogCorruptedError, FileNotFoundError):
            await run_blocking(self._executor, self._directory.check_epoch)
            raise

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._disk_error(error) from error


def frames_read_together(frames: Sequence[FoundFrame]) -> Iterator[Sequence[FoundFrame]]:
    """The frames in order, in groups of _READ_AHEAD_BYTES; the last has what is left. O(frames)."""
    group: list[FoundFrame] = []
    byte_count = 0
    for frame in frames:
        group.append(frame)
        byte_count += frame.header.length
        if byte_count >= _READ_AHEAD_BYTES:
            yield group
            group = []
            byte_count = 0
    if group:
        yield group
