"""Where containers are, as a process of the cluster hears of it: nodes and the map, read when they may have changed.

Invariants:

- What is shown is never older than what was shown before.
- The map is read before the nodes are: a node that the map names is shown, unless it has gone.
- While the coordination store does not answer, or has a value that this program cannot read, what was heard last stays;
  `is_fresh` says whether that is long ago. A node whose registration it cannot read is not shown.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from math import inf
from random import Random
from typing import Final

from segmentstore.cluster.records import (
    ASSIGNMENT_PATH,
    LEADER_PATH,
    NODES_PATH,
    AssignmentMap,
    ClusterRecordError,
    LeaderRecord,
    decode_assignment,
    decode_leader,
    decode_node,
    node_path,
)
from segmentstore.contracts.cluster import ClusterNode
from segmentstore.contracts.containers import HostId
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.coordination.coordination_store import (
    CoordinationStore,
    CoordinationUnavailableError,
)
from segmentstore.runtime.backoff import Backoff
from segmentstore.runtime.waiting import wait_for_event

_LOG = logging.getLogger(__name__)

LOOK_SECONDS_MAX: Final = 5.0
"""Everything is read this often though no change was told."""
_RETRY_SECONDS_FIRST: Final = 0.05
_RETRY_SECONDS_MAX: Final = 1.0


class ClusterView:
    """Implements ContainerLocations. refresh() once before use, and run() from then on."""

    def __init__(
        self,
        store: CoordinationStore,
        *,
        container_count: int,
        random: Random,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_change` is called with no await behind every change of what is shown."""
        self._store = store
        self._container_count = container_count
        self._random = random
        self._on_change = on_change
        self._map: AssignmentMap | None = None
        self._nodes: dict[HostId, ClusterNode] = {}
        self._leader: LeaderRecord | None = None
        self._changed = asyncio.Event()
        self._reading = asyncio.Lock()
        self._reads_begun = 0
        self._last_answered = 0
        """Of the reads, by number."""
        self._last_unanswered = 0
        self._why_unanswered = ""
        self._is_current_at = -inf
        """Loop time at which the last read that was finished began."""

    @property
    def is_fresh(self) -> bool:
        """Whether it was read in the time in which it is read twice, told of changes or not."""
        since = asyncio.get_running_loop().time() - self._is_current_at
        return since <= 2 * LOOK_SECONDS_MAX

    @property
    def container_count(self) -> int:
        return self._container_count

    def owner_of(self, container_id: ContainerId) -> ClusterNode | None:
        given = None if self._map is None else self._map.containers.get(container_id)
        return None if given is None or given.node is None else self._nodes.get(given.node)

    def node_to_ask(self, container_id: ContainerId) -> ClusterNode | None:
        given = None if self._map is None else self._map.containers.get(container_id)
        if given is None:
            return None
        node_id = given.node or given.leaving
        return None if node_id is None else self._nodes.get(node_id)

    def nodes(self) -> Sequence[ClusterNode]:
        return list(self._nodes.values())

    def assignment(self) -> AssignmentMap | None:
        """The whole map; None before the first leader has written one."""
        return self._map

    def leader(self) -> LeaderRecord | None:
        """The controller that leads; None while there is none."""
        return self._leader

    async def refresh(self) -> None:
        # One read serves every caller that came before it began, and has failed for all of them if it is not answered.
        # One whose caller leaves meanwhile has done neither.
        begun = self._reads_begun
        async with self._reading:
            if self._last_answered > begun:
                return
            if self._last_unanswered > begun:
                raise CoordinationUnavailableError(self._why_unanswered)
            await self._read()

    async def run(self) -> None:
        """Follow every change until cancelled."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(
            seconds_first=_RETRY_SECONDS_FIRST, seconds_max=_RETRY_SECONDS_MAX, random=self._random
        )
        while True:
            self._changed.clear()
            try:
                async with self._reading:
                    await self._read()
            except CoordinationUnavailableError:
                await asyncio.sleep(backoff.next_seconds())
                continue
            except ClusterRecordError as error:
                _LOG.error("what is known of the cluster here stays as it was: %s", error)
            backoff.reset()
            await wait_for_event(self._changed, until=loop.time() + LOOK_SECONDS_MAX)

    async def _read(self) -> None:
        self._reads_begun += 1
        try:
            await self._read_all()
        except (CoordinationUnavailableError, ClusterRecordError) as error:
            self._last_unanswered, self._why_unanswered = self._reads_begun, str(error)
            raise
        self._last_answered = self._reads_begun

    async def _read_all(self) -> None:
        began = asyncio.get_running_loop().time()
        found = await self._store.get(ASSIGNMENT_PATH, changed=self._changed)
        leader = await self._store.get(LEADER_PATH, changed=self._changed)
        nodes: dict[HostId, ClusterNode] = {}
        for name in await self._store.children(NODES_PATH, changed=self._changed):
            node_id = HostId(name)
            node = self._nodes.get(node_id) or await self._node(node_id)
            if node is not None:
                nodes[node_id] = node
        self._is_current_at = began
        before = (self._map, self._leader, self._nodes)
        if found is not None:
            assignment = decode_assignment(found.value)
            if self._map is None or assignment.version > self._map.version:
                self._map = assignment
        self._leader = None if leader is None else decode_leader(leader.value)
        self._nodes = nodes
        if (self._map, self._leader, self._nodes) != before:
            self._on_change()

    async def _node(self, node_id: HostId) -> ClusterNode | None:
        found = await self._store.get(node_path(node_id))
        if found is None:
            return None
        try:
            return decode_node(found.value, node_id)
        except ClusterRecordError as error:
            _LOG.error("a node is not known here: %s", error)
            return None
