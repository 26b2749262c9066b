"""Where the tasks of a job run, and what a job that was killed finds of what it did.

- A task is a plain value and its work a function of it, so Spark's executors and this process give the same answers.
- Jobs run their tasks in waves: what a wave did is written down before the next begins.

`JobCheckpoint` writes it down in a directory of the job's own; a job that is killed goes on there when it is started
again:

    DIR/job.json          what the job is: another job, or the same one with other arguments, is refused
    DIR/done-00000007     one entry, JSON in UTF-8

- An entry is there as a whole or not at all: it is written beside its place, synced, and renamed.
- Entries are numbered without a gap in the order in which they were written; they are never changed.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from pyspark.sql import SparkSession

from segmentstore.contracts.errors import InvalidRequestError
from segmentstore.runtime.files import SystemFileSystem

T = TypeVar("T")
R = TypeVar("R")
_TASKS_PER_SLOT = 4
"""Of a wave: fewer and the slots wait for the longest task, more and a killed job does more of its work again."""
Entry = Mapping[str, object]
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
    """One job's entries. Everything blocks; it is for the driver."""

    def __init__(self, directory: Path, *, identity: Entry) -> None:
        """`identity`: JSON values that say which job this is."""
        self._directory = directory.absolute()
        self._identity = identity
        self._files = SystemFileSystem()
        self._count = 0

    def open(self) -> list[Entry]:
        """What was done before, in order; the directory is made if it is missing.

        Raises InvalidRequestError if it belongs to another job.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        described = self._directory / "job.json"
        if described.exists():
            found = json.loads(described.read_text())
            if found != self._identity:
                raise InvalidRequestError(
                    f"the directory belongs to another job directory={self._directory} job={found}"
                )
        else:
            self._write(described, self._identity)
        entries: list[Entry] = []
        while (path := self._place(len(entries))).exists():
            entries.append(json.loads(path.read_text()))
        self._count = len(entries)
        return entries

    def add(self, entry: Entry) -> None:
        """Durable when it returns."""
        self._write(self._place(self._count), entry)
        self._count += 1

    def _place(self, number: int) -> Path:
        return self._directory / f"done-{number:0{_ENTRY_NUMBER_DIGITS}d}"

    def _write(self, place: Path, value: Entry) -> None:
        beside = place.with_name(f".{place.name}.{os.getpid()}")
        file = self._files.open(str(beside), create=True)
        try:
            file.truncate(0)
            file.write_at(0, [json.dumps(value).encode()])
            file.sync_data()
        finally:
            file.close()
        self._files.rename(str(beside), str(place))
        self._files.sync_directory(str(self._directory))
