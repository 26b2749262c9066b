"""Keeps topics and consumer groups working over the store: of each one run after the other.

| part | begins | ends |
|---|---|---|
| topics | when the catalogue has been read | in a store of one process, when a container of their tables ends |
| groups | when topics work, and the container of the offsets is here | when that leaves or ends |

    both also end    when background work breaks
    behind the end   what waits is told so, members are forgotten, partitions are closed; a pause; the next run

Invariants:

- Requests are answered only once the catalogue has been read: one that is not known yet must never be taken for one
  without topics. In a store of several processes it may then be away: what is known of it goes on being served.
- One process coordinates groups, and only while the offsets' container is surely in it.
- Partitions whose container leaves this process are closed in that moment. One in a container that ends and comes back
  is the partition's business: it is recovered by its next use.
- A part tries again whenever a container has recovered, and in pauses besides (`run_pauses.py`).
- Topics never end the process: what breaks them is logged, and the next run begins.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING

from segmentstore.codec.container_hash import container_of
from segmentstore.contracts.errors import ErrorKind, SegmentStoreError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.host.container_registry import ContainerRegistry
from segmentstore.host.run_pauses import RunEnd, RunPauses
from segmentstore.runtime.waiting import first_cause, wait_for_event
from segmentstore.topics.brokers import Brokers, OneBroker
from segmentstore.topics.errors import TopicError
from segmentstore.topics.groups.committed_offsets import OFFSETS_TABLE
from segmentstore.topics.groups.groups import Groups
from segmentstore.topics.producer_ids import PRODUCER_IDS_TABLE, ProducerIds
from segmentstore.topics.topic_records import CATALOGUE_TABLE
from segmentstore.topics.topics import Topics

if TYPE_CHECKING:
    from segmentstore.kafka.server import KafkaServer

logger = logging.getLogger(__name__)

_SILENCE_SECONDS_WORTH_A_LINE = 5.0
"""Shorter ones are those of containers that recover."""
_LOOK_SECONDS = 1.0
"""Between two looks whether a part may begin, besides those that it is told to take."""


class TopicTablesLostError(SegmentStoreError):
    """A container that holds a table of topics has ended: what was read from it may be true no more."""

    kind = ErrorKind.UNAVAILABLE


class _Runs:
    """Of one part."""

    def __init__(
        self,
        name: str,
        *,
        may_begin: Callable[[], bool],
        start: Callable[[], Coroutine[None, None, None]],
        work: Callable[[], Coroutine[None, None, None]],
        close: Callable[[], Coroutine[None, None, None]],
        on_ready: Callable[[bool], None],
    ) -> None:
        self._name = name
        self._may_begin = may_begin
        self._start = start
        self._work = work
        self._close = close
        self._on_ready = on_ready
        self._try_again = asyncio.Event()
        self._lost = asyncio.Event()
        self._pauses = RunPauses()
        self.started = asyncio.Event()
        """Set once it has worked for the first time."""
        self.is_ready = False
        self.why = "they have not started yet"

    @property
    def count(self) -> int:
        """Runs so far."""
        return self._pauses.runs

    def again(self) -> None:
        """There is reason for another attempt."""
        self._try_again.set()

    def lose(self) -> None:
        """What it works on is gone. At once: what is answered from now on may be of an owner that is none any more."""
        self._set_ready(ready=False)
        self._lost.set()

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None, "runs outside a task"
        while True:
            # Before the attempt: a container that recovers meanwhile is reason for another one.
            self._try_again.clear()
            self._lost.clear()
            if not self._may_begin():
                await wait_for_event(self._try_again, until=loop.time() + _LOOK_SECONDS)
                continue
            self._pauses.attempt()
            # A task of its own: what breaks in it must not look like the end of this one.
            async with asyncio.TaskGroup() as group:
                run = group.create_task(self._run_once(), name=f"a run of {self._name}")
            ended = run.result()
            if task.cancelling():
                # It broke in the very moment in which it was to end.
                raise asyncio.CancelledError from ended
            error = first_cause(ended, TopicTablesLostError)
            end = self._pauses.end(error, ended, is_lost=isinstance(error, TopicTablesLostError))
            self._note_end(end)
            await wait_for_event(self._try_again, until=loop.time() + end.pause_seconds)

    async def _run_once(self) -> "ExceptionGroup[Exception]":
        """One run, or an attempt at one; what ended it. Raises only when it is told to stop."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._until_lost(), name=f"tables of {self._name}")
                await self._start()
                self._pauses.works()
                self._set_ready(ready=True)
                self.started.set()
                group.create_task(self._work(), name=self._name)
        except ExceptionGroup as end:
            self._set_ready(ready=False)
            await self._close()
            return end
        raise AssertionError("a run ended for no reason")

    def _set_ready(self, *, ready: bool) -> None:
        self.is_ready = ready
        self._on_ready(ready)

    async def _until_lost(self) -> None:
        await self._lost.wait()
        raise TopicTablesLostError("a container of their tables has ended, or left this process")

    def _note_end(self, end: RunEnd) -> None:
        error = end.error
        self.why = f"{error}" or type(error).__name__
        if isinstance(error, TopicTablesLostError):
            logger.info("%s start anew: %s", self._name, error)
        elif end.worked or not isinstance(error, SegmentStoreError | TopicError):
            logger.error("the work of %s broke, it starts anew", self._name, exc_info=end.group)
        elif end.silent_seconds >= _SILENCE_SECONDS_WORTH_A_LINE:
            logger.warning("%s cannot be read yet: %s", self._name, error)


class TopicSupervisor:
    """run() until cancelled, then close()."""

    def __init__(
        self,
        *,
        topics: Topics,
        groups: Groups,
        producer_ids: ProducerIds,
        server: "KafkaServer",
        containers: ContainerRegistry,
        brokers: Brokers | None = None,
    ) -> None:
        """`containers` are those of this process; `brokers` is None if these are all."""
        self._topics = topics
        self._groups = groups
        self._producer_ids = producer_ids
        self._server = server
        self._brokers: Brokers = brokers or OneBroker()
        count = containers.container_count
        is_alone = brokers is None
        self._containers_of_topics = (
            {container_of(table, count) for table in (CATALOGUE_TABLE, PRODUCER_IDS_TABLE)}
            if is_alone
            else set()
        )
        self._container_of_groups = container_of(OFFSETS_TABLE, count)
        self._topic_runs = _Runs(
            "topics",
            may_begin=lambda: True,
            start=self._start_topics,
            work=topics.run,
            close=topics.close,
            on_ready=self._topics_ready,
        )
        self._group_runs = _Runs(
            "consumer groups",
            may_begin=self._may_coordinate,
            start=self._start_groups,
            work=groups.run,
            close=groups.close,
            on_ready=self._groups_ready,
        )
        self._awaited = [self._topic_runs, self._group_runs] if is_alone else [self._topic_runs]
        containers.watch(self._container_changed)

    def answering(self) -> Topics | None:
        """Topics, for servers without a wait of their own; None while they do not answer."""
        return self._topics if self._topic_runs.is_ready else None

    async def wait_until_started(self) -> None:
        """Until requests are answered for the first time; those of groups as well, if all containers are here."""
        for runs in self._awaited:
            await runs.started.wait()

    def starting(self) -> list[str]:
        """What wait_until_started() still waits for."""
        names = ("topics", self._topic_runs), ("groups", self._group_runs)
        return [name for name, runs in names if runs in self._awaited and not runs.started.is_set()]

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._topic_runs.run(), name="runs of topics")
            group.create_task(self._group_runs.run(), name="runs of groups")

    async def _start_topics(self) -> None:
        await self._topics.start()
        await self._producer_ids.start()

    async def _start_groups(self) -> None:
        # An offset that was committed elsewhere counts for a topic that this process may not have heard of.
        await self._topics.refresh()
        await self._groups.start()

    def _may_coordinate(self) -> bool:
        return self._topic_runs.is_ready and self._brokers.is_here(OFFSETS_TABLE)

    def _topics_ready(self, ready: bool) -> None:
        self._server.set_ready(ready)
        if ready:
            self._group_runs.again()

    def _groups_ready(self, ready: bool) -> None:
        if not ready:
            self._groups.lose()

    async def close(self) -> None:
        """Members are forgotten, partitions are closed. At the end of the process: behind the server. Idempotent."""
        await self._groups.close()
        await self._topics.close()

    def _container_changed(self, container_id: ContainerId, *, runs: bool) -> None:
        if runs:
            self._topic_runs.again()
            self._group_runs.again()
            return
        self._topics.close_left()
        if container_id in self._containers_of_topics:
            self._topic_runs.lose()
        if container_id == self._container_of_groups:
            self._group_runs.lose()

    def complaints(self) -> list[str]:
        """What a person should know, in sentences, for `/health`."""
        if not self._topic_runs.is_ready:
            return [f"topics do not answer now: {self._topic_runs.why}"]
        complaints = []
        if not self._group_runs.is_ready and self._brokers.is_here(OFFSETS_TABLE):
            complaints.append(f"consumer groups do not answer now: {self._group_runs.why}")
        said = self._topics.complaint()
        return [*complaints, said] if said else complaints

    def metrics(self) -> Mapping[str, float]:
        """What `/metrics` shows of topics, groups and their clients."""
        groups = self._groups.statistics()
        files = self._topics.file_statistics()
        return {
            **{
                f"kafka_{name}": value
                for name, value in self._server.statistics().metrics().items()
            },
            "kafka_ready": float(self._topic_runs.is_ready),
            "kafka_coordinates": float(self._group_runs.is_ready),
            "kafka_starts_total": float(self._topic_runs.count),
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
