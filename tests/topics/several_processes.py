"""A store of several processes in memory: one log of each container, processes that have them in turn, and what each
process believes of the others.

Where a container is, is one truth: a process that has not got it can neither append nor open a segment of it, as if the
log had fenced it. What a process believes of the others follows when it looks; that a container has left it, it notices
when the test says so.
"""

import asyncio
from asyncio import Future
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from random import Random
from uuid import UUID

from segmentstore.codec.container_hash import container_of
from segmentstore.contracts.cluster import ClusterNode
from segmentstore.contracts.containers import HostId
from segmentstore.contracts.errors import ContainerNotFoundError, ContainerStoppedError
from segmentstore.contracts.identifiers import BufferView, ContainerId
from segmentstore.contracts.segments import AttributeUpdate, SegmentProperties
from segmentstore.contracts.tables import Table, TableApi
from segmentstore.runtime.cancellation import retrieve_exception
from segmentstore.topics.brokers import Broker
from segmentstore.topics.groups.groups import Groups
from segmentstore.topics.groups.settings import GroupSettings
from segmentstore.topics.record_files.record_files import RecordFiles
from segmentstore.topics.served_partition import RemotePartitions
from segmentstore.topics.settings import TopicSettings
from segmentstore.topics.topics import Topics
from tests.http.memory_segment import State
from tests.http.memory_segments import MemorySegments
from tests.reference.memory_tables import MemoryTables
from tests.topics.batches import Clock

CONTAINERS = 4


class SegmentsOfOneProcess(MemorySegments):
    """Those whose containers are here."""

    def __init__(self, shared: MemorySegments, require: Callable[[str], None]) -> None:
        super().__init__()
        self._segments = shared._segments
        self._shared = shared
        self._require = require

    async def create(
        self, name: str, attributes: Sequence[AttributeUpdate] = ()
    ) -> SegmentProperties:
        self._require(name)
        return await self._shared.create(name, attributes)

    def submit(
        self,
        state: State,
        data: BufferView,
        offset: int | None,
        updates: Sequence[AttributeUpdate],
        *,
        seal: bool,
    ) -> "Future[int]":
        try:
            self._require(state.name)
        except ContainerNotFoundError as error:
            return _failed(ContainerStoppedError(str(error)))
        return self._shared.submit(state, data, offset, updates, seal=seal)

    def barrier(self, state: State) -> "Future[int]":
        try:
            self._require(state.name)
        except ContainerNotFoundError as error:
            return _failed(error)
        return self._shared.barrier(state)

    def _find(self, name: str) -> State:
        self._require(name)
        return super()._find(name)


class TablesOfOneProcess(MemoryTables):
    """Those whose containers are here."""

    def __init__(self, shared: MemoryTables, require: Callable[[str], None]) -> None:
        super().__init__()
        self._tables = shared._tables
        self._require_here = require

    def open_table(self, name: str) -> AbstractAsyncContextManager[Table]:
        self._require_here(name)
        return super().open_table(name)

    async def create_table(self, name: str, *, key_length: int = 0) -> None:
        self._require_here(name)
        await super().create_table(name, key_length=key_length)


class Process:
    """One of them, and what it believes. Implements Brokers and ContainerLocations."""

    def __init__(self, store: "Processes", number: int, *, start: int) -> None:
        self._store = store
        self.number = number
        self.start = start
        """Of how many of this number."""
        self.broker = Broker(100 + number, ("127.0.0.1", 1))
        self.known = dict(store.owners)
        self.refreshes = 0

    @property
    def container_count(self) -> int:
        return CONTAINERS

    def own(self) -> Broker | None:
        return self.broker

    def all(self) -> Sequence[Broker]:
        return [each.broker for each in self._store.processes]

    def is_here(self, segment: str) -> bool:
        is_current = self._store.processes[self.number] is self
        return is_current and self._store.owner_of(segment) == self.number

    def require(self, segment: str) -> None:
        if not self.is_here(segment):
            raise ContainerNotFoundError(container_of(segment, CONTAINERS), "not here")

    def leader_of(self, segment: str) -> Broker | None:
        if self.is_here(segment):
            return self.broker
        owner = self.known.get(ContainerId(container_of(segment, CONTAINERS)))
        return None if owner is None else self._store.processes[owner].broker

    def owner_of(self, container_id: ContainerId) -> ClusterNode | None:
        owner = self.known.get(container_id)
        return None if owner is None else _node(owner)

    def node_to_ask(self, container_id: ContainerId) -> ClusterNode | None:
        return self.owner_of(container_id)

    def nodes(self) -> Sequence[ClusterNode]:
        return [_node(each.number) for each in self._store.processes]

    async def refresh(self) -> None:
        self.refreshes += 1
        await asyncio.sleep(0)
        self.look()

    def look(self) -> None:
        self.known = dict(self._store.owners)


class Processes:
    """The store."""

    def __init__(self, count: int, *, seed: int = 1) -> None:
        self.segments = MemorySegments(container_count=CONTAINERS)
        self.tables = MemoryTables()
        self.clock = Clock()
        self.random = Random(seed)
        self.owners: dict[ContainerId, int | None] = {
            ContainerId(each): each % count for each in range(CONTAINERS)
        }
        self.processes: list[Process] = []
        self.processes += [Process(self, number, start=0) for number in range(count)]
        for each in self.processes:
            each.look()

    def owner_of(self, segment: str) -> int | None:
        return self.owners[ContainerId(container_of(segment, CONTAINERS))]

    def restart(self, number: int) -> Process:
        """Another process in the place of one: that one can do nothing any more."""
        before = self.processes[number]
        self.processes[number] = Process(self, number, start=before.start + 1)
        self.processes[number].broker = before.broker
        return self.processes[number]

    def move(self, segment: str, number: int | None) -> None:
        """The container of the segment, with everything else that is in it."""
        self.owners[ContainerId(container_of(segment, CONTAINERS))] = number

    def topics(
        self,
        process: Process,
        *,
        settings: TopicSettings | None = None,
        record_files: RecordFiles | None = None,
        remote_partitions: RemotePartitions | None = None,
    ) -> Topics:
        return Topics(
            segments=SegmentsOfOneProcess(self.segments, process.require),
            all_segments=self.segments,
            tables=self.tables,
            wall_clock=self.clock,
            random=Random(self.random.random()),
            settings=settings or TopicSettings(),
            record_files=record_files,
            brokers=process,
            remote_partitions=remote_partitions,
        )

    def groups(
        self,
        process: Process,
        topics: Topics,
        offsets_table: str,
        *,
        tables: TableApi | None = None,
    ) -> Groups:
        def topic_id_of(name: str) -> UUID | None:
            found = topics.describe(name)
            return None if found is None else found.topic_id

        return Groups(
            tables=tables or TablesOfOneProcess(self.tables, process.require),
            wall_clock=self.clock,
            random=Random(self.random.random()),
            topic_id_of=topic_id_of,
            settings=GroupSettings(initial_rebalance_delay_seconds=0),
            is_coordinator=lambda: process.is_here(offsets_table),
        )


def _node(number: int) -> ClusterNode:
    return ClusterNode(HostId(f"process-{number}"), "", "", 0, "test")


def _failed(error: Exception) -> "Future[int]":
    future: Future[int] = asyncio.get_running_loop().create_future()
    future.add_done_callback(retrieve_exception)
    future.set_exception(error)
    return future
