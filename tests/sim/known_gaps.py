"""Gaps of the real node that are known and open: each with an actor that finds it, in a world that shows it.

A gap is a promise that the design names and that nothing keeps yet. The test of a gap expects that its seeds find it,
and fails when they do not any more: then the gap is closed, its actor belongs into every world that it can live in,
and the entry goes.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from segmentstore.codec.container_hash import container_of
from segmentstore.contracts.errors import SegmentNotFoundError
from tests.sim.actor import Actor, Stage
from tests.sim.settings import Swarm, without_troubles
from tests.sim.world import World


@dataclass(frozen=True, slots=True)
class KnownGap:
    """Who finds it, in which world, and what is said of it when it is found."""

    finder: Callable[[Stage], Actor]
    world: Callable[[Swarm], Swarm]
    breach: str


class OldLocationAsker(Actor):
    """Creates a segment at the owner of its container, and asks where that container ran before."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage, "moved")
        world = stage.client._directory
        assert isinstance(world, World), f"not a world {world!r}"
        self._world = world
        self._count = 0

    async def step(self) -> None:
        self._count += 1
        name = f"{self.name}/{self._count}"
        await self.client.create(name)
        container_id = int(container_of(name, self._world.swarm.node.container_count))
        for host in list(self._world.zombies):
            container = host.running(container_id)
            if container is None or host.node.paused or not host.node.alive:
                continue
            began = self.stage.model.next_tick()
            try:
                await self.client.loop.invoke(host.node, container.info(name))
            except SegmentNotFoundError:
                self.stage.model.not_found(name, began)
                raise


def owners_that_are_replaced_while_they_idle(swarm: Swarm) -> Swarm:
    """Processes stand still, others take over, and the first ones wake; most containers have nothing to write."""
    trouble = replace(
        without_troubles(swarm.trouble),
        seconds=30.0,
        event_seconds_mean=1.0,
        pause=1.0,
        pause_seconds_max=2.0,
    )
    node = replace(swarm.node, container_count=4)
    work = replace(
        swarm.work,
        segment_count=1,
        actor_count=1,
        operations_per_actor=300,
        think_seconds_mean=0.05,
        table_count=0,
    )
    return Swarm(node, work, trouble)


GAPS: dict[str, KnownGap] = {
    # segmentstore/host/DESIGN.md, "a fenced owner that has not heard".
    "a fenced owner that has heard nothing says that a segment does not exist": KnownGap(
        finder=OldLocationAsker,
        world=owners_that_are_replaced_while_they_idle,
        breach="not found, yet nobody deleted it",
    ),
}
