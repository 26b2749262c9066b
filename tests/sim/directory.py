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

    def every_container(self) -> list[tuple[Node, SegmentApi]]:
        """All that run; raises ContainerNotFoundError unless all do."""
