"""Where the tasks of a job run, and what a job that was killed finds of what it did.

- A task is a plain value and its work a function of it, so Spark's executors and this process give the same answers.
- Jobs run their tasks in waves: what a wave did is written down before the next begins.

`JobCheckpoint` writes it down in a directory of the job's own; a job that is killed goes on there when it is started
again:

    DIR/job.json          what the job is: another job, or the same one with other arguments, is refused
    DIR/done-00000007     one entry, JSON in UTF-8
    DIR/lock              held by the run that works there

- One run at a time has the directory: it is locked from `open()` to `close()`, or to the end of the process.
- An entry is there as a whole or not at all, and is never replaced: of two runs that write one of the same number, by
  whatever way they met, one wins, and the other one ends before it does anything that is not written down.
- Entries are numbered without a gap in the order in which they were written; they are never changed.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from pyspark.sql import SparkSession

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.runtime.entropy import system_random
from segmentstore.runtime.files import (
    File,
    FileSystem,
    SystemFileSystem,
    create_whole,
    read_whole,
    remove_unfinished,
)
from segmentstore.spark.jobs.run_lock import JobInUseError, lock_run

T = TypeVar("T")
R = TypeVar("R")
_TASKS_PER_SLOT = 4
"""Of a wave: fewer and the slots wait for the longest task, more and a killed job does more of its work again."""
Entry = Mapping[str, object]
Progress = Callable[[int, int], None]
"""Called with what is done so far and with all that there is, in units of the job."""
_ENTRY_NUMBER_DIGITS = 8


class TaskRunner(Protocol):
    """Runs one wave."""

    @property
    def wave_tasks(self) -> int:
        """Tasks that make a good wave."""

    def run(self, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        """The answers in the order of the tasks. Whatever ends a task for good ends the wave."""


class SparkTaskRunner:
    """One Spark task for each."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @property
    def wave_tasks(self) -> int:
        return self._spark.sparkContext.defaultParallelism * _TASKS_PER_SLOT

    def run(self, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        if not tasks:
            return []
        return self._spark.sparkContext.parallelize(tasks, len(tasks)).map(work).collect()


class LocalTaskRunner:
    """One after the other in this process: for stores too small to be worth a cluster."""

    wave_tasks = _TASKS_PER_SLOT

    def run(self, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        return [work(task) for task in tasks]


def waves(tasks: Sequence[T], wave_tasks: int) -> Iterator[Sequence[T]]:
    """The tasks in order, so many at a time."""
    for first in range(0, len(tasks), wave_tasks):
        yield tasks[first : first + wave_tasks]


class JobCheckpoint:
    """One job's entries: `open()` once, `close()` in the end. Everything blocks; it is for the driver."""

    def __init__(
        self, directory: Path, *, identity: Entry, files: FileSystem | None = None
    ) -> None:
        """`identity`: JSON values that say which job this is."""
        self._directory = str(directory.absolute())
        self._identity = identity
        self._files = files or SystemFileSystem()
        self._random = system_random()
        self._lock: File | None = None
        self._count = 0

    def open(self) -> list[Entry]:
        """What was done before, in order; the directory is made if it is missing, and is locked.

        Raises JobInUseError; InvalidRequestError if it belongs to another job. Then nothing stays locked.
        """
        self._files.make_directories(self._directory)
        self._lock = lock_run(self._files, f"{self._directory}/lock")
        try:
            remove_unfinished(self._files, self._directory)
            self._recognize()
            return self._read_entries()
        except BaseException:
            self.close()
            raise

    def add(self, entry: Entry) -> None:
        """Durable when it returns. Raises JobInUseError if another run wrote the entry of that number."""
        assert self._lock is not None, f"the directory is not open path={self._directory}"
        place = self._place(self._count)
        if not self._create(place, entry):
            raise JobInUseError(
                f"another run of the job wrote down what this one was about to: end it, and start again path={place}"
            )
        self._count += 1

    def close(self) -> None:
        """The next run may begin. Idempotent."""
        if self._lock is not None:
            lock, self._lock = self._lock, None
            lock.close()

    def _recognize(self) -> None:
        """Which job the directory belongs to: this one from now on, if it had none."""
        described = f"{self._directory}/job.json"
        if self._create(described, self._identity):
            return
        found = self._read(described)
        # An older version of the job may have said less of itself: what it said has to agree.
        if any(self._identity.get(key) != value for key, value in found.items()):
            raise InvalidRequestError(
                f"the directory belongs to another job directory={self._directory} job={found}"
            )

    def _read_entries(self) -> list[Entry]:
        entries: list[Entry] = []
        while self._files.exists(place := self._place(len(entries))):
            entries.append(self._read(place))
        # Before anything is done because of them: a run that was killed may have left their names to the page cache.
        self._files.sync_directory(self._directory)
        self._count = len(entries)
        return entries

    def _place(self, number: int) -> str:
        return f"{self._directory}/done-{number:0{_ENTRY_NUMBER_DIGITS}d}"

    def _read(self, place: str) -> Entry:
        value: Entry = json.loads(read_whole(self._files, place))
        return value

    def _create(self, place: str, value: Entry) -> bool:
        """False if there is one."""
        try:
            create_whole(self._files, place, json.dumps(value).encode(), random=self._random)
        except FileExistsError:
            return False
        return True
