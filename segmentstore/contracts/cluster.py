"""A cluster as its processes see one another: nodes, where containers are, and for how long a node may be sure of it.

    node        a process that runs containers; it has an id that no other process ever had
    controller  a process that answers the controller's calls; one at a time is the leader, which assigns containers
    lease       what a node holds while its session in the coordination store is known to last

Invariants:

- What a process knows of others may be late. A request at the wrong node is refused there, and costs a round trip.
- A node whose lease is not valid answers nothing that another owner of its containers could contradict.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from segmentstore.contracts.containers import HostId
from segmentstore.contracts.identifiers import ContainerId


class Tier2State(StrEnum):
    """How a node stands with Tier 2, by the answers that it had itself."""

    UNKNOWN = ""
    """Neither of the others; that of a node which does not say."""
    REACHED = "reached"
    """It had an answer a moment ago."""
    SILENT = "silent"
    """It asked and had none for long: for longer than another node says REACHED behind its last answer."""


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node as it registered. Addresses are HOST:PORT, as others reach it."""

    node_id: HostId
    http: str
    wire: str
    capacity: int
    """How many containers it takes at most; 0: any number."""
    version: str
    """Of the program."""
    kafka: str = ""
    """As Kafka's clients reach it; empty for a node that serves no topics."""


class ContainerLocations(Protocol):
    """Which node has which container, as far as this process has heard. Calls without `await` look into memory."""

    @property
    def container_count(self) -> int: ...

    def owner_of(self, container_id: ContainerId) -> ClusterNode | None:
        """The node that the container is assigned to; None if it is given to none, or to one that is gone."""

    def node_to_ask(self, container_id: ContainerId) -> ClusterNode | None:
        """Its owner, or, while it is given to none, the one that it is leaving: that may answer for it still."""

    def nodes(self) -> Sequence[ClusterNode]:
        """Those that are registered, by id."""

    async def refresh(self) -> None:
        """Returns when what was decided before the call is known here: after a wrong host, before another try.

        Raises an error of ErrorKind.UNAVAILABLE if the coordination store does not answer.
        """


class Lease(Protocol):
    """A node's right to its containers, by time."""

    def is_valid(self) -> bool:
        """Whether no other node can have been given a container of this node by now. Costs one look at the clock.

        It is true until some time before the session can end, counted from when a request was *sent* that was answered.
        Once it was false for an assignment it stays false for that session.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInCluster:
    """What the servers of a node know of the cluster and of their own process in it. The rest of it does not wait."""

    locations: ContainerLocations
    node_id: Callable[[], HostId]
    """Of the present session: a node that lost its session is another one to the cluster."""
    is_lease_valid: Callable[[], bool]
    """Of the present session's lease."""
    serves: Callable[[ContainerId], bool]
    """Whether this process answers for the container now: it runs here, or stays down here for good."""
    wait_for_change: Callable[[float], Awaitable[None]] = asyncio.sleep
    """Returns when a container has come here, or is known to be elsewhere, or after so many seconds: to look again.
    None is missed by one that looks, and then waits with no await in between."""
