"""Where the containers of a store of several processes are, as one of these knows it from the parent.

Invariants:

- Addresses never change; which process answers at them does. A node id names one process, and no later one.
- A node that has ended is none from the moment in which the parent has told of it, until the next one listens.
"""

from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version

from segmentstore.contracts.cluster import ClusterNode
from segmentstore.contracts.containers import HostId
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.host.processes.orders import NodeAddresses, States, index_of


class ProcessLocations:
    """Implements ContainerLocations. take() whatever the parent tells."""

    def __init__(
        self,
        addresses: Sequence[NodeAddresses],
        *,
        container_count: int,
        own_index: int,
        own_start: int,
        ask_parent: Callable[[], Awaitable[None]],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """`ask_parent` returns when what the parent knew at the call was taken. `on_change`: behind every take()."""
        self._addresses = addresses
        self._container_count = container_count
        self._own_index = own_index
        self._own_start = own_start
        self._ask_parent = ask_parent
        self._on_change = on_change
        self._version = version("segmentstore")
        self._ends: Sequence[int] = [0] * container_count
        self._nodes: list[ClusterNode | None] = []
        self.take(States(starts=[0] * len(addresses), ends=self._ends))

    @property
    def container_count(self) -> int:
        return self._container_count

    @property
    def node_id(self) -> HostId:
        """Of this process."""
        return node_id_of(self._own_index, self._own_start)

    def owner_of(self, container_id: ContainerId) -> ClusterNode | None:
        return self._nodes[index_of(container_id, len(self._nodes))]

    def node_to_ask(self, container_id: ContainerId) -> ClusterNode | None:
        return self.owner_of(container_id)

    def nodes(self) -> Sequence[ClusterNode]:
        return [node for node in self._nodes if node is not None]

    def ends_of(self, container_id: ContainerId) -> int:
        """How often the container has ended in processes that went on: another number says that it was away."""
        return self._ends[container_id]

    def wire_address(self, container_id: ContainerId) -> str:
        """Where its process listens, or will again: what connects meanwhile waits."""
        return self._addresses[index_of(container_id, len(self._addresses))].wire

    async def refresh(self) -> None:
        await self._ask_parent()

    def take(self, states: States) -> None:
        """What the parent knows now."""
        self._ends = states.ends
        self._nodes = [
            self._node(index, self._own_start if index == self._own_index else start)
            for index, start in enumerate(states.starts)
        ]
        self._on_change()

    def _node(self, index: int, start: int) -> ClusterNode | None:
        if not start:
            return None
        addresses = self._addresses[index]
        return ClusterNode(
            node_id=node_id_of(index, start),
            http=addresses.http,
            wire=addresses.wire,
            capacity=0,
            version=self._version,
            kafka=addresses.kafka,
        )


def node_id_of(index: int, start: int) -> HostId:
    """No two processes of one parent have the same."""
    return HostId(f"process-{index}.{start}")
