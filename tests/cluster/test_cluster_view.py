"""What a process of the cluster knows of it, and whether it has heard of it lately."""

import asyncio
from asyncio import Event
from random import Random

from segmentstore.cluster.cluster_view import LOOK_SECONDS_MAX, ClusterView
from segmentstore.coordination.coordination_store import (
    CoordinationUnavailableError,
    VersionedValue,
)
from tests.cluster.simulated_coordination import SimulatedCoordination, SimulatedSession
from tests.sim.loop import SimLoop
from tests.sim.simulation import run_simulation
from tests.tier1.bookkeeper.simulated_network import Network


class CutSession(SimulatedSession):
    """Is answered nothing while `is_cut`."""

    is_cut = False

    async def get(self, path: str, *, changed: Event | None = None) -> VersionedValue | None:
        self._require_way()
        return await super().get(path, changed=changed)

    async def children(self, path: str, *, changed: Event | None = None) -> list[str]:
        self._require_way()
        return await super().children(path, changed=changed)

    def _require_way(self) -> None:
        if self.is_cut:
            raise CoordinationUnavailableError("cut")


def test_a_view_is_fresh_while_its_reads_are_answered() -> None:
    async def main(loop: SimLoop) -> None:
        session = await CutSession.connect(
            SimulatedCoordination(Random(1), 1_000.0), Network(Random(2))
        )
        assert isinstance(session, CutSession)
        view = ClusterView(session, container_count=4, random=Random(3))
        seen = [view.is_fresh]
        following = loop.create_task(view.run())
        for seconds, is_cut in (
            (1.0, False),
            (10 * LOOK_SECONDS_MAX, False),
            (LOOK_SECONDS_MAX, True),
            (2 * LOOK_SECONDS_MAX, True),
            (2.0, False),
        ):
            session.is_cut = is_cut
            await asyncio.sleep(seconds)
            seen.append(view.is_fresh)
        assert seen == [False, True, True, True, False, True]
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    run_simulation(1, main)
