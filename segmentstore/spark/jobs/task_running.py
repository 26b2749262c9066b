"""Where the tasks of a job run: on Spark's executors, or here.

- A task is a plain value and its work a function of it, so both ways give the same answers.
- Jobs run their tasks in waves: what a wave did is written down before the next begins.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

_TASKS_PER_SLOT = 4
"""Of a wave: fewer and the slots wait for the longest task, more and a killed job does more of its work again."""


class TaskRunning(Protocol):
    """Runs one wave."""

    @property
    def wave_tasks(self) -> int:
        """Tasks that make a good wave."""

    def run(self, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        """The answers in the order of the tasks. Whatever ends a task for good ends the wave."""


class SparkTasks:
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


class TasksHere:
    """One after the other in this process: for stores too small to be worth a cluster."""

    wave_tasks = _TASKS_PER_SLOT

    def run(self, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        return [work(task) for task in tasks]


def waves(tasks: Sequence[T], wave_tasks: int) -> Iterator[Sequence[T]]:
    """The tasks in order, so many at a time."""
    for first in range(0, len(tasks), wave_tasks):
        yield tasks[first : first + wave_tasks]
