"""A job that is killed: its tasks run for some waves, and then nothing does."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from segmentstore.spark.jobs.job_execution import LocalTaskRunner

T = TypeVar("T")
R = TypeVar("R")


class KilledError(Exception):
    """The job's end, half-way."""


class FailingTasks(LocalTaskRunner):
    """One task a wave, and a number of waves."""

    wave_tasks = 1

    def __init__(self, waves: int) -> None:
        self._left = waves

    def run(self, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        if self._left == 0:
            raise KilledError
        self._left -= 1
        return super().run(work, tasks)


class BusyTasks(LocalTaskRunner):
    """While a wave runs the owner does something."""

    def __init__(self, meanwhile: Callable[[], None], *, times: int) -> None:
        self._meanwhile = meanwhile
        self._left = times

    def run(self, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        if self._left:
            self._left -= 1
            self._meanwhile()
        return super().run(work, tasks)
