"""How clients of a world find the node to ask."""

from typing import Protocol

from segmentstore.contracts.containers import SegmentContainer
from segmentstore.contracts.segments import SegmentApi
from tests.sim.node import Node


class Directory(Protocol):
    """Where a name is served now."""

    def route(self, name: str) -> tuple[Node, SegmentContainer]:
        """Raises ContainerNotFoundError while nobody owns its container."""

    def owns(self, node: Node) -> bool:
        """Whether that node is the one that route() gives."""

    def answers_truly(self, node: Node) -> bool:
        """Whether its answers must hold all that was acknowledged before it was asked: it is the owner, or was replaced
        and finds out before it answers."""

    def every_container(self) -> list[tuple[Node, SegmentApi]]:
        """All that run; raises ContainerNotFoundError unless all do."""
