"""A node's membership in its cluster: its session, registration, lease, and what it is assigned.

Invariants:

- A node id is used by one session, and never again. When the session is lost the process registers anew, under another.
- The report is there before the registration: a registered node without one is about to be gone.
- The registration ends with the session: at once when it is closed, else when the store has heard nothing of it for
  its seconds. The lease has ended before that (`session_lease.py`).
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from segmentstore.cluster.assigned_containers import AssignedContainers
from segmentstore.cluster.records import (
    NodeReport,
    encode_node,
    encode_report,
    node_id_of,
    node_path,
    report_path,
)
from segmentstore.cluster.session_lease import SessionLease, first_cause, reach
from segmentstore.contracts.cluster import ClusterNode, Tier2State
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.coordination.coordination_store import CoordinationSession, SessionLostError


class NodeSession:
    """register(), then run() beside the container manager, then close(). One per node id."""

    def __init__(
        self,
        session: CoordinationSession,
        node: ClusterNode,
        *,
        lease: SessionLease,
        random: Random,
        load_of: Callable[[ContainerId], float] | None,
        tier2_state: Callable[[], Tier2State],
    ) -> None:
        self._session = session
        self.node = node
        self.lease = lease
        self.assignments = AssignedContainers(
            session,
            node_id=node.node_id,
            random=random,
            load_of=load_of,
            tier2_state=tier2_state,
        )

    @classmethod
    async def register(
        cls,
        connect: Callable[[], Awaitable[CoordinationSession]],
        *,
        name: str,
        http: str,
        wire: str,
        capacity: int,
        version: str,
        kafka: str = "",
        random: Random,
        on_lost: Callable[[], None],
        load_of: Callable[[ContainerId], float] | None = None,
        tier2_state: Callable[[], Tier2State] = lambda: Tier2State.UNKNOWN,
    ) -> "NodeSession":
        """A new session with a new node id. `on_lost` is called in the turn in which the lease is found lost.

        Raises CoordinationUnavailableError; then nothing is left but what ends with the session.
        """
        session = await connect()
        try:
            lease = SessionLease(session, on_lost=on_lost)
            await lease.begin()
            node = ClusterNode(
                node_id=node_id_of(name, random.getrandbits(64)),
                http=http,
                wire=wire,
                capacity=capacity,
                version=version,
                kafka=kafka,
            )
            await session.create(
                report_path(node.node_id), encode_report(NodeReport()), ephemeral=True
            )
            await session.create(node_path(node.node_id), encode_node(node), ephemeral=True)
        except BaseException:
            await session.close()
            raise
        return cls(
            session,
            node,
            lease=lease,
            random=random,
            load_of=load_of,
            tier2_state=tier2_state,
        )

    async def run(self) -> None:
        """Heartbeats, the map, reports, until the session is lost: raises SessionLostError then."""
        lost = ""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.lease.run())
                group.create_task(self.assignments.run())
        except* SessionLostError as losses:
            lost = first_cause(losses)
        raise SessionLostError(lost)

    async def reach(self) -> None:
        """Behind its loss: until close() can tell the store, or for a session's seconds."""
        await reach(self._session)

    async def close(self) -> None:
        """Ends the session: what is registered is gone at once, if it can be told. When all containers are closed."""
        await self._session.close()
