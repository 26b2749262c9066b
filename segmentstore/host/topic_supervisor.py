"""Keeps topics and consumer groups working over the store: one run after the other, each as long as the containers of
their tables.

    a run    topics, groups and ids of producers are started (their tables read); requests are answered; background work
    it ends  when a container that holds one of the tables ends, or when background work breaks
    then     requests wait, groups forget their members, partitions are closed; a pause; the next run

Invariants:

- Requests are answered only while everything has been read from containers that run: a catalogue that is not known yet
  must never be taken for one without topics.
- A partition in a container that ends is the partition's business: it is closed, and recovered by its next use.
- It tries again whenever a container has recovered, and in growing pauses besides.
- Topics never end the process: what breaks them is logged, and the next run begins.
"""

import asyncio
import logging
from collections.abc import Mapping

from segmentstore.codec.container_hash import container_of
from segmentstore.contracts.errors import ErrorKind, SegmentStoreError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.host.container_registry import ContainerRegistry
from segmentstore.kafka.server import KafkaServer
from segmentstore.runtime.backoff import Backoff
from segmentstore.runtime.waiting import first_cause, wait_for_event
from segmentstore.topics.errors import TopicError
from segmentstore.topics.groups.committed_offsets import OFFSETS_TABLE
from segmentstore.topics.groups.groups import Groups
from segmentstore.topics.producer_ids import PRODUCER_IDS_TABLE, ProducerIds
from segmentstore.topics.topic_records import CATALOGUE_TABLE
from segmentstore.topics.topics import Topics

logger = logging.getLogger(__name__)

_PAUSE_SECONDS_FIRST = 0.02
_PAUSE_SECONDS_MAX = 10.0
_SILENCE_SECONDS_WORTH_A_LINE = 5.0
"""Shorter ones are those of containers that recover."""
_TABLES = (CATALOGUE_TABLE, OFFSETS_TABLE, PRODUCER_IDS_TABLE)


class TopicTablesLostError(SegmentStoreError):
    """A container that holds a table of topics has ended: what was read from it may be true no more."""

    kind = ErrorKind.UNAVAILABLE


class TopicSupervisor:
    """run() until cancelled, then close()."""

    def __init__(
        self,
        *,
        topics: Topics,
        groups: Groups,
        producer_ids: ProducerIds,
        server: KafkaServer,
        containers: ContainerRegistry,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._producer_ids = producer_ids
        self._server = server
        self._containers_of_tables = {
            container_of(table, containers.container_count) for table in _TABLES
        }
        self._started = asyncio.Event()
        """Set once they have answered for the first time."""
        self._try_again = asyncio.Event()
        self._lost = asyncio.Event()
        self._is_ready = False
        self._runs = 0
        self._why = "they have not started yet"
        self._silent_since: float | None = None
        containers.watch(self._container_changed)

    def answering(self) -> Topics | None:
        """Topics, for servers without a wait of their own; None while they do not answer."""
        return self._topics if self._is_ready else None

    async def wait_until_started(self) -> None:
        """Until requests are answered for the first time."""
        await self._started.wait()

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None, "runs outside a task"
        backoff = Backoff(seconds_first=_PAUSE_SECONDS_FIRST, seconds_max=_PAUSE_SECONDS_MAX)
        while True:
            # Before the attempt: a container that recovers meanwhile is reason for another one.
            self._try_again.clear()
            self._lost.clear()
            runs, began = self._runs, loop.time()
            # A task of its own: what breaks in it must not look like the end of this one.
            async with asyncio.TaskGroup() as group:
                run = group.create_task(self._run_once(), name="a run of topics")
            end = run.result()
            if task.cancelling():
                # It broke in the very moment in which it was to end.
                raise asyncio.CancelledError from end
            if self._runs > runs and loop.time() - began > _PAUSE_SECONDS_MAX:
                backoff.reset()
            pause = backoff.next_seconds()
            if self._silent_since is None or self._runs > runs:
                self._silent_since = loop.time()
            self._note_end(end, loop.time() - self._silent_since, worked=self._runs > runs)
            await wait_for_event(self._try_again, until=loop.time() + pause)

    async def _run_once(self) -> "ExceptionGroup[Exception]":
        """One run, or an attempt at one; what ended it. Raises only when it is told to stop."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._until_lost(), name="tables of topics")
                await self._start()
                group.create_task(self._topics.run(), name="topics")
                group.create_task(self._groups.run(), name="groups")
        except ExceptionGroup as end:
            self._set_ready(ready=False)
            await self.close()
            return end
        raise AssertionError("a run ended for no reason")

    async def _start(self) -> None:
        await self._topics.start()
        await self._groups.start()
        await self._producer_ids.start()
        self._runs += 1
        self._set_ready(ready=True)
        self._started.set()

    def _set_ready(self, *, ready: bool) -> None:
        self._is_ready = ready
        self._server.set_ready(ready)

    async def close(self) -> None:
        """Members are forgotten, partitions are closed. At the end of the process: behind the server. Idempotent."""
        await self._groups.close()
        await self._topics.close()

    async def _until_lost(self) -> None:
        await self._lost.wait()
        raise TopicTablesLostError("a container of a table of topics has ended")

    def _container_changed(self, container_id: ContainerId, *, runs: bool) -> None:
        if runs:
            self._try_again.set()
        elif container_id in self._containers_of_tables:
            # At once: what is answered from now on may be of an owner that is none any more.
            self._set_ready(ready=False)
            self._lost.set()

    def _note_end(self, end: "ExceptionGroup[Exception]", silent: float, *, worked: bool) -> None:
        error = first_cause(end, TopicTablesLostError)
        self._why = f"{error}" or type(error).__name__
        if isinstance(error, TopicTablesLostError):
            logger.info("topics start anew: %s", error)
        elif worked or not isinstance(error, SegmentStoreError | TopicError):
            logger.error("the work of topics broke, it starts anew", exc_info=end)
        elif silent >= _SILENCE_SECONDS_WORTH_A_LINE:
            logger.warning("topics cannot be read yet: %s", error)

    def complaints(self) -> list[str]:
        """What a person should know, in sentences, for `/health`."""
        if not self._is_ready:
            return [f"topics do not answer now: {self._why}"]
        clock = self._topics.complaint()
        return [clock] if clock else []

    def metrics(self) -> Mapping[str, float]:
        """What `/metrics` shows of topics, groups and their clients."""
        groups = self._groups.statistics()
        files = self._topics.file_statistics()
        return {
            **{
                f"kafka_{name}": value
                for name, value in self._server.statistics().metrics().items()
            },
            "kafka_ready": float(self._is_ready),
            "kafka_starts_total": float(self._runs),
            "kafka_groups": float(groups.groups),
            "kafka_committed_offsets": float(groups.offsets),
            "kafka_files_total": float(files.files),
            "kafka_files_batch_bytes_total": float(files.batch_bytes),
            "kafka_files_failures_total": float(files.failures),
            "kafka_files_dead_total": float(files.dead_files),
            "kafka_files_under_way": float(files.under_way),
        }

    def settle_clocks(self) -> None:
        """A person says that the present time is right."""
        self._topics.settle_clocks()
