"""Which containers end and begin in the whole cluster, for what follows them: the supervisor of the controller.

A container has ended when its node is gone, when it is assigned to another node or to none, and when it was given anew
to the same one: then it was away in between, and recovered, and what was read from it before may be true no more.

Invariants:

- Every change is told as an end and then as a beginning, the two of one container in this order.
- It knows what its locations know, and looks when it is told to: it polls nothing and has no task.
"""

from collections.abc import Callable

from segmentstore.contracts.cluster import ContainerLocations
from segmentstore.contracts.containers import ContainerListener, HostId
from segmentstore.contracts.identifiers import ContainerId


class ContainerChanges:
    """watch(), then look() behind every change of the locations."""

    def __init__(
        self, *, locations: ContainerLocations, since_of: Callable[[ContainerId], int]
    ) -> None:
        """`since_of` gives the version of the assignment that gave a container to its node, 0 if it has none."""
        self._locations = locations
        self._since_of = since_of
        self._placements: dict[ContainerId, tuple[HostId, int]] = {}
        self._listeners: list[ContainerListener] = []

    @property
    def container_count(self) -> int:
        return self._locations.container_count

    def watch(self, tell: ContainerListener) -> None:
        """Have it called for every end and every beginning that look() finds from now on."""
        self._listeners.append(tell)

    def look(self) -> None:
        """O(containers)."""
        for number in range(self.container_count):
            container_id = ContainerId(number)
            owner = self._locations.owner_of(container_id)
            before = self._placements.pop(container_id, None)
            now = None if owner is None else (owner.node_id, self._since_of(container_id))
            if now is not None:
                self._placements[container_id] = now
            if now == before:
                continue
            if before is not None:
                self._notify(container_id, runs=False)
            if now is not None:
                self._notify(container_id, runs=True)

    def _notify(self, container_id: ContainerId, *, runs: bool) -> None:
        for tell in self._listeners:
            tell(container_id, runs=runs)
