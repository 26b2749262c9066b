"""Processes that work side by side on one simulated disk, and die in the middle.

Each process is a thread, and one runs at a time: before every call of its file system it stops, and a seed chooses who
goes on, and who dies there. So a seed is one order of all calls, and always the same one.
"""

import threading
from collections.abc import Callable
from random import Random
from typing import cast

from segmentstore.contracts.errors import StorageError
from segmentstore.runtime.files import File, FileSystem
from segmentstore.spark.jobs.run_lock import JobInUseError
from tests.sim.disk import DeadProcessError, Mount, SimulatedDisk

Work = Callable[[FileSystem, Callable[[], None]], None]
"""What a process does: with its files, and with what it calls before any other thing that others may see."""


class KilledError(BaseException):
    """The end of a process: nothing in it may go on."""


class _SteppingMount(Mount):
    """Stops before every call."""

    def __init__(self, disk: SimulatedDisk, process: str, step: Callable[[], None]) -> None:
        super().__init__(disk, process)
        self._step = step

    def enter(self, kind: str, path: str) -> None:
        if self.alive:
            self._step()
        super().enter(kind, path)


class _UnlockedFile:
    """Everybody gets its lock."""

    def __init__(self, file: File) -> None:
        self._file = file

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def lock_exclusive(self) -> bool:
        return True


class FilesWithoutLocks:
    """Files of a machine that lets every process have a lock."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files

    def __getattr__(self, name: str) -> object:
        return getattr(self._files, name)

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> File:
        return cast(
            "File", _UnlockedFile(self._files.open(path, create=create, exclusive=exclusive))
        )


class Process:
    """One of them."""

    def __init__(self, disk: SimulatedDisk, name: str, work: Work) -> None:
        self.outcome = ""
        """ended, killed, refused; or failed, if another one took away what it worked with."""
        self.failure: BaseException | None = None
        self._work = work
        self._is_killed = False
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        self._mount = _SteppingMount(disk, name, self._step)
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()
        self._stopped.acquire()

    def go_on(self, *, kill: bool) -> None:
        """To its next call, or to its end."""
        self._is_killed = kill
        self._go.release()
        self._stopped.acquire()
        if self.outcome:
            self._thread.join()

    def _step(self) -> None:
        self._stopped.release()
        self._go.acquire()
        if self._is_killed:
            self._mount.kill(late_writes=0)
            raise KilledError

    def _run(self) -> None:
        outcome = "ended"
        try:
            self._step()
            self._work(self._mount, self._step)
        except JobInUseError:
            outcome = "refused"
        except (KilledError, DeadProcessError):
            outcome = "killed"
        except (OSError, StorageError):
            outcome = "failed"
        except BaseException as failure:  # noqa: BLE001  # raised by whoever waits for the process
            self.failure = failure
            outcome = "broken"
        self._mount.kill(late_writes=0)
        self.outcome = outcome
        self._stopped.release()


def run_side_by_side(
    disk: SimulatedDisk, works: list[Work], random: Random, *, kill_chance: float
) -> list[str]:
    """The outcome of each. A process gets a few turns in a row, so that others find it at rest in any place."""
    processes = [Process(disk, f"process {number}", work) for number, work in enumerate(works)]
    while alive := [each for each in processes if not each.outcome]:
        chosen = random.choice(alive)
        for _ in range(random.choice((1, 1, 2, 5, 40))):
            if not chosen.outcome:
                chosen.go_on(kill=random.random() < kill_chance)
    for each in processes:
        if each.failure is not None:
            raise each.failure
    return [each.outcome for each in processes]
