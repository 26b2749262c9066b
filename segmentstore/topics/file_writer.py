"""Makes the files of all partitions: a few at a time, those first that have waited for longest.

    a partition has batches that no file has -> note() -> due (`file_seconds`, `file_bytes`) -> make_file() -> sweep

Invariants:

- At most `files_at_once_max` files are being made, `large_files_at_once_max` of them large: that bounds the memory.
- Of one partition at most one file is made at a time. After a failure the partition is tried again in pauses that grow.
  The other partitions do not wait for it, nor for one whose bytes meet a bug.
- What is closed is forgotten; its next opening notes it again.
"""

import asyncio
import heapq
import logging
import math
from dataclasses import dataclass
from itertools import count
from typing import Final

from segmentstore.runtime.backoff import Backoff
from segmentstore.runtime.waiting import wait_for_event
from segmentstore.topics.errors import TopicError
from segmentstore.topics.partition import Partition
from segmentstore.topics.settings import TopicSettings

_LOG = logging.getLogger(__name__)

_RETRY_SECONDS_FIRST: Final = 1.0


@dataclass(slots=True)
class FileStatistics:
    """Since the process began."""

    files: int = 0
    batch_bytes: int = 0
    """Of the batches that became files."""
    failures: int = 0
    dead_files: int = 0
    """Deleted."""
    under_way: int = 0
    """Now."""


class FileWriter:
    """run() until cancelled. What was noted before waits for it."""

    def __init__(self, settings: TopicSettings) -> None:
        self._settings = settings
        self._due: dict[Partition, float] = {}
        """When each partition is to be looked at."""
        self._heap: list[tuple[float, int, Partition]] = []
        """The same, soonest first, and entries that are void because `_due` says otherwise."""
        self._numbers = count()
        self._backoffs: dict[Partition, Backoff] = {}
        self._working: set[Partition] = set()
        self._changed = asyncio.Event()
        self._large = asyncio.Semaphore(settings.large_files_at_once_max)
        self.statistics = FileStatistics()

    def note(self, partition: Partition) -> None:
        """The partition's `file_due_at` has changed."""
        due = partition.file_due_at
        if due is None or partition in self._working or partition in self._backoffs:
            return
        self._schedule(partition, due)

    def _schedule(self, partition: Partition, due: float) -> None:
        if self._due.get(partition, math.inf) <= due:
            return
        self._due[partition] = due
        heapq.heappush(self._heap, (due, next(self._numbers), partition))
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._settings.files_at_once_max):
                group.create_task(self._work(), name=f"files of topics {number}")

    async def _work(self) -> None:
        while True:
            partition = await self._next()
            self._working.add(partition)
            self.statistics.under_way += 1
            try:
                await self._make_files(partition)
            finally:
                self.statistics.under_way -= 1
                self._working.discard(partition)
            if partition not in self._due:
                self.note(partition)

    async def _next(self) -> Partition:
        loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            while self._heap:
                due, _, partition = self._heap[0]
                if self._due.get(partition) != due:
                    heapq.heappop(self._heap)
                    continue
                if due > loop.time():
                    break
                heapq.heappop(self._heap)
                del self._due[partition]
                if self._heap:
                    self._changed.set()  # for the others that wait
                return partition
            await wait_for_event(self._changed, until=self._heap[0][0] if self._heap else math.inf)

    async def _make_file(self, partition: Partition) -> int:
        """A small one stays small whatever is appended meanwhile."""
        small = self._settings.small_file_bytes
        if partition.hot_bytes <= small:
            return await partition.make_file(bytes_max=small)
        async with self._large:
            return await partition.make_file(is_filling=partition.is_filling)

    async def _make_files(self, partition: Partition) -> None:
        """All that are due of one partition, then a sweep if that is due."""
        numbers = self.statistics
        try:
            due = partition.file_due_at
            while due is not None and due <= asyncio.get_running_loop().time():
                made = await self._make_file(partition)
                numbers.files += made > 0
                numbers.batch_bytes += made
                if not made:
                    break
                due = partition.file_due_at
            numbers.dead_files += await partition.sweep_files()
        except TopicError as error:
            numbers.failures += 1
            if not partition.is_open:
                self._backoffs.pop(partition, None)
                _LOG.info("%s makes no file now: %s", partition.label, error)
                return
            backoff = self._backoffs.setdefault(
                partition,
                Backoff(
                    seconds_first=_RETRY_SECONDS_FIRST,
                    seconds_max=self._settings.file_retry_seconds_max,
                ),
            )
            pause = backoff.next_seconds()
            # Once: while Tier 2 is away every partition comes here again and again.
            level = logging.WARNING if backoff.attempts == 1 else logging.DEBUG
            _LOG.log(level, "%s makes its file later: %s", partition.label, error)
            self._schedule(partition, asyncio.get_running_loop().time() + pause)
        except Exception:  # noqa: BLE001  # topics go on without this file
            numbers.failures += 1
            _LOG.exception("%s makes no file for a while, because of a bug", partition.label)
            pause = self._settings.file_retry_seconds_max
            self._schedule(partition, asyncio.get_running_loop().time() + pause)
        else:
            self._backoffs.pop(partition, None)
