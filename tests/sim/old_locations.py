"""Asks processes that were replaced, and have heard nothing of it, about what their successor acknowledged meanwhile.

A client with an old location is refused there, with an error that says nothing of the segment. Whatever else it is told
has to agree with what was acknowledged elsewhere: no name that exists is missing, no segment ends before its end.
"""

from contextlib import suppress
from dataclasses import replace

from segmentstore.codec.container_hash import container_of
from segmentstore.contracts.containers import SegmentContainer
from segmentstore.contracts.errors import BadOffsetError, SegmentNotFoundError
from tests.sim.actor import Actor, Stage
from tests.sim.attempts import ModelBreachError
from tests.sim.client import REQUEST_ERRORS, OpenSegment
from tests.sim.settings import Swarm, without_troubles
from tests.sim.world import Host, World


class OldLocationAsker(Actor):
    """Creates segments and appends to one of its own at the owner; asks where their containers ran before."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage, "moved")
        world = stage.client._directory
        assert isinstance(world, World), f"not a world {world!r}"
        self._world = world
        self._count = 0
        self._kept: dict[Host, OpenSegment] = {}
        """Its own segment, opened while the process was the owner."""

    async def step(self) -> None:
        if not self._count:
            await self.client.create(self.name)
        self._count += 1
        name = f"{self.name}/{self._count}"
        await self.client.create(name)
        await self._append()
        for host in list(self._world.zombies):
            container = self._container(host, name)
            if container is not None:
                await self._ask_for_a_name(host, container, name)
            if host in self._kept and self._container(host, self.name) is not None:
                await self._ask_for_the_end(self._kept[host])
                await self._append_at_the_end(self._kept[host])

    async def close(self) -> None:
        for segment in self._kept.values():
            await segment.close()

    def _container(self, host: Host, name: str) -> SegmentContainer | None:
        if host.node.paused or not host.node.alive:
            return None
        return host.running(int(container_of(name, self._world.swarm.node.container_count)))

    async def _append(self) -> None:
        """At the owner, where the segment stays open."""
        owner = self._world.owner
        if owner is None:
            return
        if owner not in self._kept:
            opened = await self.client.open(self.name)
            if not opened.owned:
                await opened.close()
                return
            self._kept[owner] = opened
        await self._append_by(self._kept[owner], offset=None)

    async def _append_by(self, segment: OpenSegment, *, offset: int | None) -> None:
        append = self.stage.model.append_begins(
            segment.life,
            connection=segment.connection,
            length=self.append_length(),
            offset=offset,
            seals=False,
        )
        await segment.outcome(append, segment.append(append))

    async def _ask_for_a_name(self, host: Host, container: SegmentContainer, name: str) -> None:
        began = self.stage.model.next_tick()
        try:
            await self.client.loop.invoke(host.node, container.info(name))
        except SegmentNotFoundError:
            self.stage.model.not_found(name, began)
            raise
        except REQUEST_ERRORS:
            return

    async def _ask_for_the_end(self, segment: OpenSegment) -> None:
        """By its properties, and by a read from where it ended once: the model judges both."""
        with suppress(*REQUEST_ERRORS):
            await segment.info()
        with suppress(*REQUEST_ERRORS):
            await segment.read(0, 1 << 20)

    async def _append_at_the_end(self, segment: OpenSegment) -> None:
        known = segment.life.length
        try:
            await self._append_by(segment, offset=known)
        except BadOffsetError as error:
            if error.expected < known:
                raise ModelBreachError(f"an old owner refuses: {error} length={known}") from error
        except REQUEST_ERRORS:
            return


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
