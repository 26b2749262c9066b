"""File logs to test: on the simulated disk, and in a directory of this machine."""

from concurrent.futures import Executor, Future
from dataclasses import replace
from random import Random
from typing import Any

from segmentstore.contracts.durable_data_log import DurableDataLog
from segmentstore.runtime.files import SystemFile, SystemFileSystem
from tests.sim.disk import Mount, SimulatedDisk
from tier1.file_log.frame_flush import InlineSyncPolicy
from tier1.file_log.log import FileDurableDataLog
from tier1.file_log.settings import DurabilityRules, FileLogSettings

KIB = 1024

SMALL = FileLogSettings(
    entry_bytes_max=64 * KIB,
    outstanding_bytes_max=256 * KIB,
    batch_bytes_max=64 * KIB,
    ahead_bytes_min=8 * KIB,
    journal_bytes_first=96 * KIB,
    journal_bytes_max=192 * KIB,
    spare_journals=1,
    recycled_journals_max=2,
    fill_step_bytes=64 * KIB,
    reserve_bytes=96 * KIB,
    free_bytes_min=0,
    space_poll_seconds=0.02,
    mark_delay_seconds=0.02,
    copy_bytes_max=8 * KIB,
)
"""Files of a few frames, so that every corner is turned soon."""

TINY = replace(
    SMALL,
    entry_bytes_max=8 * KIB,
    batch_bytes_max=8 * KIB,
    ahead_bytes_min=4 * KIB,
    journal_bytes_first=32 * KIB,
    journal_bytes_max=32 * KIB,
    reserve_bytes=16 * KIB,
    fill_step_bytes=32 * KIB,
    copy_bytes_max=0,
)
"""Two to eight frames a file."""


LEFT_FREE_BYTES = 1 << 20


class InlineExecutor(Executor):
    """Runs every job at once, so that what a test does is the same every time."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - it belongs to whoever submitted the job
            future.set_exception(error)
        return future


class SimulatedLogWorld:
    """A log on a simulated disk."""

    path = "/data/log"

    def __init__(
        self,
        settings: FileLogSettings = SMALL,
        *,
        disk: SimulatedDisk | None = None,
        rules: DurabilityRules | None = None,
        pace: InlineSyncPolicy | None = None,
        seed: int = 1,
    ) -> None:
        self.pace = pace
        self.settings = settings
        self.disk = disk or SimulatedDisk()
        self.rules = rules
        self.random = Random(seed)
        self.mounts: dict[int, Mount] = {}
        self.processes = 0

    def log(self) -> FileDurableDataLog:
        return self._log(self.settings)

    def take_over(self) -> FileDurableDataLog:
        return self._log(replace(self.settings, takeover=True))

    def _log(self, settings: FileLogSettings) -> FileDurableDataLog:
        self.processes += 1
        mount = self.disk.mount(f"process{self.processes}")
        log = FileDurableDataLog(
            self.path,
            files=mount,
            executor=InlineExecutor(),
            random=self.random,
            settings=settings,
            owner=f"pid {self.processes}",
            pace=self.pace,
            rules=self.rules,
        )
        self.mounts[id(log)] = mount
        return log

    def mount_of(self, log: DurableDataLog) -> Mount:
        return self.mounts[id(log)]

    async def kill(self, log: DurableDataLog) -> None:
        self.mounts[id(log)].kill(late_writes=0)
        await log.close()  # so that its tasks end; on the disk it can do nothing any more

    def fill(self) -> None:
        self.disk.capacity_bytes = self.disk.used_bytes()

    def free(self) -> None:
        self.disk.capacity_bytes = None


class _TrackingFileSystem(SystemFileSystem):
    """The real files of one pretended process."""

    def __init__(self, world: "DirectoryLogWorld") -> None:
        self._world = world
        self.opened: list[SystemFile] = []

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> SystemFile:
        file = super().open(path, create=create, exclusive=exclusive)
        self.opened.append(file)
        return file

    def free_bytes(self, path: str) -> int:
        return LEFT_FREE_BYTES - 1 if self._world.filled else super().free_bytes(path)


class DirectoryLogWorld:
    """A log in a real directory."""

    def __init__(self, path: str, settings: FileLogSettings = SMALL) -> None:
        self.path = path
        # It is the file system's free_bytes() that lies: of a full disk there is left what is kept free for others.
        self.settings = replace(settings, free_bytes_min=LEFT_FREE_BYTES)
        self.filled = False
        self._files: dict[int, _TrackingFileSystem] = {}

    def log(self) -> FileDurableDataLog:
        return self._log(self.settings)

    def take_over(self) -> FileDurableDataLog:
        return self._log(replace(self.settings, takeover=True))

    def _log(self, settings: FileLogSettings) -> FileDurableDataLog:
        files = _TrackingFileSystem(self)
        log = FileDurableDataLog(
            self.path,
            files=files,
            executor=None,
            random=Random(len(self._files)),
            settings=settings,
        )
        self._files[id(log)] = files
        return log

    async def kill(self, log: DurableDataLog) -> None:
        for file in self._files[id(log)].opened:
            file.close()
        await log.close()

    def fill(self) -> None:
        self.filled = True

    def free(self) -> None:
        self.filled = False
