"""What a node of a cluster says of its health: of its own containers, and what is amiss with those of none."""

from collections.abc import Sequence
from dataclasses import replace

from segmentstore.contracts.cluster import ClusterNode, NodeInCluster
from segmentstore.contracts.containers import ContainerHealth, ContainerState, HostId
from segmentstore.contracts.identifiers import ContainerId
from segmentstore.host.servers import health_of_node
from tests.http.node import healthy_container

THIS, OTHER = (
    ClusterNode(HostId(name), f"{name}:1", f"{name}:2", 0, "test") for name in ("this", "other")
)


class Owners:
    """Implements ContainerLocations."""

    def __init__(self, *owners: ClusterNode | None) -> None:
        self._owners = owners

    @property
    def container_count(self) -> int:
        return len(self._owners)

    def owner_of(self, container_id: ContainerId) -> ClusterNode | None:
        return self._owners[container_id]

    def node_to_ask(self, container_id: ContainerId) -> ClusterNode | None:
        return self.owner_of(container_id)

    def nodes(self) -> Sequence[ClusterNode]:
        return [THIS, OTHER]

    async def refresh(self) -> None:
        """It never changes."""


def node_of(*owners: ClusterNode | None, lease: bool = True) -> NodeInCluster:
    return NodeInCluster(
        locations=Owners(*owners),
        node_id=lambda: THIS.node_id,
        is_lease_valid=lambda: lease,
        serves=lambda _: True,
    )


def stopped(number: int) -> ContainerHealth:
    return replace(healthy_container(number), state=ContainerState.STOPPED, ready=False)


def test_containers_of_other_nodes_are_no_concern_of_this_one() -> None:
    containers = [healthy_container(0), stopped(1)]
    shown, expected, complaints = health_of_node(node_of(THIS, OTHER), containers)
    assert (shown, expected, complaints) == ([containers[0]], 1, [])


def test_a_container_that_is_assigned_and_does_not_run_is_shown_and_expected() -> None:
    shown, expected, _ = health_of_node(node_of(THIS), [stopped(0)])
    assert (shown, expected) == ([stopped(0)], 1)


def test_every_node_complains_of_containers_that_have_none() -> None:
    containers = [healthy_container(0), stopped(1), stopped(2)]
    shown, expected, complaints = health_of_node(node_of(THIS, None, None), containers)
    assert (shown, expected) == ([containers[0]], 1)
    assert "containers=[1, 2]" in complaints[0]


def test_a_node_that_may_have_lost_its_containers_says_so() -> None:
    _, _, complaints = health_of_node(node_of(THIS, lease=False), [healthy_container(0)])
    assert "session" in complaints[0]
