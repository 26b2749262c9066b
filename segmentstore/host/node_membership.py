"""Keeps a process a node of its cluster: one session after another, each with a container manager of its own.

    a session   register under a new node id; run what the leader assigns to it; report
    it ends     when it is lost: every container stops, and only then the process registers anew
    drain       the node wishes to have no containers, and waits until the leader has moved them away

Invariants:

- A container runs for one session. Its task has ended before the next session begins.
- In the turn in which a lease is found lost all containers are told to stop. The lease says "not valid" from before
  that until the next session has one.
- The process does not end for the loss of a session: a ZooKeeper that is away is a wait.
- Once it is about to end it registers no more: it will not be listening.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from random import Random
from typing import Protocol

from segmentstore.cluster.cluster_state import (
    change_wishes,
    forget_drains_of_the_dead,
    read_wishes,
    with_drained,
    without_drained,
)
from segmentstore.cluster.node_session import NodeSession
from segmentstore.contracts.containers import HostId
from segmentstore.contracts.errors import ErrorKind, SegmentStoreError
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.coordination.coordination_store import CoordinationStore
from segmentstore.host.container_manager import ContainerManager
from segmentstore.runtime.backoff import Backoff

logger = logging.getLogger(__name__)

_RETRY_SECONDS_FIRST = 0.1
_RETRY_SECONDS_MAX = 2.0
_LOOK_SECONDS = 0.05
_FORGET_SECONDS_MAX = 2.0
_DEAD_SECONDS = 10.0
"""How often a node looks whether one of its name, that was killed, is registered still."""
_NO_NODE = HostId("")


class RegisterNode(Protocol):
    """Makes the session of one node id; `on_lost` is called in the turn in which its lease is found lost."""

    def __call__(self, on_lost: Callable[[], None]) -> Awaitable[NodeSession]: ...


class NodeMembership:
    """run() until cancelled; drain() before that, if there is time. Implements Lease for all of its sessions."""

    def __init__(
        self,
        *,
        register: RegisterNode,
        store: CoordinationStore,
        running: Callable[[], Collection[ContainerId]],
        manager_of: Callable[[NodeSession], ContainerManager],
        others: Callable[[HostId], Collection[HostId]],
        random: Random,
    ) -> None:
        """`running`: the containers that take requests here.

        `others`: the nodes beside that one; none while no controller leads, which would give them its containers.
        """
        self._register = register
        self._store = store
        self._running = running
        self._manager_of = manager_of
        self._others = others
        self._random = random
        self._session: NodeSession | None = None
        self._managing: asyncio.Task[None] | None = None
        self._registered = asyncio.Event()
        self._settled = asyncio.Event()
        self._drained = _NO_NODE
        self._is_ending = False
        self._why = "it has not registered yet"
        self._sessions = 0

    @property
    def node_id(self) -> HostId:
        """Of the present session; empty while there is none."""
        return _NO_NODE if self._session is None else self._session.node.node_id

    @property
    def leader_epoch(self) -> int:
        """Of the newest leader that has assigned something in the present session; 0 before that."""
        return 0 if self._session is None else self._session.assignments.leader_epoch

    def is_valid(self) -> bool:
        """As Lease says."""
        return self._session is not None and self._session.lease.is_valid()

    async def wait_until_settled(self) -> None:
        """Until it is registered, and every container of its first assignment has started or has failed to."""
        await self._settled.wait()

    async def wait_until_registered(self) -> None:
        """For the first time."""
        await self._registered.wait()

    async def run(self) -> None:
        """Session after session; when it is cancelled every container has been closed."""
        backoff = Backoff(
            seconds_first=_RETRY_SECONDS_FIRST, seconds_max=_RETRY_SECONDS_MAX, random=self._random
        )
        while not self._is_ending:
            try:
                await self._one_session(backoff)
            except* SegmentStoreError as losses:
                error = _first(losses)
                if error.kind is not ErrorKind.UNAVAILABLE:
                    raise
                self._why = str(error)
                logger.warning("not a node of the cluster now: %s", error)
            await asyncio.sleep(backoff.next_seconds())
        # Cancelled when the process has closed its servers.
        await asyncio.Event().wait()

    async def _one_session(self, backoff: Backoff) -> None:
        session = await self._register(self._lost)
        backoff.reset()
        is_lost = False
        try:
            if self._is_ending:
                return
            manager = self._manager_of(session)
            self._session = session
            self._sessions += 1
            self._registered.set()
            logger.info("registered node=%s", session.node.node_id)
            async with asyncio.TaskGroup() as group:
                self._managing = group.create_task(manager.run(), name="container manager")
                settling = group.create_task(self._note_settled(manager))
                forgetting = group.create_task(self._forget_drains(session.node.node_id))
                try:
                    await session.run()
                finally:
                    settling.cancel()
                    forgetting.cancel()
                    # Told to stop, and awaited by the group: containers close before the registration goes.
                    self._managing.cancel()
        except* SegmentStoreError:
            is_lost = True
            raise
        finally:
            try:
                if is_lost:
                    # Its registration keeps its containers from others for as long as its session lasts.
                    await session.reach()
            finally:
                self._session = self._managing = None
                await session.close()

    async def _forget_drains(self, node_id: HostId) -> None:
        """Of processes that had this place before, and were killed while they were drained."""
        try:
            # Those of others that are registered still: one that was killed is until its session ends.
            while not await forget_drains_of_the_dead(self._store, node_id):  # noqa: ASYNC110
                await asyncio.sleep(_DEAD_SECONDS)
        except SegmentStoreError as error:
            logger.warning("wishes of processes before this one stay: %s", error)

    async def _note_settled(self, manager: ContainerManager) -> None:
        await manager.wait_until_settled()
        self._settled.set()

    def _lost(self) -> None:
        """With no await behind the loss: containers are told to stop."""
        logger.error("the session of node=%s is lost; its containers stop", self.node_id)
        if self._managing is not None:
            self._managing.cancel()

    async def drain(self, seconds_max: float) -> None:
        """Returns when no container is here any more, when no other node can take them, or when the time is over.

        Nodes that are drained take none: of several that end at the same time none waits for the others.
        The process is about to end: it does not register again, whatever becomes of its session.
        """
        self._is_ending = True
        node_id = self.node_id
        if not node_id or seconds_max <= 0 or not self._others(node_id):
            return
        logger.info("draining node=%s", node_id)
        self._drained = node_id
        try:
            async with asyncio.timeout(seconds_max):
                await change_wishes(self._store, lambda wishes: with_drained(wishes, node_id))
                changed = asyncio.Event()
                wishes = await read_wishes(self._store, changed=changed)
                while self.node_id == node_id and self._running():
                    if all(wishes.drains(other) for other in self._others(node_id)):
                        logger.info("no other node takes the containers of node=%s", node_id)
                        return
                    await asyncio.sleep(_LOOK_SECONDS)
                    if changed.is_set():
                        changed.clear()
                        wishes = await read_wishes(self._store, changed=changed)
        except TimeoutError:
            left = list(self._running())
            logger.warning("not drained within seconds=%g containers=%s", seconds_max, left)
        except SegmentStoreError as error:
            logger.warning("cannot drain: %s", error)

    async def forget_drain(self) -> None:
        """Behind run(): the id is never used again, so what was wished for it by drain() is taken back."""
        node_id = self._drained
        if not node_id:
            return
        try:
            async with asyncio.timeout(_FORGET_SECONDS_MAX):
                await change_wishes(self._store, lambda wishes: without_drained(wishes, [node_id]))
        except (TimeoutError, SegmentStoreError) as error:
            logger.warning("the wish to drain node=%s stays: %s", node_id, error)

    def complaints(self) -> list[str]:
        """For `/health`."""
        if self.is_valid():
            return []
        return [f"the process is not a node of the cluster now: {self._why}"]

    def metrics(self) -> Mapping[str, float]:
        """What `/metrics` shows of it."""
        session = self._session
        return {
            "cluster_lease_seconds": 0.0 if session is None else session.lease.seconds_left,
            "cluster_heartbeat_seconds": 0.0
            if session is None
            else session.lease.heartbeat_seconds,
            "cluster_sessions_total": float(self._sessions),
        }


def _first(group: BaseExceptionGroup[SegmentStoreError]) -> SegmentStoreError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, SegmentStoreError), f"another error {error!r}"
    return error
