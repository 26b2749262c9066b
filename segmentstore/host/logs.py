"""The logs of Tier 1, by what the settings call their kind.

    file              journals under DIR/tier1/container-0003: the default
    bookkeeper://...  ledgers on the bookies of a cluster
    memory            forgotten with the process

Invariants:

- What outlives a container object is made once, here: threads, clients, the contents of logs in memory. A log object is
  made anew each time a container starts.
- Of a store in BookKeeper the owner is the process that opened the logs last. A container that was fenced by
  another process stays down here: two nodes that took the logs from each other in turn would both be of no use.
"""

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from random import Random
from typing import Protocol

from segmentstore.contracts.durable_data_log import DurableDataLog
from segmentstore.contracts.errors import DurableDataLogError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.host.data_directory import DataDirectory
from segmentstore.host.log_cluster import OpenedCluster, log_in_cluster, log_settings
from segmentstore.host.settings import BookKeeperSettings
from segmentstore.host.store_record import log_record_path
from segmentstore.runtime.clock import short_interval_seconds
from segmentstore.runtime.entropy import random_id
from segmentstore.runtime.files import FileSystem
from segmentstore.runtime.task_set import TaskSet
from segmentstore.runtime.thread_pool import FairThreadPool
from tier1.bookkeeper.ledger_appends import WriterState
from tier1.bookkeeper.log import BookKeeperDurableDataLog
from tier1.bookkeeper.log_record import RECORD_BYTES_MAX
from tier1.bookkeeper.rehearsal import rehearse
from tier1.bookkeeper.settings import GiveUpSettings
from tier1.file_log.frame_flush import InlineSyncPolicy
from tier1.file_log.log import FileDurableDataLog
from tier1.file_log.settings import FileLogSettings
from tier1.memory_log import MemoryDurableDataLog, MemoryLogStore

logger = logging.getLogger(__name__)

_THREADS_MAX = 16
_LOOK_SECONDS = 5.0
"""Between two looks at how many bookies take writes."""


class ContainerLogs(Protocol):
    """The logs of a store's containers."""

    async def start(self) -> None:
        """Before any log is opened."""

    def of(self, container_id: ContainerId) -> DurableDataLog:
        """A log object, to be initialized once."""

    def metrics(self) -> Mapping[str, float]:
        """Numbers for `/metrics` of no single container."""

    def complaints(self) -> Sequence[str]:
        """What `/health` says of them all."""

    async def close(self) -> None:
        """When every log object is closed. Idempotent."""


class MemoryLogs:
    """As durable as the process."""

    def __init__(self, *, container_count: int, random: Random) -> None:
        self._stores = [MemoryLogStore(random_id(random)) for _ in range(container_count)]

    async def start(self) -> None:
        """Nothing of its own."""

    def of(self, container_id: ContainerId) -> DurableDataLog:
        return MemoryDurableDataLog(self._stores[container_id])

    def metrics(self) -> Mapping[str, float]:
        return {}

    def complaints(self) -> Sequence[str]:
        return ()

    async def close(self) -> None:
        """Nothing of its own."""


class FileLogs:
    """Journals in the data directory. Each container has a lane of the threads: none waits behind another's sync."""

    def __init__(
        self,
        *,
        directory: DataDirectory,
        container_count: int,
        files: FileSystem,
        random: Random,
        settings: FileLogSettings,
    ) -> None:
        self._directory = directory
        self._files = files
        self._random = random
        self._settings = settings
        self._threads = FairThreadPool(
            thread_count=min(2 * container_count, _THREADS_MAX), name="tier1"
        )
        self._lanes = [self._threads.lane() for _ in range(container_count)]
        self._sync_pace = InlineSyncPolicy(now=short_interval_seconds)

    async def start(self) -> None:
        """Nothing of its own."""

    def of(self, container_id: ContainerId) -> DurableDataLog:
        return FileDurableDataLog(
            self._directory.log_path(container_id),
            files=self._files,
            executor=self._lanes[container_id],
            random=self._random,
            settings=self._settings,
            owner=f"process_id={os.getpid()}",
            pace=self._sync_pace,
        )

    def metrics(self) -> Mapping[str, float]:
        return {}

    def complaints(self) -> Sequence[str]:
        return ()

    async def close(self) -> None:
        self._threads.close()


class BookKeeperLogs:
    """Ledgers on the bookies of one cluster. start(), then close()."""

    def __init__(
        self,
        opened: OpenedCluster,
        *,
        settings: BookKeeperSettings,
        container_count: int,
        random: Random,
        give_up: GiveUpSettings | None = None,
    ) -> None:
        """`give_up`: None where no other process can take a container over."""
        self._opened = opened
        self._container_count = container_count
        self._give_up = give_up
        self._random = random
        self._settings = settings
        self._logs: dict[ContainerId, BookKeeperDurableDataLog] = {}
        """The newest of each container. It may be closed: the container may be at another node by now."""
        self._tasks = TaskSet(on_failure=self._stopped_watching)
        self._living: int | None = None
        self._unknown = ""
        """Why nothing is known of the bookies."""

    async def start(self) -> None:
        """Watch the bookies, until close(). That there are too few is said at once, and no reason to end.

        Where other processes serve meanwhile, what the first log would find cold is done before.
        """
        await self._look()
        if self._give_up is not None:
            await rehearse(
                (log_record_path(number) for number in range(self._container_count)),
                ledgers=self._opened.ledgers,
                metadata=self._opened.metadata,
                settings=log_settings(self._settings),
            )
        for complaint in self.complaints():
            logger.warning("%s", complaint)
        self._tasks.start(self._watch(), name="bookies")

    def of(self, container_id: ContainerId) -> DurableDataLog:
        log = log_in_cluster(
            self._opened,
            container_id,
            settings=self._settings,
            random=self._random,
            give_up=self._give_up,
        )
        self._logs[container_id] = log
        return log

    def metrics(self) -> Mapping[str, float]:
        states = self._states().values()
        return {
            "bookkeeper_living_bookies": -1 if self._living is None else self._living,
            "bookkeeper_ensemble_bookies": self._settings.ensemble_count,
            "bookkeeper_ledgers_with_few_bookies": sum(each.has_few_bookies for each in states),
            "bookkeeper_logs_waiting": sum(each.waiting_seconds > 0 for each in states),
            "bookkeeper_waiting_seconds": max((each.waiting_seconds for each in states), default=0),
            "bookkeeper_ledgers": sum(len(log.record.ledgers) for log in self._opened_logs()),
        }

    def complaints(self) -> Sequence[str]:
        told = []
        if self._unknown:
            told.append(
                "how many bookies take writes is not known, and appends go on while those of their ledgers answer:"
                f" {self._unknown}"
            )
        elif self._living is not None and self._living < self._settings.ensemble_count:
            told.append(self._of_few_bookies(self._living))
        for container_id, log in sorted(self._logs.items()):
            if log.writer_state() is None or 2 * log.record.encoded_bytes < RECORD_BYTES_MAX:
                continue
            told.append(
                f"the log of container {container_id} has {len(log.record.ledgers)} ledgers, and"
                f" {len(log.record.garbage)} to delete: {log.record.encoded_bytes / RECORD_BYTES_MAX:.0%} of what its"
                " record in ZooKeeper has room for; see why Tier 2 does not take what it has, or bookies delete no"
                " ledgers"
            )
        states = self._states()
        few = [int(each) for each, state in states.items() if state.has_few_bookies]
        if few:
            told.append(
                f"the newest ledgers of containers {few} are on {self._settings.few_bookies_count} bookies, since there"
                f" were no {self._settings.ensemble_count}; each is followed by a full one when there are again"
            )
        told += [
            f"appends of container {container_id} have been waiting for a ledger for"
            f" {state.waiting_seconds:.0f} s: {state.waiting_for}"
            for container_id, state in states.items()
            if state.waiting_seconds >= _LOOK_SECONDS
        ]
        return told

    def _of_few_bookies(self, living: int) -> str:
        needed, few = self._settings.ensemble_count, self._settings.few_bookies_count
        meanwhile = (
            f"meanwhile new ledgers are on {few}"
            if few and living >= few
            else "meanwhile appends go on in the ledgers that are open, as far as their bookies answer, and what"
            " needs a new ledger waits"
        )
        return (
            f"{living} bookies take writes, and a ledger needs {needed}: start bookies, or make room on those that are"
            f" full; {meanwhile}"
        )

    def _states(self) -> Mapping[ContainerId, WriterState]:
        found = {}
        for container_id, log in sorted(self._logs.items()):
            state = log.writer_state()
            if state is not None:
                found[container_id] = state
        return found

    def _opened_logs(self) -> list[BookKeeperDurableDataLog]:
        return [log for log in self._logs.values() if log.writer_state() is not None]

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self._look()

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                self._living = await self._opened.ledgers.living_bookies()
            self._unknown = ""
        except (DurableDataLogError, TimeoutError) as error:
            self._unknown = str(error) or "ZooKeeper does not answer"

    def _stopped_watching(self, failure: BaseException) -> None:
        self._unknown = f"looking for them failed: {failure}"
        logger.error("the bookies are not watched any more", exc_info=failure)

    async def close(self) -> None:
        await self._tasks.close()
