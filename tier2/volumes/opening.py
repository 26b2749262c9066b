"""Opens an engine on a directory: one process at a time, index and volumes brought together.

    lock -> directories -> identity -> index (rebuilt if it is missing or damaged) -> tail replay -> commit line

    DIR/identity    b"S4ENGINE", u8 version 1, 7 zero bytes, 16 bytes engine id, u32 CRC32; written once

Invariants:

- What is opened first is closed last; an error half-way closes what was opened.
- The identity is durable before the first volume; a directory with volumes and without an identity is refused, never
  given a new one.
- Temporary parts of uploads whose process is gone are removed.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from random import Random

from segmentstore.codec.crc32 import crc32_of
from segmentstore.contracts.errors import CorruptedDataError, StorageUnavailableError
from segmentstore.runtime.clock import WallClock
from segmentstore.runtime.files import File, FileSystem
from tier2.volumes.commit_line import CommitLine
from tier2.volumes.engine import VolumeEngine
from tier2.volumes.group_commit import GroupCommit
from tier2.volumes.index_database import IndexDatabase
from tier2.volumes.settings import VolumeSettings
from tier2.volumes.tail_replay import ReplaySummary, TailReplay
from tier2.volumes.volume_files import VolumeFiles

_LOGGER = logging.getLogger(__name__)
_MAGIC = b"S4ENGINE\x01" + bytes(7)
_IDENTITY_BYTES = 36


class OpenEngine:
    """An engine with the lock that guards its directory, if it is the one that writes."""

    def __init__(self, *, engine: VolumeEngine, lock: File | None, replay: ReplaySummary) -> None:
        self.engine = engine
        self.replay = replay
        self._lock = lock

    async def close(self) -> None:
        await self.engine.close()
        if self._lock is not None:
            self._lock.close()


def is_engine_directory(directory: str, files: FileSystem) -> bool:
    """Whether volumes were opened here before."""
    return files.exists(f"{directory}/identity") and files.is_directory(f"{directory}/volumes")


async def open_engine(
    directory: str,
    *,
    files: FileSystem,
    open_index: Callable[[str], IndexDatabase],
    executor: Executor | None,
    wall_clock: WallClock,
    random: Random,
    settings: VolumeSettings,
) -> OpenEngine:
    """Raises StorageUnavailableError if another process has it, CorruptedDataError, OSError.

    `open_index` opens the database in a directory it is given.
    """
    loop = asyncio.get_running_loop()
    opening = partial(_open, directory, files=files, open_index=open_index, random=random)
    lock, index, volumes, replay = await loop.run_in_executor(executor, opening)
    commit = GroupCommit(
        index=index, volumes=volumes, settings=settings, sequence_next=replay.sequence_next
    )
    line = CommitLine(commit=commit, executor=executor, wall_clock=wall_clock, settings=settings)
    engine = VolumeEngine(
        index=index,
        volumes=volumes,
        line=line,
        executor=executor,
        wall_clock=wall_clock,
        settings=settings,
    )
    line.start()
    for number, stretch in replay.damaged:
        _LOGGER.warning(
            "volume=%d has no good record in %d bytes at offset %d: %s",
            number,
            stretch.length,
            stretch.offset,
            stretch.why,
        )
    return OpenEngine(engine=engine, lock=lock, replay=replay)


async def open_engine_for_reading(
    directory: str,
    *,
    files: FileSystem,
    open_index: Callable[[str], IndexDatabase],
    executor: Executor | None,
    wall_clock: WallClock,
    random: Random,
    settings: VolumeSettings,
) -> OpenEngine:
    """Beside the process that writes: what it has acknowledged can be read, and no verb that changes works.

    `open_index` opens the database read-only. Raises CorruptedDataError, OSError.
    """

    def opening() -> tuple[IndexDatabase, VolumeFiles]:
        engine_id = _identity(directory, files, random)
        volumes = VolumeFiles(
            f"{directory}/volumes", files=files, random=random, engine_id=engine_id
        )
        return open_index(f"{directory}/index"), volumes

    index, volumes = await asyncio.get_running_loop().run_in_executor(executor, opening)
    never = GroupCommit(index=index, volumes=volumes, settings=settings, sequence_next=0)
    engine = VolumeEngine(
        index=index,
        volumes=volumes,
        # Never started: whatever is submitted is refused.
        line=CommitLine(commit=never, executor=executor, wall_clock=wall_clock, settings=settings),
        executor=executor,
        wall_clock=wall_clock,
        settings=settings,
    )
    return OpenEngine(engine=engine, lock=None, replay=ReplaySummary())


def _open(
    directory: str,
    *,
    files: FileSystem,
    open_index: Callable[[str], IndexDatabase],
    random: Random,
) -> tuple[File, IndexDatabase, VolumeFiles, ReplaySummary]:
    for path in (directory, f"{directory}/volumes", f"{directory}/index", f"{directory}/temp"):
        files.make_directories(path)
    lock = files.open(f"{directory}/lock", create=True)
    try:
        if not lock.lock_exclusive():
            raise StorageUnavailableError(
                f"another process has these volumes directory={directory}", state="in_use"
            )
        engine_id = _identity(directory, files, random)
        volumes = VolumeFiles(
            f"{directory}/volumes", files=files, random=random, engine_id=engine_id
        )
        index = open_index(f"{directory}/index")
        try:
            replay = TailReplay(index=index, volumes=volumes).run()
        except BaseException:
            index.close()
            raise
    except BaseException:
        lock.close()
        raise
    return lock, index, volumes, replay


def _identity(directory: str, files: FileSystem, random: Random) -> bytes:
    path = f"{directory}/identity"
    if not files.exists(path):
        if files.list(f"{directory}/volumes"):
            raise CorruptedDataError(f"volumes without an identity directory={directory}")
        _write_identity(directory, path, files, random)
    file = files.open(path)
    try:
        content = file.read_at(0, _IDENTITY_BYTES + 1)
    finally:
        file.close()
    body = content[:-4]
    if (
        len(content) != _IDENTITY_BYTES
        or not body.startswith(_MAGIC)
        or crc32_of(body) != int.from_bytes(content[-4:], "big")
    ):
        raise CorruptedDataError(f"the identity of the volumes is damaged path={path}")
    return body[len(_MAGIC) :]


def _write_identity(directory: str, path: str, files: FileSystem, random: Random) -> None:
    temporary = f"{directory}/identity.new"
    body = _MAGIC + random.randbytes(16)
    file = files.open(temporary, create=True)
    try:
        file.write_at(0, [body + crc32_of(body).to_bytes(4, "big")])
        file.sync_data()
    finally:
        file.close()
    files.rename(temporary, path)
    files.sync_directory(directory)
