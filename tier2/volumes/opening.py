"""Opens an engine on a directory: one process at a time, index and volumes brought together.

    lock -> directories -> identity -> index -> tail replay, or rebuild if the index is missing or damaged
    -> reserve -> write queue -> compactor -> sync of an index that was made anew

A file beside the index says that it is being made anew, until what was made is synced:

    DIR/index.incomplete    there: the index counts for nothing, and the next start makes it anew

Invariants:

- What is opened first is closed last; an error half-way closes what was opened.
- Uploads of earlier processes go on; what was half-written of them is removed.
- A damaged index is moved aside, never overwritten; an index whose rebuild was cut off is made again from nothing.
- The mark `index.incomplete` is durable before the first row is loaded, and goes only after the database was synced
  whole. It cannot stand in the index: one that is loaded is not synced batch by batch, so after a power cut it may say
  anything. The index serves before it is synced, since the volumes say everything that it says.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from random import Random
from typing import TypeAlias

from segmentstore.contracts.errors import CorruptedDataError, StorageUnavailableError
from segmentstore.runtime.cancellation import finish_despite_cancellation
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.files import File, FileSystem
from tier2.volumes.compaction import Compactor
from tier2.volumes.deduplication import DuplicateCheck
from tier2.volumes.engine import VolumeEngine
from tier2.volumes.engine_failure import EngineFailure
from tier2.volumes.group_commit import DiskReserve, GroupCommit
from tier2.volumes.index import NEXT_SEQUENCE
from tier2.volumes.index_database import BufferedIndex, IndexDatabase, LmdbIndex, OutdatedIndexError
from tier2.volumes.multipart import MultipartUploads, UploadFiles
from tier2.volumes.rebuild import Rebuild
from tier2.volumes.recovery import ReplaySummary, TailReplay
from tier2.volumes.scrub import VolumeScrubber
from tier2.volumes.settings import VolumeSettings
from tier2.volumes.volume_files import (
    DamagedHeaderError,
    ForeignVolumeError,
    VolumeFiles,
    engine_identity,
)
from tier2.volumes.write_queue import WriteQueue

_LOGGER = logging.getLogger(__name__)
_CLEARED_PAGE_ROWS = 2000
_INCOMPLETE_MARK_SUFFIX = ".incomplete"
_Opened: TypeAlias = tuple[File, IndexDatabase, VolumeFiles, ReplaySummary]


class IncompleteIndexMark:
    """Of one index; put and taken away by the process that writes it."""

    def __init__(self, index_directory: str, *, files: FileSystem) -> None:
        self._path = index_directory + _INCOMPLETE_MARK_SUFFIX
        self._parent = index_directory.rsplit("/", 1)[0]
        self._files = files

    @property
    def is_there(self) -> bool:
        """Blocking, as all of this class."""
        return self._files.exists(self._path)

    def put(self) -> None:
        """Raises OSError."""
        self._files.open(self._path, create=True).close()
        self._files.sync_directory(self._parent)

    def take_away(self) -> None:
        """Raises OSError."""
        self._files.remove(self._path)
        self._files.sync_directory(self._parent)


class RebuiltIndexSync:
    """Syncs an index that was made anew while it serves: start(), close()."""

    def __init__(
        self, database: IndexDatabase, *, mark: IncompleteIndexMark, executor: Executor | None
    ) -> None:
        self._database = database
        self._mark = mark
        self._executor = executor
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        assert self._task is None, "the index is being settled already"
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run(), name="volumes: sync of a new index")

    async def close(self) -> None:
        """Waits until it is synced: the database may be closed then. Idempotent."""
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._executor, self._settle)
        except (OSError, CorruptedDataError) as error:
            _LOGGER.error("an index that was made anew cannot be synced: %s", error)

    def _settle(self) -> None:
        if self._mark.is_there:
            self._database.sync()
            self._mark.take_away()


class OpenEngine:
    """An engine with the lock that guards its directory, if it is the one that writes.

    The engine knows neither the lock nor how it was opened: one that only reads has no lock.
    """

    def __init__(
        self,
        *,
        engine: VolumeEngine,
        uploads: MultipartUploads | None,
        lock: File | None,
        replay: ReplaySummary,
        settling: RebuiltIndexSync | None = None,
    ) -> None:
        """`uploads` is None where the engine is open for reading only."""
        self.engine = engine
        self.uploads = uploads
        self.replay = replay
        self._lock = lock
        self._settling = settling
        self._closed = False

    async def close(self) -> None:
        """Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            if self.uploads is not None:
                # Before the engine and the lock: a thread may still be writing a part, or a volume.
                await self.uploads.close()
            if self._settling is not None:
                await self._settling.close()
            await self.engine.close()
        finally:
            if self._lock is not None:
                self._lock.close()


async def open_engine(
    directory: str,
    *,
    files: FileSystem,
    open_index: Callable[[str], IndexDatabase] = LmdbIndex,
    executor: Executor | None,
    readers: Executor | None = None,
    wall_clock: WallClock,
    random: Random,
    settings: VolumeSettings,
) -> OpenEngine:
    """Raises StorageUnavailableError if another process has it, CorruptedDataError, OSError.

    `open_index` opens the database in a directory it is given. `readers`: threads for callers that wait for an object;
    without it they share the executor.
    """
    loop = asyncio.get_running_loop()
    opening = partial(_open_directory, directory, files=files, open_index=open_index, random=random)
    lock, database, volumes, replay = await _opened_or_closed(
        loop.run_in_executor(executor, opening)
    )
    replay.log(directory)
    index = _buffered_index(database, settings)
    reserve = DiskReserve(f"{directory}/reserve", files=files, size=settings.reserve_bytes)
    compaction_reserve = DiskReserve(
        f"{directory}/compaction_reserve", files=files, size=settings.compaction_reserve_bytes
    )
    commit = GroupCommit(
        index=index,
        volumes=volumes,
        reserve=reserve,
        compaction_reserve=compaction_reserve,
        settings=settings,
        sequence_next=replay.sequence_next,
    )
    failure = EngineFailure()
    queue = WriteQueue(
        commit=commit,
        check=DuplicateCheck(volumes=volumes).check,
        executor=executor,
        readers=readers or executor,
        wall_clock=wall_clock,
        settings=settings,
        failure=failure,
        # It is made below, from this queue, which is not started before it is there.
        changed=lambda urgent: compactor.note_change(urgent),
    )
    compactor = Compactor(
        index=index,
        volumes=volumes,
        commit=commit,
        reserve=compaction_reserve,
        queue=queue,
        executor=executor,
        wall_clock=wall_clock,
        settings=settings,
    )
    scrubber = VolumeScrubber(
        f"{directory}/scrub",
        files=files,
        index=index,
        volumes=volumes,
        executor=readers or executor,
        wall_clock=wall_clock,
        settings=settings,
    )
    engine = VolumeEngine(
        index=index,
        volumes=volumes,
        queue=queue,
        compactor=compactor,
        scrubber=scrubber,
        executor=executor,
        readers=readers or executor,
        wall_clock=wall_clock,
        settings=settings,
        failure=failure,
    )
    uploads = MultipartUploads(
        UploadFiles(f"{directory}/temp", files=files),
        engine=engine,
        volumes=volumes,
        sequence_applied=lambda: commit.sequence_applied,
        executor=executor,
        wall_clock=wall_clock,
        random=random,
        settings=settings,
    )

    async def begin() -> None:
        await uploads.start()
        await loop.run_in_executor(executor, commit.hold_reserves)

    try:
        # To its end: a look-up in a thread may not find its database closed, nor a thread go on without the lock.
        await finish_despite_cancellation(begin())
    except BaseException:
        try:
            await finish_despite_cancellation(engine.close())
        finally:
            lock.close()
        raise
    settling = RebuiltIndexSync(
        database, mark=IncompleteIndexMark(f"{directory}/index", files=files), executor=executor
    )
    queue.start()
    compactor.start()
    scrubber.start()
    settling.start()
    # What earlier runs of the process left may be worth a look.
    compactor.note_change(urgent=False)
    return OpenEngine(engine=engine, uploads=uploads, lock=lock, replay=replay, settling=settling)


async def open_engine_for_reading(
    directory: str,
    *,
    files: FileSystem,
    open_index: Callable[[str], IndexDatabase],
    executor: Executor | None,
    readers: Executor | None = None,
    wall_clock: WallClock,
    random: Random,
    settings: VolumeSettings,
) -> OpenEngine:
    """Beside the process that writes: what it acknowledged a second ago can be read, and no verb that changes works.

    `open_index` opens the database read-only. Raises StorageUnavailableError while there is no whole index yet,
    CorruptedDataError, OSError.
    """

    def opening() -> tuple[IndexDatabase, VolumeFiles]:
        engine_id = engine_identity(directory, files, random)
        volumes = VolumeFiles(
            f"{directory}/volumes", files=files, random=random, engine_id=engine_id
        )
        database = open_index(f"{directory}/index")
        if database.get_certain(NEXT_SEQUENCE) is None and volumes.numbers():
            # Objects would seem to be missing that are only not indexed yet.
            database.close()
            raise StorageUnavailableError(
                f"the index of the volumes is being made directory={directory}", state="indexing"
            )
        return database, volumes

    database, volumes = await asyncio.get_running_loop().run_in_executor(executor, opening)
    index = _buffered_index(database, settings)
    failure = EngineFailure()
    unused = DiskReserve(f"{directory}/reserve", files=files, size=0)
    never = GroupCommit(
        index=index,
        volumes=volumes,
        reserve=unused,
        compaction_reserve=unused,
        settings=settings,
        sequence_next=0,
    )
    engine = VolumeEngine(
        index=index,
        volumes=volumes,
        # Never started: whatever is submitted is refused.
        queue=WriteQueue(
            commit=never,
            check=DuplicateCheck(volumes=volumes).check,
            executor=executor,
            readers=readers or executor,
            wall_clock=wall_clock,
            settings=settings,
            failure=failure,
        ),
        compactor=None,
        executor=executor,
        readers=readers or executor,
        wall_clock=wall_clock,
        settings=settings,
        failure=failure,
    )
    return OpenEngine(engine=engine, uploads=None, lock=None, replay=ReplaySummary())


async def _opened_or_closed(opening: "asyncio.Future[_Opened]") -> "_Opened":
    """A caller that is cancelled meanwhile leaves no lock behind: what is opened then is closed again."""
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close_opened)
        raise


def _close_opened(opening: "asyncio.Future[_Opened]") -> None:
    if opening.cancelled():
        return
    error = opening.exception()
    if error is not None:
        _LOGGER.warning("volumes for which no caller waits could not be opened: %s", error)
        return
    lock, database, _, _ = opening.result()
    database.close()
    lock.close()


def _open_directory(
    directory: str,
    *,
    files: FileSystem,
    open_index: Callable[[str], IndexDatabase],
    random: Random,
) -> _Opened:
    for path in (directory, f"{directory}/volumes", f"{directory}/index", f"{directory}/temp"):
        files.make_directories(path)
    lock = files.open(f"{directory}/lock", create=True)
    try:
        if not lock.lock_exclusive():
            raise StorageUnavailableError(
                f"another process has these volumes directory={directory}", state="in_use"
            )
        engine_id = engine_identity(directory, files, random)
        volumes = VolumeFiles(
            f"{directory}/volumes", files=files, random=random, engine_id=engine_id
        )
        index, replay = _open_index(f"{directory}/index", files, open_index, volumes)
    except BaseException:
        lock.close()
        raise
    return lock, index, volumes, replay


def _open_index(
    directory: str,
    files: FileSystem,
    open_index: Callable[[str], IndexDatabase],
    volumes: VolumeFiles,
) -> tuple[IndexDatabase, ReplaySummary]:
    """The index, level with the volumes; made anew from them if it is not there or cannot be read."""
    # Before anything is moved or made anew: are these volumes ours at all?
    numbers = volumes.numbers()
    for number in numbers:
        with contextlib.suppress(DamagedHeaderError):
            volumes.header(number)
    index: IndexDatabase | None = None
    mark = IncompleteIndexMark(directory, files=files)
    if mark.is_there:
        # Nothing of it counts, and a power cut may have made anything of it.
        _empty_directory(directory, files)
        return _make_index_anew(directory, mark, open_index, volumes, "its rebuild was cut off")
    try:
        index = open_index(directory)
        if index.get_certain(NEXT_SEQUENCE) is not None or not numbers:
            return index, TailReplay(index=index, volumes=volumes).run()
        why = "it was not there"
        is_new = not index.scan(b"", b"\xff", 1)
    except ForeignVolumeError:
        _close_index(index)
        raise
    except OutdatedIndexError as error:
        # Its rows can be read, but not be trusted; its space is needed for the new one.
        mark.put()
        _empty_directory(directory, files)
        return _make_index_anew(directory, mark, open_index, volumes, str(error))
    except CorruptedDataError as error:
        why, is_new = f"it is damaged: {error}", False
    except BaseException:
        _close_index(index)
        raise
    _close_index(index)
    if not is_new:
        aside = _move_index_aside(directory, files)
        _LOGGER.error("the index of the volumes is made anew, %s: moved to %s", why, aside)
    return _make_index_anew(directory, mark, open_index, volumes, why)


def _make_index_anew(
    directory: str,
    mark: IncompleteIndexMark,
    open_index: Callable[[str], IndexDatabase],
    volumes: VolumeFiles,
    why: str,
) -> tuple[IndexDatabase, ReplaySummary]:
    mark.put()
    index = open_index(directory)
    try:
        _clear_index(index)
        return index, Rebuild(index=index, volumes=volumes, why=why).run()
    except BaseException:
        index.close()
        raise


def _buffered_index(database: IndexDatabase, settings: VolumeSettings) -> BufferedIndex:
    return BufferedIndex(
        database, rows_max=settings.index_buffer_rows, bytes_max=settings.index_buffer_bytes
    )


def _close_index(index: IndexDatabase | None) -> None:
    if index is not None:
        index.close()


def _clear_index(index: IndexDatabase) -> None:
    """For an index that is not in its directory."""
    while rows := index.scan(b"", b"\xff", _CLEARED_PAGE_ROWS):
        index.apply([(key, None) for key, _ in rows])


def _move_index_aside(directory: str, files: FileSystem) -> str:
    number = 1
    while files.exists(f"{directory}.damaged-{number}"):
        number += 1
    aside = f"{directory}.damaged-{number}"
    files.rename(directory, aside)
    files.sync_directory(directory.rsplit("/", 1)[0])
    files.make_directories(directory)
    return aside


def _empty_directory(directory: str, files: FileSystem) -> None:
    """Remove everything in a directory of temporary files."""
    for name in files.list(directory):
        path = f"{directory}/{name}"
        if files.is_directory(path):
            _empty_directory(path, files)
            files.remove_directory(path)
        else:
            files.remove(path)
