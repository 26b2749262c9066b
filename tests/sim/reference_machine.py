"""A machine whose containers are ReferenceContainers: for trying the simulation itself."""

from random import Random

from segmentstore.contracts.containers import SegmentContainer
from tests.sim.loop import SimLoop
from tests.sim.node import Node
from tests.sim.reference_state import ReferenceDisk
from tests.sim.reference_store import ReferenceContainer
from tests.sim.settings import Swarm


class ReferenceMachine:
    """One ReferenceDisk per container. A bug may be planted in every container built."""

    has_second_tier = False
    has_tables = False
    confirms_answers = False

    def __init__(self, loop: SimLoop, swarm: Swarm, bug: str = "") -> None:
        self._loop = loop
        self._bug = bug
        self._disks = [ReferenceDisk() for _ in range(swarm.node.container_count)]

    def build(self, node: Node, container_id: int) -> SegmentContainer:
        return ReferenceContainer(self._loop, container_id, self._disks[container_id], self._bug)

    def killed(self, node: Node) -> None:
        """Its writes are on the disk or are not."""

    def lose_power(self) -> None:
        for disk in self._disks:
            disk.lose_power(self._loop.random.randrange(3))

    def break_something(self, kind: str, random: Random) -> str:
        return ""

    def trouble_ends_at(self) -> float:
        return 0.0

    async def open_storage(self, container_id: int) -> None:
        """It has no second tier."""

    def settle(self) -> None:
        """Nothing here breaks by itself."""

    def check(self) -> None:
        for disk in self._disks:
            assert disk.synced <= len(disk.operations), (disk.synced, len(disk.operations))
